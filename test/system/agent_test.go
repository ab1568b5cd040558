package system_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// agentOptions are what one agent process has that others have not.
type agentOptions struct {
	die        string   // dieEnv
	arm        string   // armEnv
	kubeconfig string   // the node's where ""
	binds      []string // "from:to", made in its mount namespace first
	flags      []string // after the node's own, so that they win
}

// agentProcess is an agent, alive or not.
type agentProcess struct {
	t     testing.TB
	pid   int
	log   output
	trace string
	state *os.ProcessState
	done  chan struct{} // closed when it has ended
}

// startAgent starts an agent on the node: the test binary once more, in a mount
// namespace that is a copy of the test's, as that of a container with
// Bidirectional mounts is of the host's. There is none running.
func (n *node) startAgent(o agentOptions) *agentProcess {
	n.t.Helper()
	if n.agent != nil && n.agent.alive() {
		n.t.Fatal("an agent runs already")
	}
	if o.kubeconfig == "" {
		o.kubeconfig = n.kubeconfig
	}
	f, err := os.CreateTemp(n.t.TempDir(), "trace")
	must(n.t, err)
	f.Close()
	a := &agentProcess{t: n.t, trace: f.Name(), done: make(chan struct{})}
	cmd := exec.Command("/proc/self/exe", append([]string{
		"--node-id", n.name, "--namespace", n.namespace, "--shared-root", n.Claim, "--root", n.Root, "--kubelet-dir", n.Kubelet,
		"--health-port", "0", "--kubeconfig", o.kubeconfig,
	}, o.flags...)...)
	cmd.Env = append(os.Environ(), roleEnv+"=1", traceEnv+"="+a.trace, dieEnv+"="+o.die, armEnv+"="+o.arm, bootEnv+"="+n.boot, bindsEnv+"="+strings.Join(o.binds, ","))
	cmd.Stderr = &a.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The death signal is tied to the thread that forks: it does nothing else.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			a.pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended is in its state
		a.state = cmd.ProcessState
		close(a.done)
	}()
	must(n.t, <-started)
	n.agent = a
	n.agents = append(n.agents, a)
	return a
}

func (a *agentProcess) alive() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// kill ends it by SIGKILL, also where it has ended.
func (a *agentProcess) kill() {
	a.t.Helper()
	if a.alive() {
		if err := unix.Kill(a.pid, unix.SIGKILL); err != nil {
			a.t.Fatal(err)
		}
	}
	<-a.done
}

// killed tells whether a SIGKILL was its end.
func (a *agentProcess) killed() bool {
	status, ok := a.state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// says waits until its log has the text.
func (a *agentProcess) says(text string) {
	a.t.Helper()
	end := time.After(patience)
	for {
		log, changed := a.log.now()
		if strings.Contains(log, text) {
			return
		}
		select {
		case <-changed:
		case <-a.done:
			if log, _ := a.log.now(); !strings.Contains(log, text) {
				a.t.Fatalf("the agent ended before it said %q", text)
			}
		case <-end:
			a.t.Fatalf("the agent did not say %q", text)
		}
	}
}

// calls are what the agent has called so far, by operation.
func (a *agentProcess) calls() map[string]int {
	a.t.Helper()
	text, err := os.ReadFile(a.trace)
	must(a.t, err)
	calls := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		calls[strings.TrimSpace(line)]++
	}
	return calls
}

// output is what a process has written so far, and who waits for more.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed at the next write
}

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

// tell writes the logs of a failed test's agents where a person finds them.
func (n *node) tell() {
	const last = 3 // of a hundred, the others have little to tell
	for i, a := range n.agents {
		if i < len(n.agents)-last {
			continue
		}
		log, _ := a.log.now()
		if len(log) > 6000 {
			log = "…" + log[len(log)-6000:]
		}
		n.t.Logf("agent %d of %s (%s):\n%s", i+1, n.name, filepath.Base(a.trace), log)
	}
}
