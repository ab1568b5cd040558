package checkout_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/checkout/checkouttest"
	"github.com/datalayer/node-mounts/test/gitserver"
)

// confinedProcesses finds the processes that have something of a store in their
// arguments or environment: every process of git has its configuration there.
func confinedProcesses(t *testing.T, root string) (found []string) {
	t.Helper()
	for pid, p := range processes() {
		if pid != os.Getpid() && (strings.Contains(p.environ, root) || strings.Contains(p.cmdline, root)) {
			found = append(found, strconv.Itoa(pid)+" "+p.cmdline)
		}
	}
	return found
}

type process struct{ cmdline, environ, status string }

func processes() map[int]process {
	all := map[int]process{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue
		}
		environ, _ := os.ReadFile(dir + "/environ")
		status, _ := os.ReadFile(dir + "/status")
		all[pid] = process{strings.ReplaceAll(string(cmdline), "\x00", " "), string(environ), string(status)}
	}
	return all
}

func TestACredentialDoesNotPrintItself(t *testing.T) {
	c := checkout.Credential{Token: canary, Password: canary, Username: canary, SSHKey: []byte(canary), KnownHosts: []byte(canary)}
	r := checkout.Request{URL: "https://h/r", Credential: &c}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "c", c, "p", &c, "r", r)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "c", c, "p", &c, "r", r)
	j, err := json.Marshal([]any{c, &c, r})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	all.WriteString(log.String() + string(j))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		_, _ = fmt.Fprintf(&all, verb+verb, c, &c)
		_, _ = fmt.Fprintf(&all, verb, r)
	}
	if strings.Contains(all.String(), canary) || strings.Contains(all.String(), fmt.Sprintf("%x", canary)) {
		t.Errorf("the credential shows: %s", all.String())
	}
}

// A git that looks around instead: it is what an exploited git could do.
func TestGitSeesNothingOfTheAgent(t *testing.T) {
	w := newWorld(t)
	// Beside the program, where no fence is: the cover alone hides it.
	dir := shortDir(t)
	secrets := filepath.Join(dir, "secrets")
	if err := os.MkdirAll(secrets, 0o755); err != nil {
		t.Fatal(err)
	}
	const covered, fenced = "covered-canary", "fenced-canary"
	open := filepath.Join(shortDir(t), "open")
	for name, text := range map[string]string{filepath.Join(secrets, "token"): covered, open: fenced} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("AGENTS_OWN", "environment-canary")
	groups, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{4242}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setgroups(groups) }()
	spy := filepath.Join(dir, "spy")
	script := fmt.Sprintf(`#!/bin/sh
{ cat %s/token; ls -A %s; cat %s; cat /proc/%d/environ; env; } >&2
grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs):' /proc/self/status >&2
ls /proc/self/fd | tr '\n' ' ' | sed 's/^/open: /' >&2
exit 3
`, secrets, secrets, open, os.Getpid())
	if err := os.WriteFile(spy, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := w.config()
	c.Git, c.Hide = spy, []string{secrets}
	out := checkout.RunForTest(t, c, "version")
	if strings.Contains(out, covered) || strings.Contains(out, "environment-canary") {
		t.Errorf("git can read a secret:\n%s", out)
	}
	if abi, _, _ := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); int(abi) >= 2 && strings.Contains(out, fenced) {
		t.Errorf("git can read any file that everybody may read:\n%s", out)
	}
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d", nobody, nobody, nobody, nobody), "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
		"CapPrm:\t0000000000000000", "CapInh:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Groups:\t \n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in what the process says of itself:\n%s", want, out)
		}
	}
	// The same program without cover and fence, to see that it can tell.
	plain, err := exec.Command("sh", "-c", "exec "+spy+" 2>&1").CombinedOutput()
	if err == nil || !strings.Contains(string(plain), covered) || !strings.Contains(string(plain), fenced) {
		t.Errorf("the spy finds nothing where nothing is hidden: %v\n%s", err, plain)
	}
}

