package agent_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/procs"
)

// standsIn starts a process of the node, and of no Pod, with its working directory
// in a grant. leave ends it.
func standsIn(t testing.TB, dir string) (leave func()) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Dir = dir
	must(t, cmd.Start())
	leave = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(leave)
	return leave
}

// inTree and inVolume are where the node itself has the Pod's grant u1.
func inTree(n *agenttest.Node, p *agenttest.Pod) string {
	return filepath.Join(n.Root, "pods", p.UID, "u1")
}

func inVolume(_ *agenttest.Node, p *agenttest.Pod) string { return filepath.Join(p.VolumePath(), "u1") }

func TestAProcessOfTheNodeInAGrantHoldsItForAsLongAsItIsThere(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(*agenttest.Node, *agenttest.Pod) string{"in the tree": inTree, "in the volume": inVolume} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			leave := standsIn(t, where(n, p))
			p.Grant(home("h/u2", "u2"))
			for range 2 {
				st := p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
				if !strings.Contains(st.Messages["u1"], "not one of the Pod's") || !strings.Contains(st.Messages["u1"], "working directory") {
					t.Errorf("the message is %q", st.Messages["u1"])
				}
			}
			n.Restart()
			p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
			leave()
			p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
			p.Annotate(nil)
			p.Pass()
			must(t, p.Ctr.Stop())
			clean(t, n, p)
		})
	}
}

// before does something once, right before the first look at who has a mount open.
type before struct {
	agent.Processes
	do func()
}

func (b before) Holding(ctx context.Context, ps []procs.Process, ids map[int]bool) ([]procs.Holding, error) {
	b.do()
	return b.Processes.Holding(ctx, ps, ids)
}

func TestAProcessOfTheNodeThatLeavesAGrantDuringARevocationLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	leave := standsIn(t, inTree(n, p))
	n.Processes = before{n.Processes, leave}
	n.Restart()
	p.Grant(home("h/u2", "u2"))
	p.Pass()
	p.MustHave(grant.StateReady, []string{"u2"}, nil)
}
