package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/keepercmd"
	"github.com/datalayer/node-mounts/test/textlog"
)

const (
	// keeperVariable makes the test binary the command itself, after what it says.
	keeperVariable = "KEEPER_TEST_RUN"
	roleChild      = "child"
	patience       = time.Minute

	ada, users = 22345, 22100
)

func TestMain(m *testing.M) {
	if os.Args[0] == roleChild {
		os.Exit(child(os.Args[1:]))
	}
	switch before := os.Getenv(keeperVariable); before {
	case "":
		if code, ours := keeper.Main(os.Args); ours {
			os.Exit(code)
		}
		os.Exit(m.Run())
	case "pid 1":
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("proc", "/proc", "proc", 0, "")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
	case "as in a container":
		if err := become("SETUID", "SETGID", "KILL"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
	}
	main()
}

// become leaves this process root with these capabilities and no way to others, as the
// keeper's container does.
func become(names ...string) error {
	runtime.LockOSThread()
	numbers := map[string]uint{"SETUID": unix.CAP_SETUID, "SETGID": unix.CAP_SETGID, "KILL": unix.CAP_KILL}
	var keep uint32
	for _, name := range names {
		keep |= 1 << numbers[name]
	}
	for c := range uint(unix.CAP_LAST_CAP + 1) {
		if c < 32 && keep&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := [2]unix.CapUserData{{Effective: keep, Permitted: keep, Inheritable: keep}}
	if err := errors.Join(unix.Capset(&head, &caps[0]), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
		return err
	}
	// The other threads have what they had: execve leaves this one.
	if err := os.Setenv(keeperVariable, "now"); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// child is a child of the keeper. It tells of itself at descriptor 3.
func child(args []string) int {
	signals := make(chan os.Signal, 1)
	tell := func(text string) { _, _ = unix.Write(3, append([]byte(text), 0)) }
	switch args[0] {
	case "wait":
		signal.Notify(signals, unix.SIGTERM)
		status, _ := os.ReadFile("/proc/self/status")
		tell(string(status))
		<-signals
		fmt.Println("stopped in order")
	case "stubborn":
		signal.Ignore(unix.SIGTERM)
		tell("")
		for { // a program that waits in Go alone is ended by its runtime
			_ = unix.Pause()
		}
	case "orphans":
		// Ten processes, each of a parent that ends before it.
		for range 10 {
			cmd := exec.Command("/bin/sh", "-c", "(exec setsid sleep 0.01) & exit 0")
			if err := cmd.Run(); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		tell("")
		signal.Notify(signals, unix.SIGTERM)
		<-signals
	}
	return 5
}

type running struct {
	*keeper.Client
	t      *testing.T
	cmd    *exec.Cmd
	done   chan struct{}
	log    *textlog.Log
	dir    string
	caches string
}

// start starts the command.
func start(t *testing.T, before string, attr *syscall.SysProcAttr, args ...string) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &running{t: t, done: make(chan struct{}), log: &textlog.Log{}, dir: dir, caches: dir + "/caches"}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(c.caches, 0o777)); err != nil {
		t.Fatal(err)
	}
	socket := dir + "/run/keeper.sock"
	// A descriptor that the keeper was started with, and that no child may see.
	leak, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	c.cmd = exec.Command("/proc/self/exe", append([]string{"--socket", socket, "--cache-root", c.caches, "--log-level", "debug"}, args...)...)
	c.cmd.Env = append(os.Environ(), keeperVariable+"="+before)
	c.cmd.Stderr = c.log
	c.cmd.ExtraFiles = []*os.File{leak}
	c.cmd.SysProcAttr = attr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			t.Logf("the keeper's log:\n%s", c.log)
		}
	})
	c.Client = &keeper.Client{Dial: keeper.DialSocket(socket), Timeout: patience}
	c.eventually("the keeper answers", func() bool {
		select {
		case <-c.done:
			t.Fatal("it has ended")
		default:
		}
		_, err := c.Info(t.Context())
		return err == nil
	})
	return c
}

