package procs

import (
	"context"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// Loose tells what the processes have open, map, or stand in on one of the
// filesystems devs through a mount that is not among shown, the mountinfo ids of
// those that stand. Such a mount has been detached, or its namespace has ended:
// anybody can open a file through /proc/PID/root of a process in a namespace of
// his own and then end that process, and no mount table shows the file's mount
// any more.
//
// With no Dev, and whatever devs are, it reports what may lead to any filesystem:
// a folder on a mount that no table shows (mounts that are locked together stay
// so when their namespace ends, and whoever has the folder can walk from one to
// the next), and descriptors that keep files which nothing else shows.
//
// What the container runtime opened on the node and handed on is left out. Not
// found are files on a filesystem with a device number per subvolume (btrfs).
// The deadline that Holding needs, this needs too.
//
// Errors: ErrCannotTell beside what was found.
func (f *Finder) Loose(ctx context.Context, ps []Process, devs map[mnt.Dev]bool, shown map[int]bool) ([]Holding, error) {
	found, err := f.loose(ctx, ps, devs, shown)
	if len(found) == 0 {
		return nil, err
	}
	// The node's own table is read only where there is something to compare.
	known := maps.Clone(shown)
	if known == nil {
		known = make(map[int]bool)
	}
	for _, m := range f.nodeMounts() {
		known[m.ID] = true
	}
	return f.loose(ctx, ps, devs, known)
}

func (f *Finder) loose(ctx context.Context, ps []Process, devs map[mnt.Dev]bool, shown map[int]bool) ([]Holding, error) {
	h := holders{finder: f, stop: ctx.Err, opaque: true, match: func(id, dir int, link string) (Holding, bool) {
		if shown[id] {
			return Holding{}, false
		}
		dev, folder := deviceOf(dir, link)
		switch {
		case devs[dev]:
			return Holding{Dev: dev}, true
		case folder:
			return Holding{What: DetachedFolder}, true
		}
		return Holding{}, false
	}}
	return h.all(ps, "files on detached mounts")
}

// nodeMounts is the table of the node's first process, nil where it cannot be
// read.
func (f *Finder) nodeMounts() []mnt.Mount {
	f.readOfNode.Add(1)
	fd, err := openat(unix.AT_FDCWD, f.dir+"/1/mountinfo", unix.O_RDONLY)
	if err != nil {
		return nil
	}
	ms, err := parseMounts(fd)
	if err != nil {
		return nil
	}
	return ms
}

// deviceOf is the device of the file that a link in /proc leads to, and whether
// it is a directory, without a question to its storage.
func deviceOf(dir int, link string) (dev mnt.Dev, folder bool) {
	var stx unix.Statx_t
	if err := unix.Statx(dir, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &stx); err != nil {
		return mnt.Dev{}, false
	}
	return mnt.Dev{Major: stx.Dev_major, Minor: stx.Dev_minor}, stx.Mode&unix.S_IFMT == unix.S_IFDIR
}
