package simnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv marks a process that was started as a part of a node.
const roleEnv = "NODE_MOUNTS_SIMNODE_ROLE"

// enteredEnv holds the mount namespace that Enter made ("mnt:[4026532000]"). A
// process that inherits it in that namespace is inside as well; one that was
// given another namespace since is not.
const enteredEnv = "NODE_MOUNTS_SIMNODE_NAMESPACE"

const (
	roleHost   = "host"   // the node's own mount namespace, with kubelet in it
	roleWorker = "worker" // the first process of a container, and its helpers
	roleExec   = "exec"   // waits for leave, then becomes another program
	roleWhoami = "whoami" // prints who it runs as: what Exec makes of a copy of this binary
)

// self is the running binary, also where its path no longer leads to it: in a
// container, or after `go test` has removed it.
const self = "/proc/self/exe"

// socketFD is the descriptor a role talks through.
const socketFD = 3

// Main runs the role that this process was started for, and ends it, or returns
// at once in a process that was started for none. It is the first call of main
// and of TestMain in every program that uses this package.
func Main() {
	role := os.Getenv(roleEnv)
	if role == "" {
		return
	}
	if err := run(role); err != nil {
		fmt.Fprintf(os.Stderr, "simnode %s: %v\n", role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(role string) error {
	// kubelet's and a container runtime's, whatever the caller's shell has.
	unix.Umask(0o022)
	switch role {
	case roleHost:
		h := newHost(os.NewFile(socketFD+1, "descriptors"))
		serve(os.NewFile(socketFD, "socket"), table(h.operations()))
	case roleWorker:
		serve(os.NewFile(socketFD, "socket"), newWorker().handle)
	case roleExec:
		return becomeProgram(os.NewFile(socketFD, "socket"))
	case roleWhoami:
		_, err := fmt.Printf("uid=%d euid=%d gid=%d egid=%d\n", os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid())
		return err
	default:
		return fmt.Errorf("%s names no role", roleEnv)
	}
	return nil
}

// Enter puts the program into a mount namespace of its own, where nothing it
// mounts reaches the machine: it unshares one, makes everything in it private,
// and executes the program again, with the same arguments, in the same process.
// There is no second process, so signals, exit status and standard streams need
// no passing on. In the new namespace, and in children started there, Enter
// returns nil at once.
//
// Call it after Main and before anything else: what the program has done so far
// is lost. Where the process may not, the error is EPERM and says what it needs.
func Enter() error {
	in, err := entered()
	if in || err != nil {
		return err
	}
	// The namespace belongs to the thread until exec makes it the process's. A
	// thread that has one and could not exec is never used again: it is not
	// unlocked.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("a mount namespace needs root's CAP_SYS_ADMIN: unshare: %w", err)
		}
		return fmt.Errorf("making a mount namespace: unshare: %w", err)
	}
	// A new namespace is a peer of the old one where "/" is shared: private, or
	// every mount made here would appear on the machine as well.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mount namespace private: mount: %w", err)
	}
	asFirst()
	ns, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return fmt.Errorf("naming the mount namespace: %w", err)
	}
	if err := os.Setenv(enteredEnv, ns); err != nil {
		return err
	}
	return fmt.Errorf("executing the program again: exec: %w", syscall.Exec(inNamespace(), os.Args, os.Environ()))
}

// inNamespace is the running binary by its path, where that still leads to it. By
// self it is executed from the mount that it was started from: one of the namespace
// that was left, of which no table that an agent can read here tells.
func inNamespace() string {
	path, err := os.Executable()
	if err != nil {
		return self
	}
	there, err := os.Stat(path)
	if err != nil {
		return self
	}
	if running, err := os.Stat(self); err != nil || !os.SameFile(there, running) {
		return self
	}
	return path
}

// asFirst shows this process's mount table as that of the machine's first process:
// it is what an agent takes for its node's, and the node's is the one made here.
// Where it cannot be shown, an agent cannot look at it either, and goes without.
func asFirst() {
	_ = unix.Mount("/proc/self/mountinfo", "/proc/1/mountinfo", "", unix.MS_BIND, "")
}

// entered tells whether this process is in a namespace that Enter made.
func entered() (bool, error) {
	ns, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false, fmt.Errorf("naming the mount namespace: %w", err)
	}
	return os.Getenv(enteredEnv) == ns, nil
}

// child is a process of ours that dies with us.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and has been waited for
}

// start runs cmd. Its death signal is tied to the *thread* that forked, not to
// the process (prctl(2), PR_SET_PDEATHSIG), and a Go program may end threads: so
// one thread forks, and does nothing but wait until the child has ended.
func start(cmd *exec.Cmd) (*child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		// How it ended is in cmd.ProcessState.
		_ = cmd.Wait()
		close(c.done)
	}()
	return c, <-started
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends it and waits for that. One that has ended already is no error.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", c.cmd.Args[0], err)
	}
	<-c.done
	return nil
}

// complaintsBound is how long what an ended process has said is waited for: one that
// it started may have the other end of the pipe.
const complaintsBound = time.Second

// role is a command that runs this binary, or the copy of it at exe, as one of
// the roles, with its descriptors from socketFD on. label is what ps shows. What it
// says comes through a pipe: inherited, a file that the program's output goes to
// would look like one that the Pod has open.
func role(exe, name, label string, files ...*os.File) *exec.Cmd {
	return &exec.Cmd{
		Path:       exe,
		Args:       []string{label},
		Env:        append(os.Environ(), roleEnv+"="+name),
		Stderr:     struct{ io.Writer }{os.Stderr},
		WaitDelay:  complaintsBound,
		ExtraFiles: files,
	}
}

// becomeProgram is roleExec: it waits for the argument vector on sock, so that
// its process can be given a cgroup line first, and executes it. What comes back
// on sock is the error, or the end of the stream once exec has closed it.
func becomeProgram(sock *os.File) error {
	unix.CloseOnExec(socketFD)
	var req request
	if err := json.NewDecoder(sock).Decode(&req); err != nil {
		return fmt.Errorf("waiting for the program to run: %w", err)
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", roleEnv + "=" + roleWhoami}
	err := syscall.Exec(req.Argv[0], req.Argv, env)
	err = fmt.Errorf("exec %s: %w", strings.Join(req.Argv, " "), err)
	return json.NewEncoder(sock).Encode(response{Err: wireError(err)})
}
