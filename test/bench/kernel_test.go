package bench

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/proof"
)

// How often one bind is measured in each way, at each size of the node.
const bindsEach = 600

// sizesOfNode are how many mounts there are beside what the Pods need, and how
// many Pods.
func sizesOfNode() (mounts, pods []int) { return []int{1, 32, 512, 4096}, []int{1, 32, 128} }

// bind is one bind, made in three ways on the same kernel objects.
type bind struct {
	pods, others, table int // the node's size: Pods, other mounts, lines of its mount table

	raw      samples // the four system calls
	mnt      samples // packages beneath and mnt
	delivery samples // the whole delivery
}

// kernelResult is what the node's part costs.
type kernelResult struct {
	binds  []bind
	passes []passes
}

func measureKernel(b *testing.B) kernelResult {
	b.Helper()
	l := newLocal(b)
	others := newCrowd(b, l.Node)
	mounts, pods := sizesOfNode()
	var out kernelResult
	for _, p := range pods {
		others.be(b, mounts[0])
		l.grow(p)
		for _, m := range mounts {
			others.be(b, m)
			// What the agent knows of the mount table is from its last sweep.
			must(b, l.agent.Sweep(b.Context()))
			out.binds = append(out.binds, l.binds(m))
			if (p == pods[0] && m == mounts[0]) || (p == pods[len(pods)-1] && m == mounts[len(mounts)-1]) {
				out.passes = append(out.passes, l.passes(m))
			}
		}
	}
	others.be(b, 0)
	return out
}

// place is where a Pod's binds are made.
type place struct {
	claim, tree *beneath.Dir
	pod         *localPod
}

func (l *local) place(p *localPod) place {
	l.b.Helper()
	claim, err := beneath.OpenRoot(l.Claim)
	must(l.b, err)
	trees, err := beneath.OpenRoot(l.Root + "/pods")
	must(l.b, err)
	defer trees.Close()
	tree, err := trees.Open(p.UID)
	must(l.b, err)
	return place{claim: claim, tree: tree, pod: p}
}

func (p place) close() {
	p.claim.Close()
	p.tree.Close()
}

// binds measures one bind in each way, turn by turn and Pod by Pod.
func (l *local) binds(others int) bind {
	l.b.Helper()
	out := bind{pods: len(l.pods), others: others, table: l.mounts()}
	d := &delivery.Bind{
		Table: l.table, Budget: l.budget, Keys: l.agent.Keys,
		Proof: &proof.Storage{Table: l.table, Budget: l.budget, Bound: agent.DefaultBound, PerMount: 1},
		Claim: l.Claim, Owner: beneath.Owner{UID: sandboxID, GID: groupID}, Bound: agent.DefaultBound,
	}
	ways := []struct {
		to    *samples
		point bool // the mount point is made before
		make  func(place) error
	}{
		{&out.raw, true, rawBind},
		{&out.mnt, true, l.mntBind},
		{&out.delivery, false, func(p place) error {
			_, err := d.Deliver(l.b.Context(), p.tree, p.pod.mount, delivery.Credential{})
			return err
		}},
	}
	runtime.GC()
	for i := range bindsEach {
		p := l.place(l.pods[i%len(l.pods)])
		for j := range ways {
			way := ways[(i+j)%len(ways)]
			if way.point {
				must(l.b, p.tree.Mkdir(target, 0o555))
			}
			began := time.Now()
			err := way.make(p)
			*way.to = append(*way.to, time.Since(began))
			must(l.b, err)
			must(l.b, mnt.UntilFree(l.b.Context(), func() error { return l.table.Unmount(p.tree, target, false) }))
			must(l.b, p.tree.Rmdir(target))
		}
		p.close()
	}
	return out
}

// rawBind is the least that makes the mount: source resolved beneath the claim,
// flags set before it is attached, descriptors closed.
func rawBind(p place) error {
	source, err := unix.Openat2(p.claim.Fd(), p.pod.source, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return fmt.Errorf("openat2: %w", err)
	}
	defer unix.Close(source)
	fd, err := unix.OpenTree(source, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(fd, "", p.tree.Fd(), target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// mntBind is the same by the packages that the agent does it with.
func (l *local) mntBind(p place) error {
	source, err := p.claim.Open(p.pod.source)
	if err != nil {
		return err
	}
	defer source.Close()
	on, err := p.tree.OpenTarget(target)
	if err != nil {
		return err
	}
	defer on.Close()
	_, err = l.table.Bind(source, on, mnt.NoSUID|mnt.NoDev)
	return err
}
