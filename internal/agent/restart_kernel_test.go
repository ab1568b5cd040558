package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// ids are the mount ids of the grants: as the container's table names them, and
// as the kernel does where it never uses one twice.
func ids(t testing.TB, n *agenttest.Node, p *agenttest.Pod) map[string]string {
	t.Helper()
	out := map[string]string{}
	for target, ms := range seenBy(t, p.Ctr) {
		var stx unix.Statx_t
		must(t, unix.Statx(unix.AT_FDCWD, filepath.Join(treeOf(n, p), target), unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &stx))
		out[target] = fmt.Sprintf("%d mounts, the last %d, in the tree %d", len(ms), ms[len(ms)-1].ID, stx.Mnt_id)
	}
	return out
}

func mountCount(t testing.TB, n *agenttest.Node, p *agenttest.Pod) (agent, container int) {
	t.Helper()
	all, err := (&mnt.Kernel{}).List()
	must(t, err)
	inside, err := p.Ctr.Mounts()
	must(t, err)
	return len(slices.DeleteFunc(all, func(m mnt.Mount) bool { return !mnt.Within(n.Dir, m.Point) })), len(inside)
}

func TestTenRestartsTouchNoneOfThirtyTwoMounts(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	var mounts []grant.Mount
	var targets []string
	for i := range 32 {
		m := home(fmt.Sprintf("h/%d", i), fmt.Sprintf("t%02d", i))
		m.AllowExec = i%2 == 0
		mounts = append(mounts, m)
		targets = append(targets, m.Target)
	}
	p.Grant(mounts...)
	p.MustAnswer(grant.StateReady, targets, nil)
	h, err := p.Ctr.Hold(in + "t07")
	must(t, err)
	before := ids(t, n, p)
	agentBefore, containerBefore := mountCount(t, n, p)
	for range 10 {
		n.Restart()
		p.MustAnswer(grant.StateReady, targets, nil)
		must(t, n.Agent.Sweep(t.Context()))
		p.MustAnswer(grant.StateReady, targets, nil)
		if n.Metric("granted_total") != 0 || n.Metric("mounts") != 32 {
			t.Fatalf("%v granted, %v mounted", n.Metric("granted_total"), n.Metric("mounts"))
		}
	}
	if now := ids(t, n, p); len(before) != 32 || !maps.Equal(before, now) {
		t.Errorf("mounted as %v, before as %v", now, before)
	}
	if a, c := mountCount(t, n, p); a != agentBefore || c != containerBefore {
		t.Errorf("the agent has %d mounts, before %d; the container has %d, before %d", a, agentBefore, c, containerBefore)
	}
	if n.API.Answers() != 1 {
		t.Errorf("%d answers", n.API.Answers())
	}
	must(t, p.Ctr.Drop(h))
}

