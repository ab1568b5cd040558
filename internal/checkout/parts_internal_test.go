package checkout

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/sys/unix"
)

func TestAnAddressIsTakenApartAsGitTakesIt(t *testing.T) {
	for text, want := range map[string]remote{
		"https://Git.Example.org/a/b.git":     {overHTTPS, "https://git.example.org/a/b.git", "git.example.org", 443},
		"https://git.example.org.:443/a":      {overHTTPS, "https://git.example.org/a", "git.example.org", 443},
		"https://git.example.org:8443/a/":     {overHTTPS, "https://git.example.org:8443/a/", "git.example.org", 8443},
		"https://[2001:DB8::1]:1/a":           {overHTTPS, "https://[2001:db8::1]:1/a", "2001:db8::1", 1},
		"ssh://git@git.example.org/a/b":       {overSSH, "ssh://git@git.example.org/a/b", "git.example.org", 22},
		"ssh://git@git.example.org:2222/~a/b": {overSSH, "ssh://git@git.example.org:2222/~a/b", "git.example.org", 2222},
		"git@git.example.org:a/b.git":         {overSSH, "git@git.example.org:a/b.git", "git.example.org", 22},
		"git@[2001:db8::1]:a":                 {overSSH, "git@[2001:db8::1]:a", "2001:db8::1", 22},
	} {
		if got, err := parseRemote(text); err != nil || got != want {
			t.Errorf("%s: %+v %v, expected %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "file:///etc", "/etc", "ext::sh -c x", "http://h/a", "git://h/a", "ssh://root@h/a", "ssh://h/a", "root@h:a",
		"https://u:p@h/a", "https://u@h/a", "https://h", "https://h/", "https:///a", "https://h:0/a", "https://h:x/a",
		"https://-h/a", "https://h,i/a", "https://h/a b", "https://h/a?b", "https://h/a#b", "git@h", "git@-oProxyCommand=x:a",
		"ssh://git@-oProxyCommand=x/a", "https://127.1/a", "https://h.0x7f/a", "https://[::1/a", "https://h/a\nb",
	} {
		if got, err := parseRemote(text); ClassOf(err) != Invalid || err == nil {
			t.Errorf("%q is taken for %+v: %v", text, got, err)
		}
	}
}

func TestWhatGitSaysIsClassifiedAndRedacted(t *testing.T) {
	c := &Credential{Token: "tok/en+1"}
	e := classify("remote: x\x1b[31m\nfatal: Authentication failed for 'https://x-access-token:tok%2Fen+1@h/r/'\n", false, c.secrets(), nil)
	if e.Class != AuthRefused || strings.Contains(e.Error(), "tok") {
		t.Errorf("%v", e)
	}
	e = classify("fatal: boom tok/en+1 tok%2Fen%2B1 eC1hY2Nlc3MtdG9rZW46dG9rL2VuKzE= \x1b]0;x\x07"+strings.Repeat("y", 1000), false, c.secrets(), nil)
	if e.Class != Failed || strings.Contains(e.Error(), "tok/") || strings.Contains(e.Error(), "eC1h") || strings.ContainsAny(e.Error(), "\x1b\x07") || len(e.Error()) > 300 {
		t.Errorf("%d bytes: %q", len(e.Error()), e.Error())
	}
}

// "want ID not valid" is JGit's, and so Gerrit's.
func TestARefusalToGiveACommitByItsIDIsToldFromOneThatIsNotThere(t *testing.T) {
	for words, tips := range map[string]bool{
		"fatal: remote error: want d88f6220a1daa9c1edf88f57459a8bbf59367bb1 not valid\n":                 true,
		"error: Server does not allow request for unadvertised object d88f6220a1daa9c1edf88f57459a8bb\n": true,
		"fatal: remote error: upload-pack: not our ref d88f6220a1daa9c1edf88f57459a8bbf59367bb1\n":       false,
	} {
		e := classify(words, false, nil, nil)
		if j := (&job{}); e.Class != NotFound || j.givesTipsAlone(e) != tips {
			t.Errorf("%s%+v", words, e)
		}
	}
}

func TestAClassIsTakenFromWhoeverCanKnowIt(t *testing.T) {
	for _, try := range []struct {
		output string
		local  bool
		want   Class
	}{
		{"remote: file too large\nremote: authentication failed\nerror: RPC failed\n", false, Unreachable},
		{"remote: Repository not found.\nfatal: repository 'https://h/r/' not found\n", false, NotFound},
		{"fatal: remote error: upload-pack: not our ref abab\n", false, NotFound},
		{"fatal: remote error: authentication failed\n", false, Failed},
		{"fatal: Authentication failed for 'https://h/r/'\n", false, AuthRefused},
		{"error: unable to create file authentication failed\n", true, Failed},
		{"error: unable to create file not found: Permission denied\n", true, Failed},
		{"error: unable to create file x: File name too long\n", true, Invalid},
		{"error: x: no space left on device\n", true, Failed},
		{"error: x: no space left on device\n", false, Failed},
	} {
		if e := classify(try.output, try.local, nil, nil); e.Class != try.want {
			t.Errorf("%q is %s, expected %s", try.output, e.Class, try.want)
		}
	}
}

func TestTheHelperAnswersAboutItsServerAlone(t *testing.T) {
	c := &Credential{Token: "t", Username: "u"}
	const answered = "username=u\npassword=t\n"
	for _, try := range []struct{ url, question, want string }{
		{"https://h.example:8443/r", "protocol=https\nhost=h.example:8443\n", answered},
		{"https://h.example/r", "protocol=https\nhost=h.example\n", answered},
		{"https://[2001:db8::1]/r", "protocol=https\nhost=[2001:db8::1]\n", answered},
		{"https://h.example:8443/r", "protocol=https\nhost=h.example\n", ""},
		{"https://h.example:8443/r", "protocol=https\nhost=evil.example:8443\n", ""},
		{"https://h.example:8443/r", "protocol=http\nhost=h.example:8443\n", ""},
		{"https://h.example:8443/r", "protocol=https\nhost=h.example:8443@evil.example\n", ""},
		{"https://h.example:8443/r", "protocol=https\nhost=evil.example/@h.example:8443\n", ""},
		{"https://h.example:8443/r", "protocol=https\n", ""},
		{"https://h.example:8443/r", "", ""},
	} {
		r, err := parseRemote(try.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := answerTo(try.question, r, c); got != try.want {
			t.Errorf("of %s, %q is answered %q, expected %q", try.url, try.question, got, try.want)
		}
	}
}

func TestTheKeyRingSignsForItsJobAlone(t *testing.T) {
	dir, err := os.MkdirTemp("", "co")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir+"/k").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	key, err := os.ReadFile(dir + "/k")
	if err != nil {
		t.Fatal(err)
	}
	// A process in a pid namespace of its own is the job.
	job := exec.Command("sleep", "1000")
	job.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = job.Process.Kill(); _ = job.Wait() }()
	for _, try := range []struct {
		pid  int
		keys int
	}{{os.Getpid(), 1}, {job.Process.Pid, 0}} {
		var used atomic.Bool
		s, err := serveKey(dir, os.Getuid(), os.Getgid(), &Credential{SSHKey: key}, &used)
		if err != nil {
			t.Fatal(err)
		}
		s.started(try.pid)
		conn, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		client := agent.NewClient(conn)
		keys, _ := client.List()
		if len(keys) != try.keys {
			t.Errorf("%d keys, expected %d", len(keys), try.keys)
		}
		if try.keys == 1 {
			if _, err := client.Sign(keys[0], []byte("x")); err != nil || !used.Load() {
				t.Errorf("no signature: %v", err)
			}
			if client.RemoveAll() == nil {
				t.Error("the ring takes changes")
			}
		}
		_ = conn.Close()
		s.close()
	}
}

func TestATreeDeeperThanAPathIsRemoved(t *testing.T) {
	parent, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	fd, err := unix.Dup(int(parent.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 200)
	for i := range 100 {
		at := name
		if i == 0 {
			at = "top"
		}
		if err := unix.Mkdirat(fd, at, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, at, unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err := removeAt(parent, "top"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(parent.Name(), "top")); err == nil {
		t.Error("it is still there")
	}
}

func TestASettingThatCouldNotWorkIsRefusedAtTheStart(t *testing.T) {
	good := Config{
		Root: "/r", User: 1, Group: 1, Owner: Owner{1000, 100},
		Limits: Limits{Bytes: 1, Inodes: 1, Total: 1, Memory: 1, Timeout: 1, Jobs: 1, PerHost: 1},
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.Root = "r" },
		func(c *Config) { c.Root = "/" + strings.Repeat("r", 80) },
		func(c *Config) { c.User = 0 },
		func(c *Config) { c.Owner.UID = 1 },
		func(c *Config) { c.Proxy = "not a url" },
		func(c *Config) { c.Git = "git" },
		func(c *Config) { c.Limits.Bytes = 0 },
		func(c *Config) { c.Limits.Inodes = 0 },
		func(c *Config) { c.Limits.Total = 0 },
		func(c *Config) { c.Limits.Memory = 0 },
		func(c *Config) { c.Limits.Timeout = 0 },
		func(c *Config) { c.Limits.Jobs = 0 },
		func(c *Config) { c.Limits.PerHost = 0 },
		func(c *Config) { c.Limits.Free = -1 },
		func(c *Config) { c.Limits.Budget = -1 },
	} {
		c := good
		change(&c)
		if err := c.complete(); err == nil {
			t.Errorf("change %d is accepted: %+v", i, c)
		}
	}
	if err := good.complete(); err != nil {
		t.Error(fmt.Errorf("the good one is refused: %w", err))
	}
}
