package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/plan"
)

// A tree that nothing propagates from: as an agent leaves it that was killed
// between attaching and sharing it, or as somebody on the node makes it.
func TestATreeThatNothingPropagatesFromIsMadeAnew(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, unix.Mount("", treeOf(n, p), "", unix.MS_PRIVATE, ""))
	p.Grant(home("h/u1", "u1"), dataset("h/u2", "u3"))
	must(t, n.Agent.Sweep(t.Context()))
	repair(t, n, p)
	p.MustAnswer(grant.StateReady, []string{"u1", "u3"}, nil)
	if seen := seenBy(t, p.Ctr); len(seen) != 2 {
		t.Errorf("the container sees %v", seen)
	}
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	clean(t, n, p)
}

// The deadline of a Pod is by the API server's clock.
func TestANodeWhoseClockIsAheadTakesNoHomeFromAContainerThatSaves(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	clock := clocktesting.NewFakeClock(time.Now().Add(time.Hour))
	n.Clock = clock
	n.Restart()
	p.Pass()
	n.API.Change(p.UID, func(p *plan.Pod) { p.Terminating, p.Grace = true, 30*time.Second })
	p.Pass()
	must(t, p.Ctr.WriteFile(in+"u1/unsaved", []byte("work"), 0o644))
	clock.Step(59 * time.Second)
	p.Pass()
	must(t, p.Ctr.WriteFile(in+"u1/unsaved", []byte("more work"), 0o644))
	clock.Step(time.Second)
	p.Pass()
	must(t, p.Ctr.Stop())
	clean(t, n, p)
}

func TestAMountThatDiedIsNotCalledReadyByTheNextAgent(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	p := n.RunningPod("pod")
	p.Grant(dataset("remote/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	s.die(t)
	must(t, n.Agent.Sweep(t.Context()))
	dead := codes("u1", "MOUNT_DEAD")
	p.MustAnswer(grant.StateDegraded, []string{"u1"}, dead)
	n.Restart()
	p.MustAnswer(grant.StateDegraded, []string{"u1"}, dead)
}

func TestAWritableGrantOfAReadOnlyClaimIsRefusedUntilItIsWritable(t *testing.T) {
	t.Parallel()
	for name, remount := range map[string]uintptr{"the mount": unix.MS_REMOUNT | unix.MS_BIND, "the filesystem": unix.MS_REMOUNT} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Now())
			n := agenttest.NewNode(t)
			n.Clock = clock
			n.Restart()
			must(t, os.Chmod(n.Home("h/u1", 0o777, "f"), 0o777))
			p := n.RunningPod("pod")
			must(t, unix.Mount("", n.Claim, "", remount|unix.MS_RDONLY, ""))
			p.Grant(home("h/u1", "u1"), home("h/new", "new"), dataset("h/u1", "data"))
			failed := codes("u1", "MOUNT_FAILED", "new", "MOUNT_FAILED")
			st := p.MustAnswer(grant.StateDegraded, []string{"data"}, failed)
			if st.Messages["u1"] != st.Messages["new"] {
				t.Errorf("two reasons: %v", st.Messages)
			}
			must(t, unix.Mount("", n.Claim, "", remount, ""))
			clock.Step(time.Minute)
			p.MustAnswer(grant.StateReady, []string{"data", "new", "u1"}, nil)
			must(t, p.Ctr.WriteFile(in+"u1/written", nil, 0o644))
		})
	}
}

// Only root on the node can put anything into a tree.
func TestWhatSomebodyPutIntoATreeIsNeitherMountedOnNorTakenForAMount(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	tree := treeOf(n, p)
	must(t, os.Symlink("/etc", filepath.Join(tree, "link")))
	must(t, os.WriteFile(filepath.Join(tree, "file"), nil, 0o644))
	must(t, os.MkdirAll(filepath.Join(tree, "full", "of"), 0o755))
	p.Grant(home("h/u1", "u1"), dataset("h/u2", "link"), dataset("h/u2", "file"), dataset("h/u2", "full"))
	p.MustAnswer(grant.StateDegraded, []string{"full", "u1"}, codes("link", "MOUNT_FAILED", "file", "MOUNT_FAILED"))
	p.Grant()
	p.MustAnswer(grant.StateReady, nil, nil)
	if _, err := os.Lstat(filepath.Join(tree, "link")); err != nil {
		t.Errorf("what is not the agent's was removed: %v", err)
	}
	p.Annotate(nil)
	p.Pass()
	if st := p.Status(); st != nil {
		t.Errorf("an answer is left: %+v", st)
	}
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Lstat(tree); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree's folder: %v", err)
	}
}
