package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper"
)

// gated is a keeper that starts nothing before its gate is opened, and counts who waits
// there.
type gated struct {
	delivery.Keeper
	mu      sync.Mutex
	gate    chan struct{} // nil: it is open
	waiting int
}

func (g *gated) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gate = make(chan struct{})
}

func (g *gated) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.gate)
	g.gate = nil
}

func (g *gated) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

func (g *gated) Start(ctx context.Context, s keeper.Start) (keeper.Info, keeper.Child, *os.File, error) {
	g.mu.Lock()
	gate := g.gate
	if gate != nil {
		g.waiting++
	}
	g.mu.Unlock()
	if gate != nil {
		var err error
		select {
		case <-gate:
		case <-ctx.Done():
			err = ctx.Err()
		}
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
		if err != nil {
			return keeper.Info{}, keeper.Child{}, nil, fmt.Errorf("%w: %w", keeper.ErrUnavailable, err)
		}
	}
	return g.Keeper.Start(ctx, s)
}

// gatedNode is a node whose keeper has a gate, with a folder "bucket".
func gatedNode(t *testing.T) (*userspaceNode, *gated) {
	n := newUserspaceNode(t)
	g := &gated{Keeper: n.keeper.Client()}
	n.Keeper = g
	n.Restart()
	n.folder("bucket", "a.txt")
	return n, g
}

