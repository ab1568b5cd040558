package delivery

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
)

// Bind delivers kinds whose content is on the shared claim already.
type Bind struct {
	Table mnt.Table
	Proof *proof.Storage
	// Claim is where the shared claim is mounted on this node.
	Claim string
	// Owner is given the folders that are made.
	Owner beneath.Owner
	// Bound is how long the claim may take to resolve a source.
	Bound time.Duration
	// Keys are what threads that the claim at this path hangs are charged to.
	Keys func(path string) []deadline.Key
	// Budget counts those threads.
	Budget *deadline.Budget
}

var _ Delivery = (*Bind)(nil)

// Deliver implements Delivery. The source is resolved before the mount point is
// made: a grant that is refused never shows the sandbox an empty folder.
func (b *Bind) Deliver(ctx context.Context, tree *beneath.Dir, m plan.Mount, _ Credential) (mnt.Record, error) {
	source, err := deadline.Do(ctx, b.Budget, b.Bound,
		func() (*beneath.Dir, error) { return b.source(m) }, (*beneath.Dir).Close,
		b.Keys(b.Claim+"/"+m.Source())...)
	if err != nil {
		return mnt.Record{}, err
	}
	defer source.Close()
	rec, err := b.attach(source, tree, m)
	if err != nil {
		return mnt.Record{}, err
	}
	return rec, b.Proof.Answers(ctx, tree, m.Target(), &rec, proof.Filesystem(rec.Dev))
}

// source resolves m beneath the claim, and has its storage answer.
func (b *Bind) source(m plan.Mount) (*beneath.Dir, error) {
	claim, err := b.claim()
	if err != nil {
		return nil, err
	}
	defer claim.Close()
	open := claim.Open
	if m.Creates() {
		open = func(rel string) (*beneath.Dir, error) { return claim.Create(rel, b.Owner) }
	}
	source, err := open(m.Source())
	if err != nil {
		return nil, err
	}
	// The root of a mount is opened without a question to its server. One that
	// hangs must not get as far as the sandbox, where every look at it hangs too.
	err = proof.Reads(source)
	if err == nil && !m.ReadOnly() {
		err = writable(source)
	}
	if err != nil {
		source.Close()
		return nil, err
	}
	return source, nil
}

// writable refuses a source on a mount or a filesystem that is read-only as a
// whole: a bind of it would be as well, whatever was granted.
func writable(source *beneath.Dir) error {
	var fs unix.Statfs_t
	if err := beneath.Uninterrupted(func() error { return unix.Fstatfs(source.Fd(), &fs) }); err != nil {
		return err
	}
	const readOnly = 0x1 // ST_RDONLY, statfs(2)
	if fs.Flags&readOnly != 0 {
		return ErrReadOnly
	}
	return nil
}

// claim opens the claim anew each time: it may have been mounted, or mounted
// again, after the agent started.
func (b *Bind) claim() (*beneath.Dir, error) {
	claim, err := beneath.OpenRoot(b.Claim)
	if err != nil {
		return nil, errors.Join(ErrClaimMissing, err)
	}
	place, err := b.Table.At(claim)
	if err == nil && !place.MountRoot {
		err = ErrClaimMissing
	}
	if err != nil {
		claim.Close()
		return nil, err
	}
	return claim, nil
}

// Usable implements Delivery: the claim must be there, or hang alone.
func (b *Bind) Usable(ctx context.Context) error {
	_, err := deadline.Do(ctx, b.Budget, b.Bound, func() (struct{}, error) {
		claim, err := b.claim()
		claim.Close()
		return struct{}{}, err
	}, nil, deadline.Key{Name: "claim", Limit: 1})
	return err
}

func (b *Bind) attach(source, tree *beneath.Dir, m plan.Mount) (mnt.Record, error) {
	target, err := mountPoint(tree, m.Target())
	if err != nil {
		return mnt.Record{}, err
	}
	defer target.Close()
	return b.Table.Bind(source, target, flags(m))
}

// targetMode is that of an empty mount point: listable, and nothing more.
const targetMode = 0o555

func flags(m plan.Mount) mnt.Flags {
	f := mnt.NoSUID | mnt.NoDev
	if m.ReadOnly() {
		f |= mnt.ReadOnly
	}
	if m.NoExec() {
		f |= mnt.NoExec
	}
	return f
}

// Undo implements Delivery.
func (b *Bind) Undo(ctx context.Context, tree *beneath.Dir, target string, detach bool) error {
	return unmount(ctx, b.Table, tree, target, detach)
}

// unmount takes the mount at target off the tree, and removes its mount point. With
// the folder the kernel detaches whatever stands on it in other mount namespaces
// (since Linux 3.18): a copy that a tenant made private in a namespace of its own,
// where no unmount arrives, goes as well.
func unmount(ctx context.Context, table mnt.Table, tree *beneath.Dir, target string, detach bool) error {
	err := mnt.UntilFree(ctx, func() error { return table.Unmount(tree, target, detach) })
	if err != nil && !errors.Is(err, mnt.ErrNotMounted) {
		return err
	}
	err = tree.Rmdir(target)
	if err != nil && !stands(table, tree, target) {
		// What is left is no mount: something that root on the node put into the
		// tree, which goes with the tree; or the folder, because somebody's mount
		// keeps a copy of ours on it in the publication, and who has that is found
		// like any other holder.
		return nil
	}
	return err
}

// stands tells whether a mount is at target in the tree itself: one that lay
// beneath what was taken off.
func stands(table mnt.Table, tree *beneath.Dir, target string) bool {
	dir, err := tree.Open(target)
	if err != nil {
		return false
	}
	defer dir.Close()
	place, err := table.At(dir)
	return err == nil && place.MountRoot
}

// Alive implements Delivery.
func (b *Bind) Alive(ctx context.Context, tree *beneath.Dir, target string, on ...deadline.Key) error {
	return b.Proof.Answers(ctx, tree, target, nil, on...)
}
