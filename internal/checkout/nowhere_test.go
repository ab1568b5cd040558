package checkout_test

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/test/gitserver"
)

// lookout looks for secrets where they must not be.
type lookout struct {
	w       *world
	secrets []string // in every form
	except  string   // the folder of a server, which knows its own
	seen    map[string]bool
}

// newLookout is made before the world: all that is made in temporary folders is then
// made in one of its own.
func newLookout(t *testing.T) *lookout {
	t.Helper()
	t.Setenv("TMPDIR", shortDir(t))
	return &lookout{w: newWorld(t), seen: map[string]bool{}}
}

func (l *lookout) finds(text string) bool {
	return slices.ContainsFunc(l.secrets, func(s string) bool { return strings.Contains(text, s) })
}

// processes looks at what every process shows of itself, and into the memory of git's.
func (l *lookout) processes(memory bool) (found []string) {
	for pid, p := range processes() {
		if pid == os.Getpid() {
			continue
		}
		if l.finds(p.cmdline) || l.finds(p.environ) {
			found = append(found, fmt.Sprintf("process %d shows it: %s", pid, p.cmdline))
		}
		if !strings.Contains(p.environ, l.w.root) {
			continue
		}
		l.seen[strings.Fields(p.cmdline + " ?")[0]] = true
		if memory && l.finds(memoryOf(pid)) {
			found = append(found, fmt.Sprintf("process %d has it in memory: %s", pid, p.cmdline))
		}
	}
	return found
}

// disk looks into every file beneath the temporary folders: in the system's, which are
// everybody's, into those of git's user alone.
func (l *lookout) disk() (found []string) {
	// The store lies in the first.
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm"} {
		everybodys := dir != os.TempDir()
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // somebody else's, or gone
			}
			if d.IsDir() && l.except != "" && strings.HasPrefix(d.Name(), l.except) {
				return fs.SkipDir
			}
			if !d.Type().IsRegular() {
				return nil
			}
			info, err := d.Info()
			if err != nil || everybodys && info.Sys().(*syscall.Stat_t).Uid != nobody {
				return nil //nolint:nilerr // gone
			}
			content, err := os.ReadFile(p)
			if err == nil && l.finds(string(content)) {
				found = append(found, p+" holds it")
			}
			return nil
		})
		if err != nil {
			found = append(found, err.Error())
		}
	}
	return found
}

// words looks at what the store has said.
func (l *lookout) words(errs ...error) (found []string) {
	said := []string{l.w.log.String()}
	for _, err := range errs {
		said = append(said, fmt.Sprintf("%v %+v %#v", err, err, err))
	}
	for _, text := range said {
		if l.finds(text) {
			found = append(found, "it is told: "+text)
		}
	}
	return found
}

// nothing fails the test for each place where a secret was found.
func (l *lookout) nothing(found ...[]string) {
	l.w.t.Helper()
	for _, f := range slices.Concat(found...) {
		l.w.t.Errorf("a secret: %.500s", f)
	}
}

// memoryOf reads what a process has in memory, as far as it can be read.
func memoryOf(pid int) string {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return ""
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return ""
	}
	defer file.Close()
	var all strings.Builder
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		var from, to int64
		var mode string
		// Files that are mapped are on the disk.
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") || to-from > 64<<20 {
			continue
		}
		part := make([]byte, to-from)
		n, _ := file.ReadAt(part, from)
		all.Write(part[:n])
	}
	return all.String()
}

func TestALookoutSeesWhatIsShown(t *testing.T) {
	l := newLookout(t)
	const secret = "lookout-canary"
	l.secrets = []string{secret}
	l.nothing(l.processes(true), l.disk(), l.words(errors.New("nothing")))
	child := func(input string, env string, args ...string) (end func()) {
		t.Helper()
		cmd := exec.Command("sh", append([]string{"-c", "read held; echo; read end"}, args...)...)
		cmd.Env = []string{"STORE=" + l.w.root, "X=" + env}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write([]byte(input + "\n")); err != nil {
			t.Fatal(err)
		}
		// It has read what it was given.
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return func() { _ = in.Close(); _ = cmd.Wait() }
	}
	for name, show := range map[string]func() (end func()){
		"an argument":     func() func() { return child("", "", secret) },
		"a variable":      func() func() { return child("", secret) },
		"what is held":    func() func() { return child(secret, "") },
		"a file":          func() func() { return holding(t, filepath.Join(filepath.Dir(l.w.root), "f"), secret, 0) },
		"a file of git's": func() func() { return holding(t, "/var/tmp/lookout-"+rand.Text(), secret, nobody) },
	} {
		end := show()
		if found := slices.Concat(l.processes(true), l.disk()); len(found) == 0 {
			t.Errorf("%s is not found", name)
		}
		end()
	}
	if found := l.words(errors.New("x " + secret)); len(found) != 1 {
		t.Errorf("words are found %d times", len(found))
	}
}