// No pass waits for a process: with one worker, whoever asks for nothing of that kind is
// served while any number of others wait for theirs.
func TestPodsThatWaitForTheirProcessesHoldUpNobody(t *testing.T) {
	n, g := gatedNode(t)
	g.shut()
	n.Home("h/q", 0o755)
	var pods []*agenttest.Pod
	for i := range 12 { // more than there are workers
		p := n.RunningPod(fmt.Sprintf("bucket-%d", i))
		p.Grant(bucketGrant("bucket", "data", grant.ReadWrite))
		p.Pass()
		pods = append(pods, p)
	}
	q := n.RunningPod("home")
	q.Grant(home("h/q", "ada"))
	q.Pass()
	if st := q.Status(); st == nil || st.State != grant.StateReady {
		t.Errorf("another Pod's answer is %+v", st)
	}
	within(t, "all of them wait", func() bool { return g.count() == len(pods) })
	for _, p := range pods {
		for range 3 {
			p.Pass()
		}
		if st := p.Status(); st != nil {
			t.Errorf("there is an answer already: %+v", st)
		}
		absent(t, filepath.Join(treeOf(n.Node, p), "data"))
	}
	if got := g.count(); got != len(pods) {
		t.Errorf("%d are started, expected %d", got, len(pods))
	}
	g.open()
	for _, p := range pods {
		p.Answered(isReady)
		if got, err := p.Ctr.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if got := len(n.keeper.Children()); got != len(pods) {
		t.Errorf("%d processes run", got)
	}
}

func TestWhatElseAPodAskedForIsToldBeforeItsProcessServes(t *testing.T) {
	t.Parallel() // the answer waits a while
	n, g := gatedNode(t)
	g.shut()
	n.Home("h/p", 0o755)
	p := n.RunningPod("pod")
	p.Grant(bucketGrant("bucket", "data", grant.ReadWrite), home("h/p", "ada"))
	st := p.Answered(func(*grant.Status) bool { return true })
	if st.State != grant.StateDegraded || st.Failed["data"] != grant.CodeNotReady || len(st.Mounted) != 1 ||
		!strings.Contains(st.Messages["data"], "process is being started") {
		t.Errorf("the answer is %+v", st)
	}
	g.open()
	p.Answered(isReady)
}

func TestWhoDoesNotWaitForAProcessAnyMoreLeavesNothing(t *testing.T) {
	for name, end := range map[string]func(n *userspaceNode, p *agenttest.Pod){
		"it is revoked": func(_ *userspaceNode, p *agenttest.Pod) {
			p.Grant()
			p.Answered(isReady)
		},
		"another one is asked for": func(_ *userspaceNode, p *agenttest.Pod) {
			p.Grant(bucketGrant("none", "other", grant.ReadWrite))
			p.Pass()
			p.Grant()
			p.Answered(isReady)
		},
		"the Pod is deleted": func(n *userspaceNode, p *agenttest.Pod) {
			must(t, p.Ctr.Stop())
			n.API.Delete(p.UID)
			p.Pass()
		},
		"the agent ends": func(n *userspaceNode, _ *agenttest.Pod) { n.StopAgent() },
	} {
		for _, begun := range []string{"not begun", "silent", "ready"} {
			t.Run(name+", "+begun, func(t *testing.T) {
				n, g := gatedNode(t)
				p := n.RunningPod("pod")
				silent := filepath.Join(n.folders.root, "bucket", silentName)
				must(t, os.WriteFile(silent, nil, 0o644))
				if begun != "silent" {
					g.shut()
				}
				p.Grant(bucketGrant("bucket", "data", grant.ReadWrite))
				p.Pass()
				switch begun {
				case "not begun":
					within(t, "it waits", func() bool { return g.count() == 1 })
				case "silent":
					within(t, "it runs", func() bool { return len(n.keeper.Children()) == 1 })
				case "ready": // and no pass has taken it
					within(t, "it waits", func() bool { return g.count() == 1 })
					must(t, os.Remove(silent))
					g.open()
					within(t, "a pass is asked for", func() bool { return n.API.Queued(p.UID) })
				}
				end(n, p)
				within(t, "none waits, and none runs", func() bool { return g.count() == 0 && len(n.keeper.Children()) == 0 })
				if name != "the agent ends" { // what it has goes with it
					within(t, "what it had is given back", func() bool { return n.folders.ended() >= 1 })
				}
				if name == "the Pod is deleted" {
					clean(t, n.Node, p)
				} else {
					absent(t, filepath.Join(treeOf(n.Node, p), "data"))
				}
			})
		}
	}
}

func TestAProcessThatIsRestoredHoldsUpNobody(t *testing.T) {
	n, g := gatedNode(t)
	n.Home("h/p", 0o755)
	p := n.RunningPod("pod")
	p.Grant(bucketGrant("bucket", "data", grant.ReadWrite))
	p.Answered(isReady)
	before := standing(t, filepath.Join(treeOf(n.Node, p), "data"))
	g.shut()
	must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGKILL))
	p.Answered(isDead("data"))
	within(t, "one is on its way", func() bool { p.Pass(); return g.count() == 1 })
	for range 3 {
		if again := p.Pass(); again != 0 {
			t.Errorf("a pass is asked for in %v: it is told when there is news", again)
		}
	}
	if got := g.count(); got != 1 {
		t.Errorf("%d are on their way", got)
	}
	// The same Pod, meanwhile.
	p.Grant(bucketGrant("bucket", "data", grant.ReadWrite), home("h/p", "ada"))
	p.Pass()
	st := p.Status()
	if st == nil || st.Failed["data"] != grant.CodeMountDead || len(st.Mounted) != 2 {
		t.Errorf("the answer is %+v", st)
	}
	if after := standing(t, filepath.Join(treeOf(n.Node, p), "data")); len(after) != 1 || after[0].ID != before[0].ID {
		t.Errorf("at the target stand %+v, were %+v", after, before)
	}
	g.open()
	p.Answered(isReady)
	// And once more, and it is revoked meanwhile.
	g.shut()
	must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGKILL))
	p.Answered(isDead("data"))
	within(t, "one is on its way", func() bool { p.Pass(); return g.count() == 1 })
	p.Grant()
	p.Answered(isReady)
	absent(t, filepath.Join(treeOf(n.Node, p), "data"))
	within(t, "none waits, and none runs", func() bool { return g.count() == 0 && len(n.keeper.Children()) == 0 })
}
