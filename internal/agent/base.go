package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// errTreeLost says that the tree in the journal is no longer mounted. Everything
// that stood in it is gone with it.
var errTreeLost = errors.New("the Pod's tree is gone: it is made again")

// localBound is for calls that reach only tmpfs and kubelet's folders. They
// answer at once, unless somebody mounted something dead in the way.
const localBound = 5 * time.Second

// volumeDir is where kubelet keeps the Pod's emptyDir volumes, beneath its own
// folder.
func volumeDir(uid string) string {
	return path.Join("pods", uid, "volumes", "kubernetes.io~empty-dir")
}

func (a *Agent) volumePath(uid string) string {
	return path.Join(a.Kubelet, volumeDir(uid), a.Policy.VolumeName)
}

func (a *Agent) treePath(uid string) string { return path.Join(a.podsDir(), uid) }

// base makes sure that the Pod has its tree and that the tree is published on
// its volume. It returns the tree, for the caller to close.
//
// Nothing is published before a process of the Pod exists. kubelet mounts the
// volume first and then walks it for fsGroup, through whatever is mounted there
// already: homes went from 0700 to 2770 and changed owner. It starts the Pod's
// first process only when it is done.
func (a *Agent) base(ctx context.Context, s *podState) (*beneath.Dir, error) {
	alive, err := a.Processes.Has(s.j.UID)
	if err != nil {
		return nil, fmt.Errorf("looking for the Pod's processes: %w", err)
	}
	if !alive && s.j.Publication == nil {
		return nil, notYet("no process of the Pod runs on this node")
	}
	if len(s.j.Stale) > 0 {
		// Before anything of it is opened: that would keep it busy.
		if err := a.unpublish(ctx, s); err != nil {
			return nil, err
		}
	}
	volume, err := a.openVolume(ctx, s.j.UID)
	if err != nil {
		return nil, err
	}
	defer volume.Close()
	tree, err := a.tree(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := a.publish(ctx, s, tree, volume, alive); err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

// openVolume opens the Pod's gateway volume, with a deadline.
func (a *Agent) openVolume(ctx context.Context, uid string) (*beneath.Dir, error) {
	volume, err := a.openKubelet(ctx, uid, path.Join(volumeDir(uid), a.Policy.VolumeName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notYet("kubelet has not made the Pod's volume")
	}
	return volume, err
}

// openKubelet opens a directory below kubelet's folder, which is opened anew
// each time: it may be mounted again while the agent runs.
func (a *Agent) openKubelet(ctx context.Context, uid, rel string) (*beneath.Dir, error) {
	return deadline.Do(ctx, a.Budget, localBound, func() (*beneath.Dir, error) {
		root, err := beneath.OpenRoot(a.Kubelet)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		return root.Open(rel)
	}, (*beneath.Dir).Close, deadline.Key{Name: "volume:" + uid, Limit: 2})
}

// tree opens the Pod's tree, and mounts it first where there is none.
func (a *Agent) tree(ctx context.Context, s *podState) (*beneath.Dir, error) {
	if s.j.Tree != nil && s.j.Tree.Record != nil {
		return a.knownTree(ctx, s)
	}
	s.j.Tree = &journal.Base{}
	if err := a.save(s); err != nil {
		return nil, err
	}
	if err := a.pods.Mkdir(s.j.UID, 0o755); err != nil {
		return nil, err
	}
	on, err := a.pods.OpenTarget(s.j.UID)
	if err != nil {
		return nil, err
	}
	defer on.Close()
	rec, err := a.Table.NewTree(on)
	if err != nil {
		return nil, err
	}
	s.j.Tree.Record = &rec
	a.note(s) // it is written again before anything is made of the tree
	return a.knownTree(ctx, s)
}

// knownTree opens the tree that the journal has, and makes sure it is that.
func (a *Agent) knownTree(ctx context.Context, s *podState) (*beneath.Dir, error) {
	tree, err := a.pods.Open(s.j.UID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, a.treeLost(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	place, err := a.Table.At(tree)
	if err == nil && place.Dev == s.j.Tree.Record.Dev && place.MountRoot {
		return tree, nil
	}
	tree.Close()
	if err != nil {
		return nil, err
	}
	return nil, a.treeLost(ctx, s)
}

// treeLost forgets what stood in a tree that is gone. The next pass makes all of
// it again.
func (a *Agent) treeLost(ctx context.Context, s *podState) error {
	if err := a.unpublish(ctx, s); err != nil {
		return errors.Join(errTreeLost, err)
	}
	s.j.Tree, s.j.Mounts = nil, nil
	clear(s.seen)
	a.note(s)
	return errTreeLost
}

// publish attaches the tree on the volume, unless it is there already.
func (a *Agent) publish(ctx context.Context, s *podState, tree, volume *beneath.Dir, alive bool) error {
	place, err := a.Table.At(volume)
	if err != nil {
		return err
	}
	if a.isPublication(s, place) {
		return nil
	}
	if !alive {
		return notYet("no process of the Pod runs on this node")
	}
	memory, err := deadline.On(ctx, a.Budget, localBound, volume, a.Table.InMemory,
		deadline.Key{Name: "volume:" + s.j.UID, Limit: 2})
	if err != nil {
		return err
	}
	if !memory || !place.MountRoot {
		return notYet("kubelet has not mounted the Pod's memory-backed volume")
	}
	s.j.Publication = &journal.Base{}
	if err := a.save(s); err != nil {
		return err
	}
	rec, err := a.Table.Publish(tree, volume)
	if err != nil {
		return err
	}
	s.j.Publication.Record = &rec
	a.note(s)
	return nil
}

// isPublication recognises the Pod's publication: the root of its tree's own
// filesystem. Every tree has one, so no other mount shows its device. Whether it
// is a slave and read-only the mount table tells, at start and in every sweep.
func (a *Agent) isPublication(s *podState, at mnt.Place) bool {
	return at.MountRoot && s.j.Tree != nil && s.j.Tree.Record != nil && at.Dev == s.j.Tree.Record.Dev
}

// removeBase takes the publication off the volume and then the tree away. Every
// grant has gone before. Neither is ever detached in use: what keeps it busy
// must stay visible, as a Pod that does not go.
func (a *Agent) removeBase(ctx context.Context, s *podState) error {
	if s.j.Tree == nil && len(s.j.Stale) == 0 {
		return a.removeFolder(s)
	}
	err := a.unpublish(ctx, s)
	if errors.Is(err, mnt.ErrBusy) && a.takeCopies(ctx, s) {
		err = a.unpublish(ctx, s)
	}
	if err != nil {
		return err
	}
	err = mnt.UntilFree(ctx, func() error { return a.Table.Unmount(a.pods, s.j.UID, false) })
	if err != nil && !errors.Is(err, mnt.ErrNotMounted) {
		return err
	}
	if err := a.removeFolder(s); err != nil {
		return err
	}
	s.j.Tree = nil
	clear(s.seen)
	a.note(s)
	return nil
}

// maxStacked bounds how many publications are taken off one volume. There is
// never more than one unless something else than the agent put it there.
const maxStacked = 8

// unpublish takes off the volume what is recognised as the publication, one
// mount at a time, and never kubelet's own tmpfs beneath it.
func (a *Agent) unpublish(ctx context.Context, s *podState) error {
	dir, err := a.openKubelet(ctx, s.j.UID, volumeDir(s.j.UID))
	if errors.Is(err, fs.ErrNotExist) {
		s.j.Publication, s.j.Stale = nil, nil
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for range maxStacked {
		published := false
		err := mnt.UntilFree(ctx, func() (err error) {
			// Looked at before each attempt: while it was busy, kubelet may have taken
			// it off, and what is topmost now is kubelet's.
			if published, err = a.published(s, dir); err != nil || !published {
				return err
			}
			return a.Table.Unmount(dir, a.Policy.VolumeName, false)
		})
		if err != nil {
			return err
		}
		if !published {
			s.j.Publication, s.j.Stale = nil, nil
			return nil
		}
	}
	return fmt.Errorf("more than %d publications are stacked on %s", maxStacked, a.volumePath(s.j.UID))
}

// published tells whether the topmost mount of the volume is the publication.
// It holds no descriptor afterwards: that would keep the mount busy.
func (a *Agent) published(s *podState, dir *beneath.Dir) (bool, error) {
	volume, err := dir.Open(a.Policy.VolumeName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer volume.Close()
	place, err := a.Table.At(volume)
	return err == nil && a.isOurs(s, place), err
}

// isOurs recognises what this or an earlier agent put on the volume.
func (a *Agent) isOurs(s *podState, at mnt.Place) bool {
	return a.isPublication(s, at) || at.MountRoot && slices.Contains(s.j.Stale, at.Dev)
}

// takeCopies takes grants off the publication that the tree has no longer:
// something that somebody on the node mounted beneath one kept it there when the
// tree's was taken away, and no unmount in the tree reaches it any more. What is
// no grant by its flags, and what still has a mount beneath it, is left alone. It
// tells whether any were taken.
func (a *Agent) takeCopies(ctx context.Context, s *podState) bool {
	volume, err := a.openVolume(ctx, s.j.UID)
	if err != nil {
		return false
	}
	defer volume.Close()
	place, err := a.Table.At(volume)
	if err != nil || !a.isOurs(s, place) {
		return false
	}
	mounts, err := a.Table.Children(volume)
	if err != nil {
		a.Log.Warn("looking for copies on the publication", "pod", s.j.Ref(), "error", err)
		return false
	}
	at, taken := a.volumePath(s.j.UID), false
	for _, m := range mounts {
		target := path.Base(m.Point)
		if path.Dir(m.Point) != at || m.Flags&grantFlags != grantFlags || s.j.Find(target) != nil {
			continue
		}
		err := mnt.UntilFree(ctx, func() error { return a.Table.Unmount(volume, target, false) })
		if err == nil {
			taken = true
			err = a.rmdirTarget(s, target)
		}
		a.Log.Info("taking a copy off the publication", "pod", s.j.Ref(), "target", target, "error", err)
	}
	return taken
}

func (a *Agent) rmdirTarget(s *podState, target string) error {
	tree, err := a.pods.Open(s.j.UID)
	if err != nil {
		return err
	}
	defer tree.Close()
	return tree.Rmdir(target)
}
