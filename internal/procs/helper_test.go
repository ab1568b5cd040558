package procs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

const childVariable = "PROCS_TEST_CHILD"

// patience is how long a test waits for what must happen, and quiet how long it
// watches that something does not.
const (
	patience = 20 * time.Second
	quiet    = 250 * time.Millisecond
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := child(os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child does one thing after the other, says "ready" and stays until its
// standard input ends: it cannot outlive the test.
func child(script []string) error {
	for len(script) > 0 {
		n, err := step(script)
		if err != nil {
			return fmt.Errorf("%v: %w", script[:n], err)
		}
		script = script[n:]
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// step does the first thing in script and returns how many words it took.
func step(script []string) (int, error) {
	arg := func(i int) string { return script[i] }
	switch script[0] {
	case "tmpfs":
		return 2, unix.Mount("test", arg(1), "tmpfs", 0, "")
	case "bind":
		return 3, unix.Mount(arg(1), arg(2), "", unix.MS_BIND, "")
	case "umount":
		return 2, unix.Unmount(arg(1), 0)
	case "detach":
		return 2, unix.Unmount(arg(1), unix.MNT_DETACH)
	case "mkdir":
		return 2, os.MkdirAll(arg(1), 0o755)
	case "rmdir":
		return 2, os.Remove(arg(1))
	case "write":
		return 2, os.WriteFile(arg(1), make([]byte, 8192), 0o644)
	case "copy":
		b, err := os.ReadFile("/proc/self/exe")
		return 2, errors.Join(err, os.WriteFile(arg(1), b, 0o755))
	case "namespace": // of the thread's own
		return 1, errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	case "set":
		fd, err := strconv.Atoi(arg(1))
		return 2, errors.Join(err, unix.Setns(fd, unix.CLONE_NEWNS))
	case "open":
		_, err := unix.Open(arg(1), unix.O_RDONLY, 0)
		return 2, err
	case "openmany": // more than are reported
		for range 100 {
			if _, err := unix.Open(arg(1), unix.O_RDONLY, 0); err != nil {
				return 2, err
			}
		}
		return 2, nil
	case "cd":
		return 2, unix.Chdir(arg(1))
	case "chroot":
		return 2, unix.Chroot(arg(1))
	case "map":
		return 2, mapFile(arg(1))
	case "exec": // the rest is done by the program there, of which this is a copy
		return len(script), unix.Exec(arg(1), append([]string{arg(1)}, script[2:]...), os.Environ())
	case "holding":
		return 2, reportHolding(arg(1))
	case "nest": // directories in each other, deeper than a path can name
		return 2, nest(arg(1))
	case "enter": // the rest happens in the mount namespace of another process
		return len(script), inNamespaceOf(arg(1), script[2:])
	case "thread":
		return len(script), onThread(script[1:])
	case "exit-first-thread":
		exitFirstThread()
		return 1, nil
	}
	return 1, errors.New("unknown")
}

func mapFile(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	return err
}

// nest ends with the working directory in the innermost.
func nest(name string) error {
	for range 1200 {
		if err := errors.Join(unix.Mkdir(name, 0o755), unix.Chdir(name)); err != nil {
			return err
		}
	}
	return nil
}

func inNamespaceOf(pid string, script []string) error {
	ns, err := os.Open("/proc/" + pid + "/ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	return onThread(append([]string{"set", strconv.Itoa(int(ns.Fd()))}, script...))
}

// onThread does the script on a thread with namespaces and tables of its own,
// which is not the process's first and stays as long as the process does.
func onThread(script []string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			done <- onThread(script)
			return
		}
		done <- doOnThread(script)
		select {}
	}()
	return <-done
}

func doOnThread(script []string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_FILES); err != nil {
		return err
	}
	for len(script) > 0 {
		n, err := step(script)
		if err != nil {
			return fmt.Errorf("%v: %w", script[:n], err)
		}
		script = script[n:]
	}
	return nil
}

// exitFirstThread ends the process's first thread alone. Only the runtime
// decides which goroutine runs on it, so goroutines are pinned to threads until
// one is.
func exitFirstThread() {
	for {
		first := make(chan bool)
		go func() {
			runtime.LockOSThread()
			is := unix.Gettid() == os.Getpid()
			first <- is
			if is {
				// Not RawSyscall: the scheduler must know that it can take over.
				_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
			}
			select {}
		}()
		if <-first {
			break
		}
	}
	for {
		st, err := os.ReadFile("/proc/self/stat")
		if err != nil || strings.Contains(string(st), ") Z ") {
			return
		}
		runtime.Gosched()
	}
}

// reportHolding looks for what a process holds, with this process's rights.
func reportHolding(pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	f := New("/proc")
	d, err := f.open(n)
	if err != nil {
		return err
	}
	st, err := d.stat("")
	if err != nil {
		return err
	}
	found, err := f.Holding(context.Background(), []Process{{PID: n, Start: st.start}}, map[int]bool{1: true})
	fmt.Println("found", len(found), "cannot tell:", errors.Is(err, ErrCannotTell))
	return nil
}

// running is a child that has done its script.
type running struct {
	Process
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  []string // before it was ready
}

// start starts a child with the script; attr may be nil.
func start(t *testing.T, attr *syscall.SysProcAttr, script ...string) *running {
	t.Helper()
	c := &running{cmd: exec.Command("/proc/self/exe", script...)}
	c.cmd.Env = append(os.Environ(), childVariable+"=1")
	c.cmd.SysProcAttr = attr
	c.cmd.Stderr = os.Stderr
	stdin, err := c.cmd.StdinPipe()
	check(t, err)
	stdout, err := c.cmd.StdoutPipe()
	check(t, err)
	check(t, c.cmd.Start())
	c.stdin = stdin
	t.Cleanup(c.end)
	for out := bufio.NewScanner(stdout); ; c.said = append(c.said, out.Text()) {
		if !out.Scan() {
			t.Fatalf("child: %q", c.said)
		}
		if out.Text() == "ready" {
			break
		}
	}
	d, err := New("/proc").open(c.cmd.Process.Pid)
	check(t, err)
	defer d.close()
	st, err := d.stat("")
	check(t, err)
	at, err := d.alive()
	check(t, err)
	ns, err := d.mountNS(at)
	check(t, err)
	c.Process = Process{PID: c.cmd.Process.Pid, MountNS: ns, Start: st.start}
	return c
}

// namespaced starts a child with a mount namespace of its own, in which "/" and
// all beneath are private, so that nothing it mounts is seen elsewhere.
func namespaced(t *testing.T, script ...string) *running {
	t.Helper()
	return start(t, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, script...)
}

// end lets the child end and waits until it has. Again is no error.
func (c *running) end() {
	_ = c.stdin.Close()
	_ = c.cmd.Wait()
}

// mount is the mount at point in the child's namespace, whatever its root is.
func (c *running) mount(t *testing.T, point string) mnt.Mount {
	t.Helper()
	var at []mnt.Mount
	tables, err := New("/proc").Tables(t.Context(), []Process{c.Process})
	check(t, err)
	for _, table := range tables {
		for _, m := range table.Mounts {
			if table.MountNS == c.MountNS && m.Point == point {
				at = append(at, m)
			}
		}
	}
	if len(at) != 1 {
		t.Fatalf("mounts at %s: %v", point, at)
	}
	return at[0]
}

// tree is a proc filesystem made of files.
type tree struct {
	t   *testing.T
	dir string
}

func newTree(t *testing.T) tree { return tree{t, t.TempDir()} }

func (tr tree) finder() *Finder { return New(tr.dir) }

// add makes a process that has nothing but files: cgroup, stat and the name of
// its mount namespace.
func (tr tree) add(pid int, cgroup string, state byte, started uint64) {
	tr.t.Helper()
	tr.write(pid, "cgroup", cgroup)
	tr.stat(pid, "name", state, started)
	check(tr.t, os.Mkdir(filepath.Join(tr.dir, strconv.Itoa(pid), "ns"), 0o755))
	check(tr.t, os.Symlink(fmt.Sprintf("mnt:[%d]", 4026530000+pid), filepath.Join(tr.dir, strconv.Itoa(pid), "ns/mnt")))
}

func (tr tree) stat(pid int, name string, state byte, started uint64) {
	tr.t.Helper()
	tr.write(pid, "stat", fmt.Sprintf("%d (%s) %c 1 1 1 0 -1 4194560 900 0 0 0 1 2 0 0 20 0 1 0 %d 1200 100 18446744073709551615 1 1\n", pid, name, state, started))
}

// link makes a real process appear in the tree, in a cgroup of our choice.
func (tr tree) link(p Process, cgroup string) {
	tr.t.Helper()
	tr.write(p.PID, "cgroup", cgroup)
	for _, name := range []string{"stat", "ns", "task", "fd", "fdinfo", "cwd", "root", "exe", "maps", "map_files", "mountinfo"} {
		check(tr.t, os.Symlink(fmt.Sprintf("/proc/%d/%s", p.PID, name), filepath.Join(tr.dir, strconv.Itoa(p.PID), name)))
	}
}

func (tr tree) write(pid int, name, content string) {
	tr.t.Helper()
	dir := filepath.Join(tr.dir, strconv.Itoa(pid))
	check(tr.t, os.MkdirAll(dir, 0o755))
	check(tr.t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
}

func (tr tree) remove(pid int) {
	tr.t.Helper()
	check(tr.t, os.RemoveAll(filepath.Join(tr.dir, strconv.Itoa(pid))))
}

// gate makes a process at whose cgroup file a scan stops until it is let pass.
func (tr tree) gate(pid int) gate {
	tr.t.Helper()
	tr.write(pid, "stat", "")
	path := filepath.Join(tr.dir, strconv.Itoa(pid), "cgroup")
	check(tr.t, unix.Mkfifo(path, 0o644))
	return gate{tr.t, path}
}

type gate struct {
	t    *testing.T
	path string
}

// arrive waits until a scan has come to the gate, and returns what lets it pass.
func (g gate) arrive() (pass func()) {
	g.t.Helper()
	f, err := os.OpenFile(g.path, os.O_WRONLY, 0) // blocks until it is read
	check(g.t, err)
	return func() { check(g.t, f.Close()) }
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within20s(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
		return nil
	}
}
