package system_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/agent/agenttest"
)

// agentOptions are what one agent process has that others have not.
type agentOptions struct {
	die        string   // dieEnv
	arm        string   // armEnv
	kubeconfig string   // the node's where ""
	binds      []string // "from:to", made in its mount namespace first
	watch      bool     // watchEnv
	flags      []string // after the node's own, so that they win
}

// agentProcess is an agent, alive or not.
type agentProcess struct {
	*agenttest.Process
	t     testing.TB
	trace string
}

// startAgent starts an agent on the node: the test binary once more, in a mount
// namespace that is a copy of the test's, as that of a container with
// Bidirectional mounts is of the host's. There is none running.
func (n *node) startAgent(o agentOptions) *agentProcess {
	n.t.Helper()
	if n.agent != nil && n.agent.Alive() {
		n.t.Fatal("an agent runs already")
	}
	if o.kubeconfig == "" {
		o.kubeconfig = n.kubeconfig
	}
	f, err := os.CreateTemp(n.t.TempDir(), "trace")
	must(n.t, err)
	f.Close()
	flags := append(agenttest.Flags(n.Node, n.name, n.namespace, o.kubeconfig), "--health-port", "0")
	cmd := exec.Command("/proc/self/exe", append(flags, o.flags...)...)
	cmd.Env = append(os.Environ(), roleEnv+"=1", traceEnv+"="+f.Name(), dieEnv+"="+o.die, armEnv+"="+o.arm, bootEnv+"="+n.boot, bindsEnv+"="+strings.Join(o.binds, ","))
	if o.watch {
		cmd.Env = append(cmd.Env, watchEnv+"=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	a := &agentProcess{Process: agenttest.StartProcess(n.t, cmd, patience), t: n.t, trace: f.Name()}
	n.agent = a
	n.agents = append(n.agents, a)
	return a
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

// tell writes the logs of a failed test's agents where a person finds them.
func (n *node) tell() {
	const last = 3 // of a hundred, the others have little to tell
	for i, a := range n.agents {
		if i < len(n.agents)-last {
			continue
		}
		log := a.Log()
		if len(log) > 6000 {
			log = "…" + log[len(log)-6000:]
		}
		n.t.Logf("agent %d of %s (%s):\n%s", i+1, n.name, filepath.Base(a.trace), log)
	}
}
