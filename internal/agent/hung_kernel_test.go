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
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/proof"
)

// threads is how many threads one filesystem may cost.
var threads = proof.Filesystem(mnt.Dev{}).Limit

// standingOn grants a Pod n folders of the storage, and returns their targets and what
// is said of them when it hangs.
func standingOn(t testing.TB, s *storage, p *agenttest.Pod, n int) (targets []string, dead map[string]grant.Code) {
	t.Helper()
	var mounts []grant.Mount
	var pairs []string
	for i := range n {
		target := fmt.Sprintf("m%02d", i)
		source := strings.Join([]string{"remote", p.UID, target}, "-")
		must(t, os.Mkdir(filepath.Join(s.dir, source), 0o777))
		mounts = append(mounts, dataset("remote/"+source, target))
		targets, pairs = append(targets, target), append(pairs, target, "MOUNT_DEAD")
	}
	p.Grant(mounts...)
	p.MustAnswer(grant.StateReady, targets, nil)
	return targets, codes(pairs...)
}

// mustCostFew holds what the node has lost against what one storage may cost.
func mustCostFew(t testing.TB, n *agenttest.Node, what string) {
	t.Helper()
	if lost := n.Budget.Lost(); lost == 0 || lost > threads {
		t.Errorf("%s: %d threads are lost, and one storage may cost %d", what, lost, threads)
	}
}

func TestManyMountsOnOneHungStorageCostAFewThreadsAndAreAllFoundAgain(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	n.Policy.MaxPerPod = 64
	n.Restart()
	p := n.RunningPod("pod")
	targets, dead := standingOn(t, s, p, 60)
	before := ids2(t, p)
	s.hang()
	for range 3 {
		must(t, n.Agent.Sweep(t.Context()))
		p.MustAnswer(grant.StateDegraded, targets, dead)
		mustCostFew(t, n, "sweeps")
	}
	// The next agent asks before it says anything, and it asks no more either.
	n.Restart()
	p.MustAnswer(grant.StateDegraded, targets, dead)
	mustCostFew(t, n, "the first pass of a new agent")
	s.answer()
	within(t, "the lost threads have come back", func() bool { return n.Budget.Lost() == 0 })
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateReady, targets, nil)
	for target, id := range ids2(t, p) {
		if id != before[target] {
			t.Errorf("%s was mounted anew", target)
		}
	}
}

// A new agent has found nothing yet, and as many workers as it has start with Pods
// whose storage hangs. The Pod behind them is answered while it does.
func TestAPodOnHealthyStorageIsServedBehindManyWhoseStorageHangs(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	const workers = 8
	queue := make(chan string, 2*workers+1)
	all := map[*agenttest.Pod]map[string]grant.Code{}
	for i := range 2 * workers {
		p := n.RunningPod(fmt.Sprintf("p%02d", i))
		_, all[p] = standingOn(t, s, p, 8)
		queue <- p.UID
	}
	s.hang()
	n.Restart()
	q := n.RunningPod("healthy")
	q.Grant(home("h/u2", "u2"))
	queue <- q.UID
	close(queue)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for uid := range queue {
				_, err := n.Agent.Reconcile(t.Context(), uid)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	q.MustHave(grant.StateReady, []string{"u2"}, nil)
	for p, dead := range all {
		st := p.Status()
		if st == nil || len(st.Failed) != len(dead) {
			t.Errorf("%s is told %+v", p.UID, st)
		}
	}
	mustCostFew(t, n, "the first passes of a new agent")
	s.answer()
	within(t, "the lost threads have come back", func() bool { return n.Budget.Lost() == 0 })
	must(t, n.Agent.Sweep(t.Context()))
	for p := range all {
		p.Pass()
		if st := p.Status(); st.State != grant.StateReady {
			t.Errorf("%s is told %+v", p.UID, st)
		}
	}
}

// Grants of what hangs cost no more than what stands, together.
func TestGrantsAndStandingMountsOfOneHungStorageShareItsThreads(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	p, q := n.RunningPod("pod"), n.RunningPod("other")
	targets, dead := standingOn(t, s, p, 30)
	must(t, n.Agent.Sweep(t.Context())) // it knows which filesystems there are
	s.hang()
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, targets, dead)
	var mounts []grant.Mount
	var failed []string
	for i := range 30 {
		target := fmt.Sprintf("n%02d", i)
		mounts, failed = append(mounts, dataset("remote/"+target, target)), append(failed, target, "MOUNT_FAILED")
	}
	q.Grant(append(mounts, home("h/u2", "u2"))...)
	q.MustAnswer(grant.StateDegraded, []string{"u2"}, codes(failed...))
	mustCostFew(t, n, "grants beside standing mounts")
}

// Each bucket has a process of its own: that some of them hang says nothing of another.
func TestBucketsThatHangAreNoReasonNotToAskAnother(t *testing.T) {
	n := newUserspaceNode(t)
	n.Bound = shortBound
	n.Restart()
	n.folder("one", "a.txt")
	n.folder("two", "a.txt")
	p := n.RunningPod("pod")
	p.Grant(bucketGrant("one", "one", grant.ReadWrite), bucketGrant("two", "two", grant.ReadWrite))
	p.Answered(isReady)
	for _, target := range []string{"one", "two"} {
		pause(t, n.keeper.PID(p.UID+"/"+target))
	}
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"one", "two"}, codes("one", "MOUNT_DEAD", "two", "MOUNT_DEAD"))
	n.folder("three", "a.txt")
	q, _ := n.running("three", grant.ReadWrite)
	must(t, n.Agent.Sweep(t.Context()))
	q.MustAnswer(grant.StateReady, []string{"data"}, nil)
	p.MustAnswer(grant.StateDegraded, []string{"one", "two"}, codes("one", "MOUNT_DEAD", "two", "MOUNT_DEAD"))
	if lost := n.Budget.Lost(); lost != 2 {
		t.Errorf("%d threads are lost to 2 processes", lost)
	}
	for _, target := range []string{"one", "two"} {
		must(t, unix.Kill(n.keeper.PID(p.UID+"/"+target), unix.SIGCONT))
	}
	within(t, "the lost threads have come back", func() bool { return n.Budget.Lost() == 0 })
	must(t, n.Agent.Sweep(t.Context()))
	p.Answered(isReady)
}

func TestAQuestionThatNobodyWaitedForChangesNothing(t *testing.T) {
	n := newUserspaceNode(t)
	n.Bound = shortBound
	n.Restart()
	n.folder("bucket", "a.txt")
	p, _ := n.running("bucket", grant.ReadWrite)
	pid := n.keeper.PID(p.UID + "/data")
	pause(t, pid)
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"data"}, codes("data", "MOUNT_DEAD"))
	must(t, unix.Kill(pid, unix.SIGCONT))
	within(t, "the lost thread has come back", func() bool { return n.Budget.Lost() == 0 })
	pause(t, pid)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, n.Agent.Sweep(ended))
	p.MustAnswer(grant.StateDegraded, []string{"data"}, codes("data", "MOUNT_DEAD"))
	must(t, unix.Kill(pid, unix.SIGCONT))
	within(t, "the lost thread has come back", func() bool { return n.Budget.Lost() == 0 })
	must(t, n.Agent.Sweep(t.Context()))
	p.Answered(isReady)
}