func (c *running) eventually(what string, holds func() bool) {
	c.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	late := time.After(patience)
	for !holds() {
		select {
		case <-ticker.C:
		case <-late:
			c.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// child starts a child and returns what it tells first, and its pidfd.
func (c *running) child(cache string, args ...string) (keeper.Child, string, *os.File) {
	c.t.Helper()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		c.t.Fatal(err)
	}
	defer program.Close()
	read, write, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	defer read.Close()
	_, k, pidfd, err := c.Start(c.t.Context(), keeper.Start{
		Use: "pod/target", Args: append([]string{roleChild}, args...), Env: []string{"PATH=/usr/bin:/bin"}, UID: ada, GID: users,
		CacheName: cache, Program: program, Files: []*os.File{write},
	})
	write.Close()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { pidfd.Close() })
	var told []byte
	part := make([]byte, 4096)
	for !bytes.HasSuffix(told, []byte{0}) {
		n, err := read.Read(part)
		if err != nil {
			c.t.Fatalf("the child tells nothing: %v", err)
		}
		told = append(told, part[:n]...)
	}
	return k, string(told), pidfd
}

func (c *running) waitEnded() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatal("the keeper does not end")
	}
	return c.cmd.ProcessState.ExitCode()
}

// ended waits for the pidfd of a child.
func (c *running) ended(pidfd *os.File) {
	c.t.Helper()
	raw, err := pidfd.SyscallConn()
	if err == nil {
		err = pidfd.SetReadDeadline(time.Now().Add(patience))
	}
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			return err == nil && n == 1
		})
	}
	if err != nil {
		c.t.Fatalf("the child does not end: %v", err)
	}
}

