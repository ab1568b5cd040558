package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// shortBound is how long an agent waits for storage in these tests.
const shortBound = 2 * time.Second

// withStorage is a node with a storage at "remote" on its claim, with two homes
// in it, and a fake clock for the retries.
func withStorage(t testing.TB) (*agenttest.Node, *storage, *clocktesting.FakeClock) {
	t.Helper()
	n := agenttest.NewNode(t)
	clock := clocktesting.NewFakeClock(time.Now())
	n.Clock, n.Bound = clock, shortBound
	n.Restart()
	s := serve(t, filepath.Join(n.Claim, "remote"), rules{})
	must(t, os.Mkdir(filepath.Join(s.dir, "u1"), 0o777))
	must(t, os.Chmod(filepath.Join(s.dir, "u1"), 0o777))
	must(t, os.WriteFile(filepath.Join(s.dir, "u1/f"), []byte("mine"), 0o644))
	n.Home("h/u2", 0o777, "f")
	return n, s, clock
}

// bindCounter counts the grants that were attached.
type bindCounter struct {
	mnt.Table
	n atomic.Int64
}

func (b *bindCounter) Bind(source, target *beneath.Dir, flags mnt.Flags) (mnt.Record, error) {
	b.n.Add(1)
	return b.Table.Bind(source, target, flags)
}

// eventually waits for ok, as long as something else has not ended.
func eventually(t testing.TB, what string, ended <-chan struct{}, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); ; {
		over := false
		select {
		case <-ended:
			over = true // and what has come before counts
		default:
		}
		if ok() {
			return
		}
		if over {
			t.Fatalf("it ended before: %s", what)
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func TestStorageThatHangsUnderOnePodDelaysNoOtherAndNoneOfItsOtherGrants(t *testing.T) {
	t.Parallel()
	// Below the storage's root the source itself hangs; its root is opened without
	// a question to the server.
	for name, source := range map[string]string{"below": "remote/u1", "root": "remote"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, s, clock := withStorage(t)
			binds := &bindCounter{Table: n.Table}
			n.Mounter = binds
			n.Restart()
			p, q := n.RunningPod("pod"), n.RunningPod("other")
			arrived := s.hang()
			p.Grant(dataset(source, "u1"), home("h/u2", "u2"))
			q.Grant(home("h/u2", "u2"))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = n.Agent.Reconcile(t.Context(), p.UID)
			}()
			<-arrived
			q.MustAnswer(grant.StateReady, []string{"u2"}, nil)
			eventually(t, "the Pod's other grant is mounted", ended, func() bool {
				_, err := p.Ctr.ReadFile(in + "u2/f")
				return err == nil
			})
			<-ended
			st := p.MustHave(grant.StateDegraded, []string{"u2"}, codes("u1", "MOUNT_FAILED"))
			if !strings.Contains(st.Messages["u1"], "does not answer") {
				t.Errorf("the message is %q", st.Messages["u1"])
			}
			// Trying again costs neither time nor threads, and shows the sandbox nothing.
			answers := n.API.Answers()
			began := time.Now()
			for range 50 {
				clock.Step(30 * time.Second)
				p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "MOUNT_FAILED"))
				if seen := seenBy(t, p.Ctr); len(seen) != 1 {
					t.Fatalf("the sandbox sees %v", seen)
				}
			}
			if took := time.Since(began); took > 25*shortBound {
				t.Errorf("50 tries took %s", took)
			}
			if lost := n.Budget.Lost(); lost != 1 || n.API.Answers() != answers {
				t.Errorf("%d threads lost, %d answers", lost, n.API.Answers()-answers)
			}
			absent(t, filepath.Join(treeOf(n, p), "u1"))
			if made := binds.n.Load(); made != 2 {
				t.Errorf("%d mounts were made, of which 2 are to be seen", made)
			}
			s.answer()
			eventually(t, "the lost thread has come back", nil, func() bool { return n.Budget.Lost() == 0 })
			clock.Step(30 * time.Second)
			p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
			p.Annotate(nil)
			p.Pass()
			absent(t, treeOf(n, p))
		})
	}
}