// What an agent finds when it comes back, and what is to become of it. Each
// starts from two grants, u1 rw and u2 ro, and ends with both as they should be,
// each mounted once.
func TestAnAgentThatComesBackRepairsWhatHasBecomeOfItsMounts(t *testing.T) {
	t.Parallel()
	journalOf := func(n *agenttest.Node, p *agenttest.Pod) string {
		return filepath.Join(n.Root, "journal", p.UID+".json")
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, n *agenttest.Node, p *agenttest.Pod)
		kept   []string // targets that must not have been touched
	}{
		"nothing": {func(*testing.T, *agenttest.Node, *agenttest.Pod) {}, []string{"u1", "u2"}},
		"the flags of one were weakened": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Mount("", filepath.Join(treeOf(n, p), "u2"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID, ""))
		}, []string{"u1"}},
		"one was unmounted": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Unmount(filepath.Join(treeOf(n, p), "u1"), 0))
		}, []string{"u2"}},
		"one is another folder now": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			at := filepath.Join(treeOf(n, p), "u1")
			must(t, unix.Unmount(at, 0))
			must(t, unix.Mount(n.Home("other", 0o755), at, "", unix.MS_BIND, ""))
		}, []string{"u2"}},
		"a foreign mount is in the tree": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			at := filepath.Join(treeOf(n, p), "foreign")
			must(t, os.Mkdir(at, 0o755))
			must(t, unix.Mount(n.Home("other", 0o755), at, "", unix.MS_BIND, ""))
		}, []string{"u1", "u2"}},
		"a foreign mount is on one": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Mount(n.Home("other", 0o755), filepath.Join(treeOf(n, p), "u1"), "", unix.MS_BIND, ""))
		}, []string{"u2"}},
		"the publication was unmounted": {func(t *testing.T, _ *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Unmount(p.VolumePath(), unix.MNT_DETACH))
		}, nil},
		"the tree was unmounted": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Unmount(treeOf(n, p), unix.MNT_DETACH))
		}, nil},
		"the tree was unmounted and the journal deleted": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Unmount(treeOf(n, p), unix.MNT_DETACH))
			must(t, os.Remove(journalOf(n, p)))
		}, nil},
		"the journal was deleted": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, os.Remove(journalOf(n, p)))
		}, nil},
		"the journal is cut off": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, os.Truncate(journalOf(n, p), 40))
		}, nil},
		"the journal is empty": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, os.Truncate(journalOf(n, p), 0))
		}, nil},
		"the journal is from a newer version": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			b, err := os.ReadFile(journalOf(n, p))
			must(t, err)
			b = []byte(strings.Replace(string(b), `"version":1`, `"version":9`, 1))
			must(t, os.WriteFile(journalOf(n, p), b, 0o600))
		}, nil},
		"the node has booted again, says the boot id": {func(_ *testing.T, n *agenttest.Node, _ *agenttest.Pod) {
			n.BootID = "boot-2"
		}, nil},
		"it was killed after it wrote what it would grant": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			editJournal(t, n, p, func(j *journal.Pod) {
				j.Mounts[0].State, j.Mounts[0].Record = journal.Granting, nil
			})
		}, []string{"u2"}},
		"it was killed before it wrote that it had published": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			editJournal(t, n, p, func(j *journal.Pod) { j.Publication = &journal.Base{} })
		}, []string{"u1", "u2"}},
		"it was killed before it wrote that it had made the tree": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			editJournal(t, n, p, func(j *journal.Pod) { j.Tree, j.Publication, j.Mounts = &journal.Base{}, nil, nil })
		}, nil},
		"it was killed in the middle of a revocation": {func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			editJournal(t, n, p, func(j *journal.Pod) { j.Mounts[1].State = journal.Revoking })
		}, []string{"u1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := agenttest.NewNode(t)
			n.Home("h/u1", 0o777, "f")
			n.Home("h/u2", 0o777, "f")
			p := n.RunningPod("pod")
			p.Grant(home("h/u1", "u1"), dataset("h/u2", "u2"))
			p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
			before := ids(t, n, p)
			agentBefore, containerBefore := mountCount(t, n, p)
			n.StopAgent()
			c.damage(t, n, p)
			n.Restart()
			repair(t, n, p)
			p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
			now := ids(t, n, p)
			for _, kept := range c.kept {
				if now[kept] != before[kept] {
					t.Errorf("%s is %s, was %s", kept, now[kept], before[kept])
				}
			}
			if a, in := mountCount(t, n, p); a != agentBefore || in != containerBefore {
				t.Errorf("the agent has %d mounts, before %d; the container has %d, before %d", a, agentBefore, in, containerBefore)
			}
			must(t, p.Ctr.WriteFile(in+"u1/f", nil, 0o644))
			wants(t, "a write into u2", p.Ctr.WriteFile(in+"u2/f", nil, 0o644), unix.EROFS)
			// And all of it goes.
			must(t, p.Ctr.Stop())
			n.API.Delete(p.UID)
			repair(t, n, p)
			clean(t, n, p)
		})
	}
}

