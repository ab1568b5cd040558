package agent_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper"
)

// listening has the agent of the node tell its events, in place of nobody.
func (n *userspaceNode) listening() *toldEvents {
	events := &toldEvents{}
	n.Events = events
	n.Restart()
	return events
}

// mustTellNothingLost revokes what p has, and waits until its process has ended and been
// asked how.
func (n *userspaceNode) mustTellNothingLost(p *agenttest.Pod, events *toldEvents, end func()) {
	t := n.T
	t.Helper()
	ended := n.folders.ended()
	p.Grant()
	p.Answered(isReady)
	end()
	within(t, "the process has ended", func() bool { return n.folders.ended() > ended })
	// One more, of which it is told: what there was to tell before has been told.
	n.folder("after", "a.txt", unstorableName)
	p.Grant(bucketGrant("after", "after", grant.ReadWrite))
	p.Answered(isReady)
	p.Grant()
	p.Answered(isReady)
	within(t, "the loss that comes after is told", func() bool { return strings.Contains(events.String(), agent.ReasonLost+" after ") })
	if strings.Contains(events.String(), agent.ReasonLost+" data ") {
		t.Errorf("the events are:\n%s", events)
	}
}

// Nothing can be lost of a bucket that nobody could write to.
func TestNothingIsLostOfAReadOnlyMount(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	events := n.listening()
	p, _ := n.running("bucket", grant.ReadOnly)
	stopped := n.keeper.PID(p.UID + "/data")
	pause(t, stopped)
	n.mustTellNothingLost(p, events, func() { must(t, unix.Kill(stopped, unix.SIGKILL)) })
}

func TestAPodThatIsGoneIsToldOfItsLoss(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt", unstorableName)
	events := n.listening()
	p, c := n.running("bucket", grant.ReadWrite)
	must(t, c.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	within(t, "it is told", func() bool { return strings.Contains(events.String(), agent.ReasonLost+" data ") })
}

// tended is a keeper that has the agent sweep between the end of a process and the
// question how it ended.
type tended struct {
	delivery.Keeper
	sweep func()
	lists atomic.Int64
}

func (w *tended) List(ctx context.Context) (keeper.Info, []keeper.Child, error) {
	defer w.lists.Add(1)
	return w.Keeper.List(ctx)
}

func (w *tended) Child(ctx context.Context, id string) (keeper.Child, error) {
	if w.sweep != nil {
		w.sweep()
	}
	return w.Keeper.Child(ctx, id)
}

func TestASweepThatComesBetweenTheEndOfAProcessAndTheQuestionForgetsNothing(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	w := &tended{Keeper: n.Keeper}
	n.Keeper = w
	events := n.listening()
	p, _ := n.running("bucket", grant.ReadWrite)
	w.sweep = sync.OnceFunc(func() {
		// What it does about processes it does beside, and it may be at it still after one.
		for range 5 {
			before := w.lists.Load()
			must(t, n.Agent.Sweep(t.Context()))
			within(t, "the keeper was asked what runs", func() bool { return w.lists.Load() > before })
		}
	})
	n.mustTellNothingLost(p, events, func() {})
}