func TestManySourcesOnOneHungStorageStayWithinItsThreads(t *testing.T) {
	t.Parallel()
	n, s, clock := withStorage(t)
	var mounts []grant.Mount
	var failed []string
	for i := range 30 {
		target := string(rune('a'+i/26)) + string(rune('a'+i%26))
		mounts = append(mounts, dataset("remote/"+target, target))
		failed = append(failed, target, "MOUNT_FAILED")
	}
	p, q := n.RunningPod("pod"), n.RunningPod("other")
	must(t, n.Agent.Sweep(t.Context())) // it knows which filesystems there are
	s.hang()
	p.Grant(append(mounts, home("h/u2", "u2"))...)
	for range 5 {
		p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes(failed...))
		clock.Step(30 * time.Second)
	}
	mustCostFew(t, n, "grants")
	q.Grant(home("h/u2", "u2"))
	q.MustAnswer(grant.StateReady, []string{"u2"}, nil)
}

func TestAGrantWhoseStorageHangsIsDeadUntilItAnswersAgain(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	p, q := n.RunningPod("pod"), n.RunningPod("other")
	for _, p := range []*agenttest.Pod{p, q} {
		p.Grant(dataset("remote/u1", "u1"), home("h/u2", "u2"))
		p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	}
	before := ids(t, n, p)
	s.hang()
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"u1", "u2"}, codes("u1", "MOUNT_DEAD"))
	// A Pod that goes is released although nothing can be asked.
	must(t, q.Ctr.Stop())
	n.API.Delete(q.UID)
	mustBeQuick(t, q)
	absent(t, treeOf(n, q))
	tearDown(t, q)
	// The agent that comes back adopts it, and does not call it ready either.
	n.Restart()
	p.MustAnswer(grant.StateDegraded, []string{"u1", "u2"}, codes("u1", "MOUNT_DEAD"))
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"u1", "u2"}, codes("u1", "MOUNT_DEAD"))
	undisturbed(t, n, p, before)
	s.answer()
	eventually(t, "the lost thread has come back", nil, func() bool { return n.Budget.Lost() == 0 })
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	undisturbed(t, n, p, before)
}

func TestAHungGrantIsRevokedWithinTheBoundAndItsStuckReaderNamed(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	p := n.RunningPod("pod")
	p.Grant(dataset("remote/u1", "u1"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	read := make(chan error, 1)
	user := p.Ctr.AsUser(userID, groupID)
	must(t, user.Chdir(in+"u1"))
	arrived := s.hang()
	go func() {
		_, err := user.ReadDir(".")
		read <- err
	}()
	<-arrived
	p.Grant(home("h/u2", "u2"))
	mustBeQuick(t, p)
	p.MustHave(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
	s.answer()
	must(t, <-read)
	must(t, user.Chdir("/"))
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
}

func TestADeadStorageIsReportedLeftStandingAndRevocable(t *testing.T) {
	t.Parallel()
	n, s, clock := withStorage(t)
	p := n.RunningPod("pod")
	p.Grant(dataset("remote/u1", "u1"), dataset("remote", "all"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"all", "u1", "u2"}, nil)
	before := ids2(t, p)
	s.die(t)
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"all", "u1", "u2"}, codes("all", "MOUNT_DEAD", "u1", "MOUNT_DEAD"))
	// It stands: an error says that something is wrong, an empty folder does not.
	for _, target := range []string{"u1", "all"} {
		_, err := p.Ctr.ReadDir(in + target)
		wants(t, "reading "+target, err, unix.ENOTCONN)
	}
	if now := ids2(t, p); now["u1"] != before["u1"] || now["all"] != before["all"] {
		t.Errorf("mounted as %v, was %v", now, before)
	}
	must(t, p.Ctr.WriteFile(in+"u2/f", nil, 0o644))
	// kubelet looks at the top of the volume, which is alive, and gets EBUSY.
	how, err := p.TearDownVolume()
	if how != "tmpfs" {
		t.Errorf("kubelet took the branch %q", how)
	}
	wants(t, "kubelet's teardown", err, unix.EBUSY)
	// A new agent adopts the dead, a new container sees them dead.
	n.Restart()
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"all", "u1", "u2"}, codes("all", "MOUNT_DEAD", "u1", "MOUNT_DEAD"))
	late := p.StartNamed("late", simnode.ContainerOptions{})
	p.MustAnswer(grant.StateDegraded, []string{"all", "u1", "u2"}, codes("all", "MOUNT_DEAD", "u1", "MOUNT_DEAD"))
	_, err = late.ReadDir(in + "u1")
	wants(t, "reading u1 in the new container", err, unix.ENOTCONN)
	// A grant of what is dead fails, and says why.
	p.Grant(dataset("remote/u1", "new"), home("h/u2", "u2"))
	mustBeQuick(t, p)
	st := p.MustHave(grant.StateDegraded, []string{"u2"}, codes("new", "MOUNT_FAILED"))
	if !strings.Contains(st.Messages["new"], "ENOTCONN") {
		t.Errorf("the message is %q", st.Messages["new"])
	}
	if n.Metric("leaked_total") != 0 || n.Metric("revoked_total") != 2 {
		t.Errorf("leaked %v, revoked %v", n.Metric("leaked_total"), n.Metric("revoked_total"))
	}
	// The storage is mounted again, and the grant succeeds.
	s.unmount(t)
	serve(t, s.dir, rules{})
	must(t, os.Mkdir(filepath.Join(s.dir, "u1"), 0o755))
	clock.Step(30 * time.Second)
	p.MustAnswer(grant.StateReady, []string{"new", "u2"}, nil)
}