// repair makes passes until one neither fails nor asks for another at once.
func repair(t testing.TB, n *agenttest.Node, p *agenttest.Pod) {
	t.Helper()
	for range 10 {
		again, err := n.Agent.Reconcile(t.Context(), p.UID)
		if err == nil && again == 0 {
			return
		}
		t.Logf("a pass again after %s: %v", again, err)
	}
	t.Error("it does not come to rest")
}

func TestASweepRepairsWhatOthersUnmounted(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	sweep := func() {
		t.Helper()
		n.API.Queued(p.UID)
		must(t, n.Agent.Sweep(t.Context()))
		if !n.API.Queued(p.UID) {
			t.Error("the sweep asked for no pass")
		}
		repair(t, n, p)
		p.MustHave(grant.StateReady, []string{"u1", "u2"}, nil)
		must(t, p.Ctr.WriteFile(in+"u1/f", nil, 0o644))
		must(t, p.Ctr.WriteFile(in+"u2/f", nil, 0o644))
	}
	must(t, unix.Unmount(filepath.Join(treeOf(n, p), "u1"), 0))
	sweep()
	must(t, unix.Unmount(p.VolumePath(), unix.MNT_DETACH))
	sweep()
	must(t, unix.Unmount(treeOf(n, p), unix.MNT_DETACH))
	sweep()
	if seen := seenBy(t, p.Ctr); len(seen["u1"]) != 1 || len(seen["u2"]) != 1 || len(standing(t, p.VolumePath())) != 2 {
		t.Errorf("the container sees %v, the volume has %v", seen, standing(t, p.VolumePath()))
	}
}

func TestATreeWhosePodIsGoneIsReleasedWithoutAJournal(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	n.StopAgent()
	must(t, os.Remove(filepath.Join(n.Root, "journal", p.UID+".json")))
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	n.Restart()
	if !n.API.Queued(p.UID) {
		t.Fatal("nobody asks for a pass over it")
	}
	p.Pass()
	clean(t, n, p)
}

// Two agents may have met on a rollout. Each publication goes, and no more.
func TestOfTwoPublicationsBothGoAndKubeletsVolumeStays(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	own := standing(t, p.VolumePath())[0]
	func() {
		tree, err := beneath.OpenRoot(treeOf(n, p))
		must(t, err)
		defer tree.Close()
		volume, err := beneath.OpenRoot(p.VolumePath())
		must(t, err)
		defer volume.Close()
		_, err = (&mnt.Kernel{}).Publish(tree, volume)
		must(t, err)
	}()
	if ms := standing(t, p.VolumePath()); len(ms) != 3 {
		t.Fatalf("on the volume: %+v", ms)
	}
	n.Restart()
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	p.Annotate(nil)
	p.Pass()
	if ms := standing(t, p.VolumePath()); len(ms) != 1 || ms[0].ID != own.ID {
		t.Errorf("on the volume: %+v, want kubelet's own %+v", ms, own)
	}
	must(t, p.Ctr.Stop())
	clean(t, n, p)
}

