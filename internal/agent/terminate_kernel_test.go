package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// terminate has the API delete the Pod, with a grace period that ends in half a
// minute.
func terminate(n *agenttest.Node, p *agenttest.Pod) {
	n.API.Change(p.UID, func(p *plan.Pod) { p.Terminating, p.Grace = true, 30*time.Second })
}

func TestATerminatingPodSavesIntoItsHomeAndIsReleasedWhenItsLastProcessEnds(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	pause, err := p.StartContainer(simnode.ContainerOptions{Sandbox: true})
	must(t, err)
	answers := n.API.Answers()
	terminate(n, p)
	for range 3 {
		if again := p.Pass(); again <= 30*time.Second || again > time.Minute {
			t.Errorf("a pass again after %s", again)
		}
	}
	must(t, p.Ctr.AsUser(userID, groupID).WriteFile(in+"u1/saved", []byte("late"), 0o644))
	n.API.Queued(p.UID)
	must(t, p.Ctr.Stop())
	p.Pass()
	if seen := standing(t, filepath.Join(treeOf(n, p), "u1")); len(seen) != 1 {
		t.Errorf("with a process left, the tree has %+v", seen)
	}
	// No event of the API is needed: the end of the last process asks for a pass.
	enqueued := n.API.Enqueued()
	if n.API.Queued(p.UID) {
		t.Error("a pass was asked for while a process is left")
	}
	must(t, pause.Stop())
	select {
	case <-enqueued:
	case <-time.After(patience):
		t.Fatal("nobody noticed the end of the last process")
	}
	if !n.API.Queued(p.UID) {
		t.Error("the pass that was asked for is another Pod's")
	}
	p.Pass()
	clean(t, n, p)
	if b, err := os.ReadFile(filepath.Join(n.Claim, "h/u1/saved")); err != nil || string(b) != "late" {
		t.Errorf("saved: %q, %v", b, err)
	}
	// Nothing more is ever done for it, and nothing was written to it.
	p.Pass()
	if n.API.Answers() != answers {
		t.Error("a terminating Pod was answered")
	}
}

func TestAPodThatDoesNotEndIsReleasedHalfAMinuteAfterItsGracePeriod(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	clock := clocktesting.NewFakeClock(time.Now())
	n.Clock = clock
	n.Restart()
	h, err := p.Ctr.Hold(in + "u1/f")
	must(t, err)
	terminate(n, p)
	p.Pass()
	clock.Step(59 * time.Second)
	if again := p.Pass(); again != time.Second {
		t.Errorf("a pass again after %s", again)
	}
	must(t, p.Ctr.HeldWrite(h, []byte("x")))
	must(t, p.Ctr.WriteFile(in+"u2/f", nil, 0o644))
	clock.Step(time.Second)
	p.Pass()
	if seen := seenBy(t, p.Ctr); len(seen) != 0 || len(n.Left()) != 0 {
		t.Errorf("the sandbox sees %v, left: %v", seen, n.Left())
	}
	if n.Metric("leaked") != 1 || n.Metric("released_total") != 1 {
		t.Errorf("leaked %v, released %v", n.Metric("leaked"), n.Metric("released_total"))
	}
	// kubelet is not kept from its volume by what the process still has.
	tearDown(t, p)
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	if n.Metric("leaked") != 0 || n.Metric("released_total") != 1 {
		t.Errorf("leaked %v, released %v", n.Metric("leaked"), n.Metric("released_total"))
	}
	clean(t, n, p)
}

func TestATerminatingPodIsGrantedNothingNewAndRevokedWhatItNoLongerAsks(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	terminate(n, p)
	p.Grant(home("h/u2", "u2"), home("h/u3", "u3"))
	answers := n.API.Answers()
	p.Pass()
	if names, err := p.Ctr.ReadDir(in); err != nil || len(names) != 1 || names[0] != "u2" {
		t.Errorf("the sandbox lists %v, %v", names, err)
	}
	absent(t, filepath.Join(n.Claim, "h/u3"))
	// Not even its wish for nothing at all is answered.
	p.Annotate(nil)
	p.Pass()
	if st := p.Status(); st != nil || n.API.Answers() != answers {
		t.Errorf("answered %+v", st)
	}
	must(t, p.Ctr.Stop())
	p.Pass()
	clean(t, n, p)
}

func TestATerminatingPodThatWasNeverServedIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/u1", "u1"))
	terminate(n, p)
	p.Pass()
	must(t, p.Ctr.Stop())
	p.Pass()
	absent(t, filepath.Join(n.Claim, "h"))
	clean(t, n, p)
	if n.API.Answers() != 0 {
		t.Error("it was answered")
	}
}

func TestAnAgentThatComesBackKeepsTheMountsOfATerminatingPod(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	terminate(n, p)
	n.Restart()
	p.Pass()
	must(t, p.Ctr.WriteFile(in+"u1/f", nil, 0o644))
	// It waits again, although it never saw the processes start.
	enqueued := n.API.Enqueued()
	must(t, p.Ctr.Stop())
	select {
	case <-enqueued:
	case <-time.After(patience):
		t.Fatal("nobody noticed the end of the last process")
	}
	p.Pass()
	clean(t, n, p)
}

func TestAFinishedPodIsReleasedAndItsAnswerRemoved(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, p.Ctr.Stop())
	n.API.Change(p.UID, func(p *plan.Pod) { p.Finished = true })
	p.Pass()
	if st := p.Status(); st != nil {
		t.Errorf("answered %+v", st)
	}
	clean(t, n, p)
	answers := n.API.Answers()
	p.Pass()
	if n.API.Answers() != answers {
		t.Error("it was patched for nothing")
	}
	if n.Metric("mounts") != 0 || n.Metric("pods") != 0 {
		t.Errorf("%v mounts in %v Pods", n.Metric("mounts"), n.Metric("pods"))
	}
}

// A Job's Pod may have finished and still be there when it is deleted.
func TestAFinishedPodThatHoldsSomethingSaysSo(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	_, err := p.Ctr.Hold(in + "u1/f")
	must(t, err)
	n.API.Change(p.UID, func(p *plan.Pod) { p.Finished = true })
	mustBeQuick(t, p)
	p.MustHave(grant.StateDegraded, nil, codes("u1", "HELD"))
	must(t, p.Ctr.Stop())
	p.Pass()
	if st := p.Status(); st != nil {
		t.Errorf("answered %+v", st)
	}
	clean(t, n, p)
}

// An agent that is made to serve another namespace does not watch the Pod any more. Its
// mounts keep kubelet from the volume, so it cannot go before the agent lets it.
func TestAPodThatNoWatchShowsAnyMoreIsReleasedWhenTheAPIServerSaysThatItEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(api *plan.Pod){
		"deleted":  func(api *plan.Pod) { api.Terminating = true },
		"finished": func(api *plan.Pod) { api.Finished = true },
	} {
		t.Run(name, func(t *testing.T) {
			n, p := granted(t)
			n.API.Hide(p.UID, true)
			n.Restart()
			if p.Pass(); len(n.Left()) == 0 {
				t.Fatal("it was released while the API server had it here")
			}
			must(t, p.Ctr.Stop())
			n.API.Change(p.UID, end)
			p.Pass()
			if left := n.Left(); len(left) > 0 {
				t.Errorf("these are left: %v", left)
			}
			n.API.Delete(p.UID)
			p.Pass()
			clean(t, n, p)
		})
	}
}