func TestSIGTERMReachesTheChildrenAndTheKeeperEndsInOrder(t *testing.T) {
	c := start(t, "now", nil, "--grace", "300ms")
	_, _, polite := c.child("cache", "wait")
	_, _, stubborn := c.child("", "stubborn")
	if err := c.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.ended(polite)
	c.ended(stubborn)
	if code := c.waitEnded(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	// Its output is written to the end.
	for _, want := range []string{": stopped in order\n", `"exit status 5"`, `"signal 9 (killed)"`, `"running":2`} {
		if !strings.Contains(c.log.String(), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
	for line := range strings.Lines(c.log.String()) {
		if !json.Valid([]byte(line)) && !strings.HasPrefix(line, "pod/target ") {
			t.Errorf("neither a record nor a child's line: %s", line)
		}
	}
	if entries, err := os.ReadDir(c.caches); err != nil || len(entries) != 0 {
		t.Errorf("caches are left: %v, %v", entries, err)
	}
}

func TestNoChildOutlivesAKilledKeeper(t *testing.T) {
	for name, attr := range map[string]*syscall.SysProcAttr{"now": nil, "pid 1": {Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}} {
		t.Run(name, func(t *testing.T) {
			c := start(t, name, attr)
			var pidfds []*os.File
			for range 3 {
				_, _, pidfd := c.child("", "stubborn")
				pidfds = append(pidfds, pidfd)
			}
			if err := c.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, pidfd := range pidfds {
				c.ended(pidfd)
			}
			if _, err := c.Info(t.Context()); !errors.Is(err, keeper.ErrUnavailable) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTheFirstProcessOfANamespaceWaitsForOrphans(t *testing.T) {
	c := start(t, "pid 1", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS})
	k, _, pidfd := c.child("", "orphans")
	// The exits of children are not taken away from it.
	for range 30 {
		other, _, fd := c.child("", "wait")
		if err := c.Stop(t.Context(), other.ID, time.Minute); err != nil {
			t.Fatal(err)
		}
		c.ended(fd)
		if got, err := c.Child(t.Context(), other.ID); err != nil || got.Ended == nil || got.Ended.Code != 5 {
			t.Fatalf("%v, %v", got, err)
		}
	}
	left := func() (pids []string) {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			status, _ := os.ReadFile(dir + "/status")
			if strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", c.cmd.Process.Pid)) {
				pids = append(pids, filepath.Base(dir))
			}
		}
		return pids
	}
	c.eventually("the child alone is left", func() bool { return len(left()) == 1 })
	if err := c.Stop(t.Context(), k.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	c.ended(pidfd)
	c.eventually("nothing is left", func() bool { return len(left()) == 0 })
}

func TestThreeCapabilitiesSuffice(t *testing.T) {
	c := start(t, "as in a container", nil)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	const three = "00000000000000e0"
	for _, want := range []string{"CapEff:\t" + three, "CapBnd:\t" + three, "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Fatalf("the keeper is not what it should be here: %s", status)
		}
	}
	k, told, pidfd := c.child("cache", "wait")
	none := "0000000000000000"
	// The bounding set is beyond the keeper: without CAP_SETPCAP it cannot be emptied.
	// NoNewPrivs makes sure that nothing comes of it.
	for _, want := range []string{
		"CapInh:\t" + none, "CapPrm:\t" + none, "CapEff:\t" + none, "CapAmb:\t" + none, "CapBnd:\t" + three, "NoNewPrivs:\t1",
		"Uid:\t22345\t22345\t22345\t22345", "Gid:\t22100\t22100\t22100\t22100", "Groups:\t \n",
	} {
		if !strings.Contains(told, want) {
			t.Errorf("the child's status has no %q:\n%s", want, told)
		}
	}
	if info, err := os.Stat(c.caches + "/cache"); err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("the cache: %v", err)
	}
	if err := c.Stop(t.Context(), k.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	c.ended(pidfd)
	c.eventually("the cache is removed", func() bool {
		_, err := os.Stat(c.caches + "/cache")
		return os.IsNotExist(err)
	})
	_, _, stubborn := c.child("", "stubborn")
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.ended(stubborn)
}

func TestAKeeperWhoseLogIsClosedGoesOn(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.Command("/proc/self/exe", "--socket", dir+"/run/keeper.sock")
	cmd.Env = append(os.Environ(), keeperVariable+"=now")
	cmd.Stderr = write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	c := &running{
		Client: &keeper.Client{Dial: keeper.DialSocket(dir + "/run/keeper.sock"), Timeout: patience},
		t:      t, cmd: cmd, done: done, log: &textlog.Log{},
	}
	defer func() {
		_ = cmd.Process.Kill()
		<-done
	}()
	c.eventually("the keeper answers", func() bool {
		_, err := c.Info(t.Context())
		return err == nil
	})
	read.Close()
	for range 3 {
		k, _, pidfd := c.child("", "wait")
		if err := c.Stop(t.Context(), k.ID, 0); err != nil {
			t.Fatal(err)
		}
		c.ended(pidfd)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := c.waitEnded(); code != 0 {
		t.Errorf("exit status %d, %v", code, cmd.ProcessState)
	}
}

func TestACheckAsksTheKeeperThatListens(t *testing.T) {
	c := start(t, "as in a container", nil)
	// What kubelet runs in the container may do no more than the keeper.
	ask := func(socket string) (int, string, string) {
		cmd := exec.Command("/proc/self/exe", "--check", "--socket", socket)
		cmd.Env = append(os.Environ(), keeperVariable+"=as in a container")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
	}
	info, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	socket := c.dir + "/run/keeper.sock"
	if code, stdout, stderr := ask(socket); code != 0 || stdout != info.Version+" "+info.Instance+"\n" || stderr != "" {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.waitEnded()
	// It does not become one, and leaves the socket to the next.
	if code, stdout, stderr := ask(socket); code != 1 || stdout != "" || !strings.Contains(stderr, "does not answer") {
		t.Errorf("of a keeper that has ended: %d, %q, %q", code, stdout, stderr)
	}
}

func TestTheCommandLine(t *testing.T) {
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"--version"}, 0, "v9\n", ""},
		{[]string{"--help"}, 0, "--cache-root", ""},
		{[]string{"--grace", "soon"}, 2, "", "hint: see node-mounts-keeper --help"},
		{[]string{"--grace", "-1s"}, 2, "", "--grace -1s"},
		{[]string{"--log-level", "loud"}, 2, "", "--log-level \"loud\""},
		{[]string{"--socket", "keeper.sock"}, 2, "", "absolute"},
		{[]string{"--cache-root", "/"}, 2, "", "--cache-root \"/\""},
		{[]string{"more"}, 2, "", "\"more\" is no flag"},
		{[]string{"--socket", "/proc/nowhere/keeper.sock"}, 1, "", "error: make the socket: "},
		{[]string{"--socket", t.TempDir() + "/s", "--cache-root", "/nowhere"}, 1, "", "must be a folder of root's"},
	} {
		var stdout, stderr bytes.Buffer
		code := keepercmd.Main("v9", c.args, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) ||
			(c.stdout == "") != (stdout.Len() == 0) || (c.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%q: %d, %q, %q", c.args, code, stdout.String(), stderr.String())
		}
	}
}