// A publication that is a peer of the tree would let a tenant plant a link where
// the next grant is attached, and a writable one a folder that looks like a grant.
// A publication that lacks any of its flags is none.
func TestAPublicationThatIsNoReadOnlySlaveIsReplaced(t *testing.T) {
	t.Parallel()
	const all = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	for name, planted := range map[string]struct {
		propagation, attrs uint64
	}{
		"a peer":                 {0, 0},
		"a read-only peer":       {0, all},
		"a writable slave":       {unix.MS_SLAVE, all &^ unix.MOUNT_ATTR_RDONLY},
		"a slave without nosuid": {unix.MS_SLAVE, all &^ unix.MOUNT_ATTR_NOSUID},
		"a slave without nodev":  {unix.MS_SLAVE, all &^ unix.MOUNT_ATTR_NODEV},
		"a slave without noexec": {unix.MS_SLAVE, all &^ unix.MOUNT_ATTR_NOEXEC},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			p.Grant()
			p.MustAnswer(grant.StateReady, nil, nil)
			before := standing(t, p.VolumePath())
			must(t, unix.Unmount(p.VolumePath(), 0))
			fd, err := unix.OpenTree(unix.AT_FDCWD, treeOf(n, p), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
			must(t, err)
			must(t, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: planted.attrs, Propagation: planted.propagation}))
			must(t, unix.MoveMount(fd, "", unix.AT_FDCWD, p.VolumePath(), unix.MOVE_MOUNT_F_EMPTY_PATH))
			must(t, unix.Close(fd)) // it would keep the mount busy
			err = p.Ctr.Mkdir(in+"planted", 0o755)
			if planted.attrs&unix.MOUNT_ATTR_RDONLY == 0 {
				must(t, err) // as bad as that
				must(t, p.Ctr.Remove(in+"planted"))
			} else {
				wants(t, "a folder in what was planted", err, unix.EROFS)
			}
			must(t, n.Agent.Sweep(t.Context()))
			p.Grant(home("h/u1", "u1"))
			repair(t, n, p)
			p.MustHave(grant.StateReady, []string{"u1"}, nil)
			wants(t, "a folder in the volume", p.Ctr.Mkdir(in+"planted", 0o755), unix.EROFS)
			now, tree := standing(t, p.VolumePath()), standing(t, treeOf(n, p))
			if top := now[len(now)-1]; len(now) != len(before) || top.Flags != mnt.PublicationFlags || top.Master != tree[0].Peer {
				t.Errorf("on the volume: %+v, before there was %+v", now, before)
			}
			if seen := seenBy(t, p.Ctr); len(seen["u1"]) != 1 {
				t.Errorf("the container sees %v", seen)
			}
		})
	}
}

// The node has booted: nothing stands, kubelet makes the volume anew, and the
// journal is another boot's.
func TestAfterARebootMountsAreMadeAnewOnceKubeletHasStartedThePodAgain(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, p.Ctr.Stop())
	n.StopAgent()
	for _, target := range []string{"u1", "u2"} {
		must(t, unix.Unmount(filepath.Join(treeOf(n, p), target), 0))
	}
	must(t, unix.Unmount(p.VolumePath(), 0))
	must(t, unix.Unmount(treeOf(n, p), 0))
	tearDown(t, p)
	n.BootID = "boot-2"
	n.Restart()
	must(t, p.SetUpVolume(false))
	p.Pass()
	if ms := standing(t, p.VolumePath()); len(ms) != 1 {
		t.Errorf("before the Pod's first process the volume has %+v", ms)
	}
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	must(t, p.Ctr.WriteFile(in+"u1/f", nil, 0o644))
}

// killed is a mount table on which an agent dies: right after an unmount, the
// calling thread never comes back.
type killed struct {
	mnt.Table
	at   chan struct{}
	dead chan struct{}
}

func (k *killed) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	err := k.Table.Unmount(dir, name, lazy)
	if errors.Is(err, mnt.ErrBusy) {
		return err
	}
	close(k.at)
	<-k.dead
	return err
}

func TestAnAgentThatIsKilledAfterAnUnmountStillKnowsWhomToLookFor(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	k := &killed{Table: n.Table, at: make(chan struct{}), dead: make(chan struct{})}
	n.Mounter = k
	n.Restart()
	p.Pass()
	h, err := p.Ctr.Hold(in + "u1/f")
	must(t, err)
	p.Grant(home("h/u2", "u2"))
	gone := make(chan struct{})
	first := n.Agent
	go func() {
		defer close(gone)
		_, _ = first.Reconcile(t.Context(), p.UID)
	}()
	<-k.at
	b, err := os.ReadFile(filepath.Join(n.Root, "journal", p.UID+".json"))
	must(t, err)
	close(k.dead) // it must end before the test does; what it writes is undone
	<-gone
	n.StopAgent()
	must(t, os.WriteFile(filepath.Join(n.Root, "journal", p.UID+".json"), b, 0o600))
	n.API.Change(p.UID, func(p *plan.Pod) { p.Ready = nil })
	n.Mounter = n.Table
	n.Restart()
	p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
	must(t, p.Ctr.Drop(h))
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
}
