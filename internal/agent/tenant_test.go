package agent_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/agent/agenttest"
)

// tenantArg makes a copy of the running binary the program of a tenant who wants
// to keep what is taken away: tenantArg, what to do, the folder, and two FIFOs.
const tenantArg = "tenant"

// What the tenant does. None of it needs a right that a sandbox's user lacks.
const (
	parkInSocket        = "socket"         // a file in flight in a socket, and nowhere else
	parkInSocketPrivate = "socket-private" // the same, opened through a namespace that has ended
	parkInRing          = "ring"           // a file registered with io_uring
	keepNamespace       = "namespace"      // a namespace with a copy, of which only a descriptor is left
	keepRoot            = "root"           // the root folder of a namespace that has ended, with a copy in it
	stack               = "stack"          // a namespace with thousands of copies
	forkOnce            = "fork"           // a child with an open file, whose parent ends
	forkApart           = "fork-apart"     // the same, in user and pid namespaces of its own
)

// What the tenant's helpers do, in user and mount namespaces of their own.
const (
	helpBind   = "help-bind"   // bind the folder on /tmp
	helpWithin = "help-within" // the same, and then be in namespaces beneath those
	helpStack  = "help-stack"  // bind the folder on /tmp many times
	helpStay   = "help-stay"
	helpFork   = "help-fork" // keep a file of the folder open
)

// stacked is more than is looked at of one namespace.
const stacked = 10_000

func runTenant(args []string) error {
	switch what, dir := args[0], args[1]; what {
	case helpBind, helpStack, helpWithin, helpStay:
		return help(what, dir)
	case forkOnce, forkApart:
		return fork(what, args[1:])
	case helpFork:
		return forked(dir, args[2], args[3])
	default:
		after, err := misbehave(what, dir)
		if err != nil {
			return err
		}
		if err := os.WriteFile(args[2], nil, 0o600); err != nil { // waits for its reader
			return err
		}
		if _, err := os.ReadFile(args[3]); err != nil { // waits for its writer
			return err
		}
		return after()
	}
}

// misbehave returns what shows that the tenant can still read the folder.
func misbehave(what, dir string) (after func() error, err error) {
	file := filepath.Join(dir, "f")
	switch what {
	case parkInSocket:
		return park(file)
	case parkInSocketPrivate:
		h, err := startHelper(helpStay, dir)
		if err != nil {
			return nil, err
		}
		after, err := park(h.proc("root" + file))
		return after, errors.Join(err, h.end())
	case parkInRing:
		return register(file)
	case keepNamespace, keepRoot, stack:
		helper, name := helpBind, "ns/mnt"
		switch what {
		case keepRoot:
			helper, name = helpWithin, "root"
		case stack:
			helper = helpStack
		}
		h, err := startHelper(helper, dir)
		if err != nil {
			return nil, err
		}
		fd, err := unix.Open(h.proc(name), unix.O_RDONLY, 0)
		return func() error {
			if what != keepRoot {
				return nil // entering it takes the user namespace as well, and one thread
			}
			f, err := unix.Openat(fd, "tmp/f", unix.O_RDONLY, 0)
			return reads(f, err)
		}, errors.Join(err, h.end())
	}
	return nil, fmt.Errorf("unknown: %s", what)
}

func reads(fd int, err error) error {
	var buf [8]byte
	if err == nil {
		_, err = unix.Pread(fd, buf[:], 0)
	}
	return err
}

// park sends the open file to itself and does not receive it yet.
func park(file string) (after func() error, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(file, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return func() error {
		data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
		if _, _, _, _, err := unix.Recvmsg(pair[1], data, oob, 0); err != nil {
			return err
		}
		cs, err := unix.ParseSocketControlMessage(oob)
		if err != nil {
			return err
		}
		fds, err := unix.ParseUnixRights(&cs[0])
		if err != nil {
			return err
		}
		return reads(fds[0], nil)
	}, unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fd), nil, 0)
}

// register leaves the open file with an io_uring alone.
func register(file string) (after func() error, err error) {
	var params [120]byte // struct io_uring_params
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params[0])), 0)
	if errno != 0 {
		return nil, errno
	}
	fd, err := unix.Open(file, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	const registerFiles = 2
	one := int32(fd)
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, ring, registerFiles, uintptr(unsafe.Pointer(&one)), 1, 0, 0); errno != 0 {
		return nil, errno
	}
	return func() error { return nil }, nil
}

// helper is a process in user and mount namespaces of its own. pid is of the one
// that has done what was asked.
type helper struct {
	cmd   *exec.Cmd
	stdin io.Closer
	pid   int
}

func (h helper) proc(name string) string { return "/proc/" + strconv.Itoa(h.pid) + "/" + name }

func (h helper) end() error {
	return errors.Join(h.stdin.Close(), h.cmd.Wait())
}

func startHelper(what, dir string) (helper, error) {
	cmd := exec.Command("/proc/self/exe", tenantArg, what, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return helper{}, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return helper{}, err
	}
	if err := cmd.Start(); err != nil {
		return helper{}, err
	}
	h := helper{cmd: cmd, stdin: stdin}
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if _, err := fmt.Sscan(line, &h.pid); err != nil {
		return helper{}, fmt.Errorf("a helper says %q: %w", line, err)
	}
	return h, nil
}

