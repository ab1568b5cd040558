package agent_test

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// observed holds what a histogram of the agent was told against what is wanted.
func observed(t *testing.T, n *agenttest.Node, name string, count uint64, sum time.Duration) {
	t.Helper()
	if c, s := n.Observed(name); c != count || s != sum.Seconds() {
		t.Errorf("%s was told %d values of %gs in all, want %d of %gs", name, c, s, count, sum.Seconds())
	}
}

func TestTheTimeToAnAnswerCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	n, s, clock := withStorage(t)
	p := n.NewPod("pod")
	must(t, p.SetUpVolume(false))
	set := []grant.Mount{dataset("remote/u1", "u1"), home("h/u2", "u2")}
	p.Grant(set...)
	p.Pass()
	// The Pod's other versions do not ask again.
	clock.Step(2 * time.Second)
	n.API.Change(p.UID, func(*plan.Pod) {})
	p.Pass()
	clock.Step(time.Second)
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	observed(t, n, "ready_seconds", 1, 3*time.Second)

	// An hour later somebody writes the same set again.
	clock.Step(time.Hour)
	p.Grant(set...)
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	observed(t, n, "ready_seconds", 2, 3*time.Second)

	// Another hour later its storage dies, and comes back: nobody has asked.
	s.hang()
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"u1", "u2"}, codes("u1", "MOUNT_DEAD"))
	clock.Step(time.Hour)
	s.answer()
	eventually(t, "the storage is back", nil, func() bool { return n.Budget.Lost() == 0 })
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	observed(t, n, "ready_seconds", 2, 3*time.Second)

	// Of what it finds answered, another agent does not know since when it was asked.
	s.hang()
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"u1", "u2"}, codes("u1", "MOUNT_DEAD"))
	s.answer()
	eventually(t, "the storage is back", nil, func() bool { return n.Budget.Lost() == 0 })
	n.Restart()
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	observed(t, n, "ready_seconds", 0, 0)
	clock.Step(time.Hour)
	p.Grant(set[1])
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	observed(t, n, "ready_seconds", 1, 0)
}

func TestAnAnswerThatTheWatchHasNotBroughtBackIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	n, _, clock := withStorage(t)
	p := n.NewPod("pod")
	must(t, p.SetUpVolume(false))
	p.Grant(home("h/u2", "u2"))
	asked, _ := n.API.Pod(p.UID)
	p.Pass()
	clock.Step(time.Minute)
	p.MustAnswer(grant.StateFailed, []string{}, codes(grant.WholeSet, "NOT_READY"))
	answered, _ := n.API.Pod(p.UID)
	clock.Step(time.Minute)
	n.API.Behind(asked)
	p.Pass()
	n.API.Put(answered)
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	observed(t, n, "ready_seconds", 1, 2*time.Minute)
}

func TestASetThatIsWrittenAgainIsWaitedForAsLong(t *testing.T) {
	t.Parallel()
	n, _, clock := withStorage(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	must(t, p.Ctr.Stop())
	clock.Step(time.Hour)
	p.Annotate(nil)
	p.Pass()
	p.Grant(home("h/u2", "u2"))
	p.Pass()
	if st := p.Status(); st != nil {
		t.Errorf("it is answered at once: %+v", st)
	}
	clock.Step(time.Minute)
	p.Pass()
	p.MustHave(grant.StateFailed, []string{}, codes(grant.WholeSet, "NOT_READY"))
	clock.Step(time.Hour)
	p.Grant(home("h/u2", "u2"))
	p.Pass()
	if st := p.Status(); st != nil {
		t.Errorf("written again, it is answered at once: %+v", st)
	}
}

// slowBind takes a while by the agent's clock.
type slowBind struct {
	mnt.Table
	clock *clocktesting.FakeClock
}

func (b slowBind) Bind(source, target *beneath.Dir, flags mnt.Flags) (mnt.Record, error) {
	b.clock.Step(4 * time.Second)
	return b.Table.Bind(source, target, flags)
}

func TestTheTimeOfAGrantIsThatOfItsMaking(t *testing.T) {
	t.Parallel()
	n, _, clock := withStorage(t)
	n.Mounter = slowBind{n.Table, clock}
	n.Restart()
	p := n.RunningPod("pod")
	clock.Step(time.Hour)
	p.Grant(home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	observed(t, n, "grant_duration_seconds", 1, 4*time.Second)
	observed(t, n, "ready_seconds", 1, 4*time.Second)
}
