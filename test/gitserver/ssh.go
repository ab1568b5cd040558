package gitserver

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/test/ports"
)

// SSHVariable names the program, where it is not the system's.
const SSHVariable = "NODE_MOUNTS_SSHD"

// SSH is an sshd in which a user "git" may run git alone.
type SSH struct {
	address netip.AddrPort
	host    []byte // the public key of the host
	key     []byte // the private key that is accepted
	other   []byte // one that is not
}

// inside is what sshd needs of a system, made where nobody else sees it: a user
// called git, one for its own separation of privileges, and its run folder. It runs
// in a mount namespace of its own.
const inside = `set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/sshd
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/shadow" /etc/shadow
exec "$2" -D -e -f "$1/sshd_config"
`

// StartSSH serves the repositories beneath a folder until the test ends. It needs
// root, and fails the test where there is no sshd.
func StartSSH(t testing.TB, root string) *SSH {
	t.Helper()
	return startSSH(t, root, "AcceptEnv GIT_PROTOCOL")
}

// StartOldSSH is StartSSH for a server that is not told which protocol git speaks, as
// sshd's own settings have it: it speaks the old one.
func StartOldSSH(t testing.TB, root string) *SSH {
	t.Helper()
	return startSSH(t, root, "#")
}

func startSSH(t testing.TB, root, protocol string) *SSH {
	t.Helper()
	program := sshd(t)
	dir, err := os.MkdirTemp("", "sshd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	s := &SSH{address: netip.MustParseAddrPort("127.0.0.1:" + ports.Free(t, "127.0.0.1"))}
	for _, name := range []string{"host", "key", "other"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	s.host, s.key, s.other = read(t, dir+"/host.pub"), read(t, dir+"/key"), read(t, dir+"/other")
	// sshd runs a command by the user's shell; the backend needs to trust the folder.
	write(t, dir+"/shell", 0o755, "#!/bin/sh\nexport GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'\nexec /bin/sh \"$@\"\n")
	write(t, dir+"/passwd", 0o644, strings.Join([]string{
		"root:x:0:0:root:/root:/bin/sh",
		fmt.Sprintf("git:x:64999:64999:git:%s:%s/shell", root, dir),
		"sshd:x:64998:64998:sshd:/run/sshd:/usr/sbin/nologin", "",
	}, "\n"))
	write(t, dir+"/shadow", 0o600, "root:*:1::::::\ngit:*:1::::::\nsshd:*:1::::::\n")
	write(t, dir+"/authorized", 0o644, string(read(t, dir+"/key.pub")))
	write(t, dir+"/sshd_config", 0o600, strings.Join([]string{
		"ListenAddress " + s.address.String(), "HostKey " + dir + "/host", "AuthorizedKeysFile " + dir + "/authorized",
		"StrictModes no", "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"AllowUsers git", protocol, "PidFile none", "LogLevel VERBOSE", "",
	}, "\n"))
	s.start(t, dir, program)
	return s
}

func (s *SSH) start(t testing.TB, dir, program string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", inside, "sh", dir, program)
	cmd.Env = append(environment(), "LD_LIBRARY_PATH="+libraries(program))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Cloneflags: syscall.CLONE_NEWPID}
	words, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	// All that the pipe says is read before the test ends: Logf may not come later.
	listening, ended := make(chan struct{}), make(chan struct{})
	var said bytes.Buffer
	go func() {
		defer close(ended)
		once := false
		for lines := bufio.NewScanner(words); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if !once && strings.Contains(lines.Text(), "Server listening") {
				once = true
				close(listening)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd said:\n%s", said.String())
		}
	})
	select {
	case <-listening:
	case <-ended:
		t.Fatalf("sshd ended: %s", said.String())
	case <-time.After(time.Minute):
		t.Fatal("sshd does not listen")
	}
}

// URL is the address of a repository, by its path on this machine.
func (s *SSH) URL(r *Repository) string { return "ssh://git@" + s.address.String() + r.Dir() }

// Address is where the server listens.
func (s *SSH) Address() netip.AddrPort { return s.address }

// Key is the private key that the server accepts.
func (s *SSH) Key() []byte { return s.key }

// OtherKey is a private key that it does not accept.
func (s *SSH) OtherKey() []byte { return s.other }

// KnownHosts is the line that a client needs to know the server.
func (s *SSH) KnownHosts() []byte {
	return fmt.Appendf(nil, "[%s]:%d %s", s.address.Addr(), s.address.Port(), s.host)
}

// NewKey is a private key that no server knows.
func NewKey(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir+"/k").CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	return read(t, dir+"/k")
}

// OtherKnownHosts is a line with another key for the server.
func (s *SSH) OtherKnownHosts(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir+"/k").CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	return fmt.Appendf(nil, "[%s]:%d %s", s.address.Addr(), s.address.Port(), read(t, dir+"/k.pub"))
}

// sshd is the program: named by the environment, of the system, or unpacked beside
// it by tools/debs.
func sshd(t testing.TB) string {
	t.Helper()
	if p := os.Getenv(SSHVariable); p != "" {
		return p
	}
	if _, err := os.Stat("/usr/sbin/sshd"); err == nil {
		return "/usr/sbin/sshd"
	}
	cache, err := os.UserCacheDir()
	must(t, err)
	project, err := module()
	must(t, err)
	dir := filepath.Join(cache, "node-mounts", "debs-sshd")
	out, err := exec.Command(filepath.Join(project, "tools", "debs"), dir, "openssh-server", "libwrap0", "libaudit1").CombinedOutput()
	if err != nil {
		t.Fatalf("no sshd: install openssh-server, or set %s: %v: %s", SSHVariable, err, out)
	}
	return filepath.Join(dir, "usr/sbin/sshd")
}

// libraries are the folders of libraries that were unpacked beside a program.
func libraries(program string) string {
	root := strings.TrimSuffix(program, "/usr/sbin/sshd")
	if root == "" {
		return ""
	}
	found, _ := filepath.Glob(root + "/usr/lib/*-linux-gnu")
	more, _ := filepath.Glob(root + "/lib/*-linux-gnu")
	return strings.Join(append(found, more...), ":")
}

// module finds the project's folder.
func module() (dir string, err error) {
	if dir, err = os.Getwd(); err != nil {
		return "", err
	}
	for dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "tools", "debs")); err == nil {
			return dir, nil
		}
		dir = filepath.Dir(dir)
	}
	return "", fmt.Errorf("tools/debs: %w", os.ErrNotExist)
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	must(t, err)
	return content
}

func write(t testing.TB, name string, mode os.FileMode, content string) {
	t.Helper()
	must(t, os.WriteFile(name, []byte(content), mode))
	must(t, os.Chmod(name, mode))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