// holding is a file, until its end.
func holding(t *testing.T, path, content string, owner int) (end func()) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chown(path, owner, owner)); err != nil {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(path) }
}

func TestTheTokenIsNowhere(t *testing.T) {
	l := newLookout(t)
	// The prompts of git have the username in them: it is to be asked for in another way.
	const user = "canary-9c41-user"
	l.secrets = []string{canary, user}
	w, held := l.w, newGate(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "secret\n"})
	server := w.https(&gitserver.HTTPS{Hold: held.hold, Username: user, Password: canary})
	w.open([]*gitserver.HTTPS{server})
	done := make(chan error, 1)
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha, Credential: &checkout.Credential{Username: user, Token: canary}, Use: "u"}
	go func() {
		_, err := w.store.Get(t.Context(), ask)
		done <- err
	}()
	// git's https sends the password, so it is in that one's memory.
	eventually(t, "the server is asked for objects", func() bool { l.nothing(l.processes(false)); return held.waiting() > 0 })
	l.nothing(l.processes(false))
	l.nothing(l.disk())
	held.open()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l.nothing(l.disk())
	if len(l.seen) < 2 {
		t.Errorf("the look at processes saw too little of git: %v", l.seen)
	}
	wrong := ask
	wrong.Credential = &checkout.Credential{Username: user, Token: canary + "!"}
	_, err := w.get(wrong)
	l.nothing(l.words(err))
}

// forms are what a private key could show itself by.
func forms(t *testing.T, key []byte) (all []string) {
	t.Helper()
	raw, err := ssh.ParseRawPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	seed := raw.(*ed25519.PrivateKey).Seed()
	all = append(all, string(seed), hex.EncodeToString(seed), base64.StdEncoding.EncodeToString(seed))
	// The lines of the file; the first ones are the same in every key.
	lines := strings.Split(strings.TrimSpace(string(key)), "\n")
	return append(all, lines[3:len(lines)-1]...)
}

func TestThePrivateKeyIsNowhere(t *testing.T) {
	l := newLookout(t)
	w := l.w
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "over ssh\n"})
	server := gitserver.StartSSH(t, w.repos)
	l.except = "sshd"
	l.secrets = append(forms(t, server.Key()), canary)
	w.open(nil, loopback(server.Address()))
	// The server reads this before it looks for the commit.
	hold := filepath.Join(repo.Dir(), "objects", "info", "alternates")
	if err := unix.Mkfifo(hold, 0o644); err != nil {
		t.Fatal(err)
	}
	// A Secret may hold more than its address needs.
	ask := checkout.Request{URL: server.URL(repo), Revision: sha, Use: "u", Credential: &checkout.Credential{
		SSHKey: server.Key(), KnownHosts: server.KnownHosts(), Token: canary, Password: canary, Username: canary,
	}}
	done := make(chan error, 1)
	go func() {
		_, err := w.store.Get(t.Context(), ask)
		done <- err
	}()
	writer := -1
	eventually(t, "the server looks for the commit", func() bool {
		l.nothing(l.processes(true))
		var err error
		writer, err = unix.Open(hold, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil && !errors.Is(err, unix.ENXIO) { // that nobody reads
			t.Fatal(err)
		}
		return err == nil
	})
	l.nothing(l.processes(true))
	l.nothing(l.disk())
	if !l.seen["ssh"] || len(l.seen) < 2 {
		t.Errorf("the look at processes saw too little of git: %v", l.seen)
	}
	if err := errors.Join(os.Remove(hold), unix.Close(writer)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l.nothing(l.disk())

	var errs []error
	half := bytes.Split(server.Key(), []byte("\n"))
	for _, c := range []checkout.Credential{
		{SSHKey: server.Key(), KnownHosts: server.OtherKnownHosts(t), Password: canary},
		{SSHKey: bytes.Join(half[:len(half)-2], []byte("\n")), KnownHosts: server.KnownHosts(), Token: canary},
		{SSHKey: append([]byte(canary), server.Key()...), KnownHosts: server.KnownHosts()},
		{SSHKey: server.Key(), KnownHosts: []byte(canary)},
		{SSHKey: server.Key()},
	} {
		ask.Credential = &c
		_, err := w.get(ask)
		if err == nil {
			t.Errorf("opened with %d bytes of a key", len(c.SSHKey))
		}
		errs = append(errs, err)
	}
	l.nothing(l.words(errs...))
	l.nothing(l.disk())
}
