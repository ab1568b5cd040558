package mnt

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// FUSE opens a FUSE device and describes the filesystem that whoever has the device
// serves: the first reader of it. kind is shown as "fuse.KIND". Every user may enter
// (allow_other), and the kernel checks owners and modes (default_permissions), which
// the server then need not. The device must stay open until Mount has returned; a
// copy that is kept longer keeps the kernel from noticing that the server has ended.
func FUSE(kind, source string) (Filesystem, *os.File, error) {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w: fuse: %w", ErrNoFilesystem, err)
	}
	if err != nil {
		return Filesystem{}, nil, err
	}
	fd := strconv.Itoa(int(device.Fd()))
	return Filesystem{
		Type: "fuse", Source: cut(source),
		Settings: []Setting{
			{"subtype", kind},
			{"fd", fd},
			{"rootmode", "40000"},
			{"user_id", "0"},
			{"group_id", "0"},
			{"allow_other", ""},
			{"default_permissions", ""},
		},
	}, device, nil
}

// maxText is the longest text that fsconfig(2) takes.
const maxText = 255

// cut shortens what is only to be read by people.
func cut(source string) string {
	if len(source) <= maxText {
		return source
	}
	end := maxText - len("…")
	for !utf8.RuneStart(source[end]) {
		end--
	}
	return source[:end] + "…"
}

// connection is the kernel's Connection: the control file of this connection. It keeps
// neither the connection nor a mount, and once the connection has gone it is that of
// none, whatever filesystem has the device number by then.
type connection struct{ abort *os.File }

func (c connection) Close() { c.abort.Close() }

func (c connection) Abort() error {
	if _, err := c.abort.WriteString("1"); err != nil {
		return fmt.Errorf("abort a FUSE connection: %w", err)
	}
	return nil
}

// Connection implements Table. It goes through a mount of the control filesystem that is
// attached nowhere: a container does not see the node's.
func (k *Kernel) Connection(dev Dev) (Connection, error) {
	file, err := control(dev)
	if err != nil {
		return nil, fmt.Errorf("open the FUSE connection %s: %w", dev, err)
	}
	return connection{file}, nil
}

func control(dev Dev) (*os.File, error) {
	fd, err := superblock(Filesystem{Type: "fusectl", Source: "none"})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	mfd, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mfd)
	// The folder of a connection is called by its whole device number, which is the
	// minor alone: FUSE has major 0.
	file, err := unix.Openat(mfd, fmt.Sprintf("%d/abort", dev.Minor), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(file), "abort"), nil
}

// moveMountBeneath is MOVE_MOUNT_BENEATH (Linux 6.5), which x/sys does not name.
const moveMountBeneath = 0x200

// Swap implements Table. The new mount is put beneath the old one, which is then
// detached: there is no instant without a mount. Before Linux 6.5 the old one is
// detached first. Nothing is ever attached on top: dead mounts would pile up.
//
// Where the old one cannot be detached, the new one stays beneath it, where nobody sees
// it and nothing takes it away but the end of the old one: so a Swap begins with what
// an earlier one has left, and makes nothing before that has gone.
func (k *Kernel) Swap(m Detached, dir *beneath.Dir, name string) (Record, error) {
	d, ok := m.(*detached)
	if !ok {
		return Record{}, wrap("swap", dir, fmt.Errorf("a mount of another table: %T", m))
	}
	if err := k.unpile(dir, name); err != nil {
		return Record{}, err
	}
	old, err := k.openMount(dir, name)
	if err != nil {
		return Record{}, err
	}
	err = unix.MoveMount(d.fd, "", old.Fd(), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveMountBeneath)
	old.Close()
	if errors.Is(err, unix.EINVAL) {
		return k.replace(d, dir, name)
	}
	if err != nil {
		return Record{}, wrap("mount beneath", dir, err)
	}
	if err := k.Unmount(dir, name, true); err != nil {
		return Record{}, err
	}
	return k.record(d.fd, d.flags), nil
}

// openMount opens the root of the mount on the directory name in dir. Errors:
// ErrNotMounted.
func (k *Kernel) openMount(dir *beneath.Dir, name string) (*beneath.Dir, error) {
	root, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	place, err := k.At(root)
	if err == nil && !place.MountRoot {
		err = wrap("swap", dir, ErrNotMounted)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// unpile detaches what stands on another mount of the same place, so that one is left.
func (k *Kernel) unpile(dir *beneath.Dir, name string) error {
	for {
		piled, err := k.piled(dir, name)
		if err != nil || !piled {
			return err
		}
		if err := k.Unmount(dir, name, true); err != nil {
			return err
		}
	}
}

// piled tells whether the mount on the directory name in dir stands on another one.
func (k *Kernel) piled(dir *beneath.Dir, name string) (bool, error) {
	top, err := k.openMount(dir, name)
	if err != nil {
		return false, err
	}
	defer top.Close()
	var stx unix.Statx_t
	if err := unix.Statx(top.Fd(), "", statxFlags, unix.STATX_MNT_ID, &stx); err != nil {
		return false, wrap("statx", top, err)
	}
	mounts, err := k.List()
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(mounts, func(m Mount) bool { return uint64(m.ID) == stx.Mnt_id })
	return i >= 0 && slices.ContainsFunc(mounts, func(on Mount) bool {
		return on.ID == mounts[i].Parent && on.Point == mounts[i].Point
	}), nil
}

// replace is Swap for kernels that mount beneath nothing. Where the new mount cannot be
// attached, the old one comes back.
func (k *Kernel) replace(d *detached, dir *beneath.Dir, name string) (Record, error) {
	old, err := k.openMount(dir, name)
	if err != nil {
		return Record{}, err
	}
	defer old.Close()
	before, err := clone(old)
	if err != nil {
		return Record{}, wrap("clone", old, err)
	}
	defer unix.Close(before)
	if err := setattr(before, unix.AT_RECURSIVE, 0, unix.MS_PRIVATE); err != nil {
		return Record{}, wrap("make private", old, err)
	}
	if err := k.Unmount(dir, name, true); err != nil {
		return Record{}, err
	}
	rec, err := k.attachAt(d, dir, name)
	if err == nil {
		return rec, nil
	}
	back := unix.MoveMount(before, "", dir.Fd(), name, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if back != nil {
		back = wrap("put back what was there in", dir, back)
	}
	return Record{}, errors.Join(err, back)
}

func (k *Kernel) attachAt(d *detached, dir *beneath.Dir, name string) (Record, error) {
	target, err := dir.OpenTarget(name)
	if err != nil {
		return Record{}, err
	}
	defer target.Close()
	return k.Attach(d, target)
}
