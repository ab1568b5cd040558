package agenttest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/simnode"
)

// Process is node-mounts-agent as a process, alive or not.
type Process struct {
	PID  int
	Done <-chan struct{} // closed when it has ended
	// State says how it ended, once it has.
	State *os.ProcessState

	t        testing.TB
	log      output
	patience time.Duration
}

// Flags are those of an agent of the node that is called name in the API.
func Flags(n *simnode.Node, name, namespace, kubeconfig string) []string {
	return []string{
		"--node-id", name, "--namespace", namespace, "--shared-root", n.Claim, "--root", n.Root, "--kubelet-dir", n.Kubelet,
		"--kubeconfig", kubeconfig,
	}
}

// StartProcess starts the agent that cmd runs; it dies with the test's program at
// the latest. patience is how long its methods wait for it.
func StartProcess(t testing.TB, cmd *exec.Cmd, patience time.Duration) *Process {
	t.Helper()
	done, started := make(chan struct{}), make(chan error)
	p := &Process{Done: done, t: t, patience: patience}
	cmd.Stderr = &p.log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	go func() {
		// The death signal is tied to the thread that forks (prctl(2)): it does nothing
		// else.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.PID = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended is in its state
		p.State = cmd.ProcessState
		close(done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return p
}

// Alive tells whether it has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.Done:
		return false
	default:
		return true
	}
}

// Kill ends it by SIGKILL, also where it has ended.
func (p *Process) Kill() {
	p.t.Helper()
	p.signal(unix.SIGKILL)
	<-p.Done
}

// Stop ends it as kubelet does, and returns its exit status.
func (p *Process) Stop() int {
	p.t.Helper()
	p.signal(unix.SIGTERM)
	p.WaitEnded()
	return p.State.ExitCode()
}

// WaitEnded waits until it has ended.
func (p *Process) WaitEnded() {
	p.t.Helper()
	select {
	case <-p.Done:
	case <-time.After(p.patience):
		p.t.Fatal("the agent does not end")
	}
}

func (p *Process) signal(s unix.Signal) {
	p.t.Helper()
	if !p.Alive() {
		return
	}
	// It may have ended since and been waited for: Done is closed a moment later.
	if err := unix.Kill(p.PID, s); err != nil && !errors.Is(err, unix.ESRCH) {
		p.t.Fatal(err)
	}
}

// Killed tells whether a SIGKILL was its end.
func (p *Process) Killed() bool {
	status, ok := p.State.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Log is what it has written to standard error so far.
func (p *Process) Log() string {
	log, _ := p.log.now()
	return log
}

// Says waits until its log has the text.
func (p *Process) Says(text string) {
	p.t.Helper()
	end := time.After(p.patience)
	for {
		log, changed := p.log.now()
		if strings.Contains(log, text) {
			return
		}
		select {
		case <-changed:
		case <-p.Done:
			if !strings.Contains(p.Log(), text) {
				p.t.Fatalf("the agent ended before it said %q", text)
			}
		case <-end:
			p.t.Fatalf("the agent did not say %q", text)
		}
	}
}

// output is what a process has written so far, and who waits for more.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed at the next write
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
	return o.text.Write(p)
}

func (o *output) now() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.text.String(), o.changed
}