// An exploited git: the real one, and then something of its own.
func TestAGitThatDoesMoreThanItShouldIsNotBelieved(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	for name, c := range map[string]struct {
		does  string
		class checkout.Class // empty: a checkout without a trace of it
	}{
		"makes a fifo":               {"mkfifo tree/fifo", checkout.Invalid},
		"makes a second name":        {"ln tree/README spare", checkout.Invalid},
		"puts a link for the tree":   {"mv tree away; ln -s / tree", checkout.Failed},
		"puts a link for .git":       {"mv tree/.git away; ln -s ../away tree/.git", checkout.Failed},
		"says another commit":        {"echo abababababababababababababababababababab >tree/.git/HEAD", checkout.Invalid},
		"writes more than the limit": {"head -c 9000000 /dev/zero >tree/large; sync", checkout.TooLarge},
		"makes many files":           {"mkdir tree/m; for i in $(seq 600); do : >tree/m/$i; done", checkout.TooLarge},
		"sets a bit":                 {"chmod 6777 tree/README", ""},
		"leaves a process":           {"(sleep 1000 &) ; true", ""},
		"adds a configuration": {"printf '[core]\\n\\tfsmonitor = /bin/false\\n' >>tree/.git/config; mkdir -p tree/.git/hooks tree/.git/objects/info; " +
			"echo / >tree/.git/objects/info/alternates; echo / >tree/.git/commondir; echo x >tree/.git/refs/y", ""},
		"closes a folder": {"mkdir tree/closed; chmod 0 tree/closed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, repos: w.repos, root: filepath.Join(shortDir(t), "s"), log: w.log, clock: w.clock}
			git := filepath.Join(shortDir(t), "git")
			script := "#!/bin/sh\n/usr/bin/git \"$@\" || exit\ncase \" $* \" in *' checkout '*) " + c.does + " ;; esac\n"
			if err := os.WriteFile(git, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			w.open([]*gitserver.HTTPS{server}, func(config *checkout.Config) {
				config.Git, config.Limits.Bytes, config.Limits.Inodes = git, 4<<20, 500
			})
			ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha}
			if c.class != "" {
				t.Log(w.failure(ask, c.class))
			} else {
				got := w.mustGet(ask)
				inspect(t, got)
				if info, err := os.Stat(got.Path + "/README"); err != nil || info.Mode() != 0o644 && name != "sets a bit" {
					t.Errorf("README: %v %v", info, err)
				}
				if info, err := os.Stat(got.Path + "/closed"); err == nil && info.Mode().Perm() != 0o755 {
					t.Errorf("a folder is closed: %v", info.Mode())
				}
			}
			if n := confinedProcesses(t, w.root); len(n) != 0 {
				t.Errorf("processes are left: %v", n)
			}
			w.nothingLeft()
		})
	}
}

func TestAKilledAgentLeavesNothingRunningAndRubbishThatTheNextRemoves(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	held := newGate(t)
	server := w.https(&gitserver.HTTPS{Hold: held.hold})
	ca := filepath.Join(shortDir(t), "ca")
	if err := os.WriteFile(ca, server.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := exec.Command("/proc/self/exe")
	agent.Env = append(os.Environ(), victimVariable+"="+w.root, "VICTIM_CA="+ca, "VICTIM_URL="+server.URL(repo.Name),
		"VICTIM_SHA="+sha, "VICTIM_ADDRESS="+server.Address().String())
	agent.Stderr = os.Stderr
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent clones", func() bool { return held.waiting() > 0 })
	if len(list(t, filepath.Join(w.root, "jobs"))) == 0 || len(confinedProcesses(t, w.root)) < 2 {
		t.Fatal("there is no half checkout to be left behind")
	}
	if _, err := checkout.Open(t.Context(), w.config()); err == nil {
		t.Error("two agents use one folder")
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	killed := time.Now()
	eventually(t, "git has ended with the agent", func() bool { return len(confinedProcesses(t, w.root)) == 0 })
	// Left alone, git gives up on a silent server after a minute.
	if took := time.Since(killed); took > 30*time.Second {
		t.Errorf("git went on for %v without the agent", took)
	}
	if len(list(t, filepath.Join(w.root, "jobs"))) == 0 {
		t.Error("the rubbish went by itself: the test shows nothing")
	}
	held.open()
	w.open([]*gitserver.HTTPS{server})
	eventually(t, "what was left has gone", func() bool { return len(list(t, filepath.Join(w.root, "jobs"))) == 0 })
	w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha})
}

const victimVariable = "NODE_MOUNTS_TEST_VICTIM"

// victim is an agent that will be killed.
func victim(root string) int {
	ca, err := os.ReadFile(os.Getenv("VICTIM_CA"))
	if err != nil {
		return 10
	}
	c := checkout.Config{Root: root, Boot: "this boot", User: nobody, Group: nobody, Owner: checkout.Owner{UID: ada, GID: users}, CA: ca, Limits: checkouttest.Limits()}
	loopback(mustAddress(os.Getenv("VICTIM_ADDRESS")))(&c)
	s, err := checkout.Open(context.Background(), c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 11
	}
	_, err = s.Get(context.Background(), checkout.Request{URL: os.Getenv("VICTIM_URL"), Revision: os.Getenv("VICTIM_SHA"), Use: "u"})
	fmt.Fprintln(os.Stderr, err)
	return 12
}

// A process that is being started has every descriptor for a moment.
func TestAStoreThatIsClosedIsFreeAlthoughAChildHasItsDescriptors(t *testing.T) {
	w := newWorld(t)
	w.open(nil)
	child := -1
	for _, name := range list(t, "/proc/self/fd") {
		if to, err := os.Readlink("/proc/self/fd/" + name); err != nil || to != filepath.Join(w.root, "lock") {
			continue
		}
		fd, err := strconv.Atoi(name)
		if err == nil {
			child, err = unix.Dup(fd)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(child)
	}
	if child < 0 {
		t.Fatal("no descriptor of the lock was found: this shows nothing")
	}
	w.store.Close()
	w.open(nil)
}
