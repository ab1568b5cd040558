package procs

import (
	"maps"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// Loose tells what the processes have open, map, or stand in on the filesystem
// dev through a mount that is not among shown, the mountinfo ids of those that
// stand. Such a mount has been detached, or its namespace has ended: anybody can
// open a file through /proc/PID/root of a process in a namespace of his own and
// then end that process, and no mount table shows the file's mount any more.
//
// What the container runtime opened on the node and handed on is left out. Not
// found are files on a filesystem with a device number per subvolume (btrfs).
// The deadline that Holding needs, this needs too.
//
// Errors: ErrCannotTell beside what was found.
func (f *Finder) Loose(ps []Process, dev mnt.Dev, shown map[int]bool) ([]Holding, error) {
	found, err := f.loose(ps, dev, shown)
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
	return f.loose(ps, dev, known)
}

func (f *Finder) loose(ps []Process, dev mnt.Dev, shown map[int]bool) ([]Holding, error) {
	h := holders{finder: f, wanted: func(id, dir int, link string) bool {
		return !shown[id] && deviceOf(dir, link) == dev
	}}
	for _, p := range ps {
		h.unread.note(p.PID, h.process(p))
	}
	return h.found, h.unread.err("files on detached mounts")
}

// nodeMounts is the table of the node's first process, nil where it cannot be
// read.
func (f *Finder) nodeMounts() []mnt.Mount {
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

// deviceOf is the device of the file that a link in /proc leads to, without a
// question to its storage.
func deviceOf(dir int, link string) mnt.Dev {
	var stx unix.Statx_t
	if err := unix.Statx(dir, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &stx); err != nil {
		return mnt.Dev{}
	}
	return mnt.Dev{Major: stx.Dev_major, Minor: stx.Dev_minor}
}