// ids2 are the container's ids of its grants, for those whose storage cannot be
// asked.
func ids2(t testing.TB, p *agenttest.Pod) map[string]int {
	t.Helper()
	out := map[string]int{}
	for target, ms := range seenBy(t, p.Ctr) {
		out[target] = ms[0].ID
	}
	return out
}

func TestStorageThatSetsTheOwnerItselfIsAcceptedIfTheUserCanWrite(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	s := serve(t, filepath.Join(n.Claim, "remote"), rules{Chown: syscall.EPERM, Owner: userID, Group: groupID})
	p := n.RunningPod("pod")
	p.Grant(home("remote/users/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	must(t, p.Ctr.AsUser(userID, groupID).WriteFile(in+"u1/f", nil, 0o644))
	if _, err := os.Stat(filepath.Join(s.dir, "users/u1/f")); err != nil {
		t.Error(err)
	}
}

func TestStorageThatGivesNewFoldersToSomebodyElseIsRefusedAndLeftAsItWas(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	for name, c := range map[string]struct {
		rules rules
		says  []string
	}{
		"the owner stays nobody": {rules{Chown: syscall.EPERM, Owner: nobody, Group: nobody}, []string{"unwritable", "EPERM"}},
		"nor can it be opened":   {rules{Chown: syscall.EPERM, Chmod: syscall.EPERM, Owner: nobody, Group: nobody}, []string{"unwritable", "EPERM"}},
		"the mark is dropped":    {rules{DropsSticky: true}, []string{"instead of 1000", "drops the sticky bit"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := agenttest.NewNode(t)
			s := serve(t, filepath.Join(n.Claim, "remote"), c.rules)
			p := n.RunningPod("pod")
			p.Grant(home("remote/u1", "u1"), home("h/u2", "u2"))
			st := p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "MOUNT_FAILED"))
			for _, says := range c.says {
				if !strings.Contains(st.Messages["u1"], says) {
					t.Errorf("no %q in %q", says, st.Messages["u1"])
				}
			}
			absent(t, filepath.Join(s.dir, "u1"))
			absent(t, filepath.Join(treeOf(n, p), "u1"))
		})
	}
}

// The agent is root, and root is nobody there: that it may not read a home says
// nothing about the user.
func TestAPrivateHomeThatTheStorageHidesFromRootIsMounted(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	s := serve(t, filepath.Join(n.Claim, "remote"), rules{SquashesReads: true, Owner: userID, Group: groupID})
	must(t, os.Mkdir(filepath.Join(s.dir, "u1"), 0o700))
	p := n.RunningPod("pod")
	p.Grant(home("remote/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	user := p.Ctr.AsUser(userID, groupID)
	must(t, user.WriteFile(in+"u1/f", nil, 0o644))
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	s.die(t)
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"u1"}, codes("u1", "MOUNT_DEAD"))
}