func help(what, dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private: %w", err)
	}
	pid, binds := 0, map[string]int{helpBind: 1, helpWithin: 1, helpStack: stacked}[what]
	for range binds {
		if err := unix.Mount(dir, "/tmp", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
	}
	if what == helpWithin {
		h, err := startHelper(helpStay, dir)
		if err != nil {
			return err
		}
		defer func() { _ = h.end() }()
		pid = h.pid
	} else if stat, err := os.Readlink("/proc/self"); err == nil {
		pid, _ = strconv.Atoi(stat)
	}
	fmt.Println(pid)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// fork starts a child, and ends before it.
func fork(what string, args []string) error {
	cmd := exec.Command("/proc/self/exe", append([]string{tenantArg, helpFork}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if what == forkApart {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd.Start()
}

// forked keeps the folder's file open until it may go, and says then by the second
// FIFO whether it still could read it.
func forked(dir, ready, leave string) error {
	fd, err := unix.Open(filepath.Join(dir, "f"), unix.O_RDONLY, 0)
	if err := os.WriteFile(ready, fmt.Append(nil, errText(err)), 0o600); err != nil { // waits for its reader
		return err
	}
	if _, err := os.ReadFile(leave); err != nil { // waits for its writer
		return err
	}
	return os.WriteFile(ready, fmt.Append(nil, errText(reads(fd, err))), 0o600)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// tenant is a program that runs in a container, as its user.
type tenant struct {
	t     *testing.T
	dir   string // on the claim, with the FIFOs
	ended chan error
}

// forking has a tenant fork a child that keeps u1, and returns once the parent has
// ended. letGo has the child read what it kept, and end.
func forking(t *testing.T, n *agenttest.Node, p *agenttest.Pod, what string) (letGo func()) {
	t.Helper()
	dir := installTenant(t, n)
	says := func() string {
		t.Helper()
		said := make(chan string, 1)
		go func() {
			text, err := os.ReadFile(filepath.Join(dir, "ready"))
			said <- string(text) + errText(err)
		}()
		select {
		case text := <-said:
			return text
		case <-time.After(patience):
			t.Fatal("the child says nothing")
			return ""
		}
	}
	user := p.Ctr.AsUser(userID, groupID)
	_, err := user.ReadDir("/")
	must(t, err)
	before := processes(t, n, p)
	exit, out, err := user.Exec(in+"u2/program", tenantArg, what, in+"u1", in+"u2/ready", in+"u2/go")
	if err != nil || exit != 0 {
		t.Fatalf("the parent ended with %d, %v: %s", exit, err, out)
	}
	if text := says(); text != "" {
		t.Fatalf("the child: %s", text)
	}
	return func() {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
		if text := says(); text != "" {
			t.Errorf("the child could not read any more, this held nothing: %s", text)
		}
		end := time.After(patience)
		for processes(t, n, p) != before { // its program lies in u2
			select {
			case <-time.After(time.Millisecond):
			case <-end:
				t.Fatal("the child does not end")
			}
		}
	}
}

// patience is how long a test waits for what takes milliseconds.
const patience = 30 * time.Second

func processes(t *testing.T, n *agenttest.Node, p *agenttest.Pod) int {
	t.Helper()
	ps, err := n.Processes.Of(p.UID)
	must(t, err)
	return len(ps)
}

// installTenant puts the tenant's program and its FIFOs into u2, and returns that
// folder of the claim.
func installTenant(t *testing.T, n *agenttest.Node) string {
	t.Helper()
	dir := filepath.Join(n.Claim, "h/u2")
	must(t, os.Chmod(dir, 0o777))
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "program"), self, 0o755))
	for _, name := range []string{"ready", "go"} {
		must(t, unix.Mkfifo(filepath.Join(dir, name), 0o666))
		must(t, os.Chmod(filepath.Join(dir, name), 0o666))
	}
	return dir
}

// misbehaving starts a tenant that does something to keep u1. Its FIFOs are in u2.
func misbehaving(t *testing.T, n *agenttest.Node, p *agenttest.Pod, what string) *tenant {
	t.Helper()
	dir := installTenant(t, n)
	user := p.Ctr.AsUser(userID, groupID)
	_, err := user.ReadDir("/")
	must(t, err)
	tn := &tenant{t: t, dir: dir, ended: make(chan error, 1)}
	go func() {
		exit, out, err := user.Exec(in+"u2/program", tenantArg, what, in+"u1", in+"u2/ready", in+"u2/go")
		if exit != 0 {
			err = fmt.Errorf("exit %d: %s", exit, out)
		}
		tn.ended <- err
	}()
	ready := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(filepath.Join(dir, "ready"))
		ready <- err
	}()
	select {
	case err := <-ready:
		must(t, err)
	case err := <-tn.ended:
		t.Fatalf("the tenant ended: %v", err)
	}
	return tn
}

// letGo has the tenant read what it kept, and end.
func (tn *tenant) letGo() {
	tn.t.Helper()
	must(tn.t, os.WriteFile(filepath.Join(tn.dir, "go"), nil, 0o600))
	if err := <-tn.ended; err != nil {
		tn.t.Errorf("the tenant could not read any more, this held nothing: %v", err)
	}
}
