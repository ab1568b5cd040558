package mnt

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

const (
	// A tree holds mount points and nothing else: a directory per grant.
	treeSize   = "1m"
	treeInodes = "4096"
	treeMode   = "0755"
	treeFlags  = NoSUID | NoDev | NoExec

	// TreeSource names the filesystem of a tree in the mount table.
	TreeSource = "node-mounts"
)

// Kernel is the mount table of the mount namespace this process is in.
type Kernel struct {
	lists atomic.Int64
}

var _ Table = (*Kernel)(nil)

// Lists is how often the whole mount table has been opened. Tests hold it
// against the rule that no grant costs a reading.
func (k *Kernel) Lists() int64 { return k.lists.Load() }

// open opens the whole mount table. Nothing else in this package does.
func (k *Kernel) open() (*os.File, error) {
	k.lists.Add(1)
	return os.Open("/proc/self/mountinfo")
}

// NewTree implements Table. A new filesystem's mount is private until it is
// attached, and gets a peer group of its own then. A bind of a folder would join
// the peer group of the host's root, and every grant would appear twice.
func (k *Kernel) NewTree(on *beneath.Dir) (Record, error) {
	fd, err := tmpfs()
	if err != nil {
		return Record{}, wrap("mount tmpfs", on, err)
	}
	defer unix.Close(fd)
	if err := attach(fd, on); err != nil {
		return Record{}, wrap("attach tree", on, err)
	}
	// A no-op below a shared mount, where it got a peer group of its own as it was
	// attached. The descriptor still names the mount, now that it is attached.
	if err := setattr(fd, 0, 0, unix.MS_SHARED); err != nil {
		return Record{}, wrap("make shared", on, err)
	}
	return k.record(fd, treeFlags), nil
}

// tmpfs makes a detached tmpfs mount.
func tmpfs() (int, error) {
	fd, err := superblock(Filesystem{
		Type: "tmpfs", Source: TreeSource, Settings: []Setting{{"size", treeSize}, {"nr_inodes", treeInodes}, {"mode", treeMode}},
	})
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, int(treeFlags.attrs()))
}

// Publish implements Table. The clone is a slave, recursively, so that what
// stands in the tree already is followed too. Read-only is set on its top mount
// alone: set recursively, a republication would take the write permission from
// standing rw grants.
func (k *Kernel) Publish(tree, volume *beneath.Dir) (Record, error) {
	fd, err := clone(tree)
	if err != nil {
		return Record{}, wrap("clone tree", tree, err)
	}
	defer unix.Close(fd)
	if err := setattr(fd, unix.AT_RECURSIVE, 0, unix.MS_SLAVE); err != nil {
		return Record{}, wrap("make slave", tree, err)
	}
	if err := setattr(fd, 0, PublicationFlags, 0); err != nil {
		return Record{}, wrap("make read-only", tree, err)
	}
	if err := attach(fd, volume); err != nil {
		return Record{}, wrap("publish tree", volume, err)
	}
	return k.record(fd, PublicationFlags), nil
}

// Bind implements Table. Attributes do not propagate: a copy gets the flags
// that the mount has at the instant it is attached, so they are set before.
// With the source's own propagation left on, what is mounted beneath it later
// would appear in the sandbox, writable through a read-only grant.
func (k *Kernel) Bind(source, target *beneath.Dir, flags Flags) (Record, error) {
	flags |= NoSUID | NoDev
	fd, err := clone(source)
	if err != nil {
		return Record{}, wrap("clone source", source, err)
	}
	defer unix.Close(fd)
	if err := setattr(fd, unix.AT_RECURSIVE, flags, unix.MS_PRIVATE); err != nil {
		return Record{}, wrap("set attributes", source, err)
	}
	if err := attach(fd, target); err != nil {
		return Record{}, wrap("attach", target, err)
	}
	return k.record(fd, flags), nil
}

// Unmount implements Table.
func (k *Kernel) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return wrap("umount", dir, beneath.ErrEscapes)
	}
	// umount2 takes no descriptor. This name leads through one, so that only
	// the last component is looked up again.
	err := unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name), flags)
	switch {
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		err = fmt.Errorf("%w: %w", ErrNotMounted, err)
	}
	if err != nil {
		return fmt.Errorf("umount %s: %w", path.Join(dir.Path(), name), err)
	}
	return nil
}

// At implements Table.
func (k *Kernel) At(dir *beneath.Dir) (Place, error) {
	p, stx, err := place(dir.Fd())
	if err != nil {
		return Place{}, wrap("statx", dir, err)
	}
	p.MountRoot = stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	return p, nil
}

// InMemory implements Table.
func (k *Kernel) InMemory(dir *beneath.Dir) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir.Fd(), &fs); err != nil {
		return false, wrap("fstatfs", dir, err)
	}
	return fs.Type == unix.TMPFS_MAGIC, nil
}

// List implements Table.
func (k *Kernel) List() ([]Mount, error) {
	f, err := k.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ParseMountinfo(f)
}

func clone(dir *beneath.Dir) (int, error) {
	return unix.OpenTree(dir.Fd(), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
}

func attach(fd int, on *beneath.Dir) error {
	return unix.MoveMount(fd, "", on.Fd(), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

func setattr(fd int, how uint, flags Flags, propagation uint64) error {
	attr := unix.MountAttr{Attr_set: flags.attrs(), Propagation: propagation}
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|how, &attr)
}

func wrap(op string, dir *beneath.Dir, err error) error {
	return fmt.Errorf("%s %s: %w", op, dir.Path(), err)
}
