package procs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// What a Holding can be.
const (
	OpenFile         = "open file"
	WorkingDirectory = "working directory"
	RootDirectory    = "root directory"
	MappedFile       = "mapped file"
	RunningProgram   = "running program"
	MountBeneath     = "mount" // another mount that stands on the one asked for
)

// Holding is one reason why a mount is in use.
type Holding struct {
	PID  int
	What string // OpenFile …
	// Path is how /proc names it, in the process's own namespace; for a mount,
	// where it stands there. A tenant chose it: quote it.
	Path string
}

// holdingLimit is how many open files, and how many mapped ones, are reported
// of one thread. One is enough to be busy, a person reads a few, and a process
// may have a million.
const holdingLimit = 8

// Holding tells what the processes have open, map, or stand in on one of the
// mounts: ids are mountinfo ids, by the mount namespace they were read in. An id
// is not used twice on a node at any time, so a descriptor that a process was
// handed from another namespace is found too, and so is one on a mount that has
// been detached since, where the id was read before.
//
// Open files are found without touching storage. Working and root directories,
// programs and mapped files are opened for their names alone (O_PATH), which
// may ask an NFS server whether they are still there: put a deadline on the
// call. While it opens them it makes the mount busy itself: do not unmount
// meanwhile.
//
// A process that ends meanwhile holds nothing. Errors: ErrCannotTell beside
// what was found.
func (f *Finder) Holding(ps []Process, ids map[uint64]map[int]bool) ([]Holding, error) {
	all := make(map[int]bool)
	for _, in := range ids {
		for id, is := range in {
			all[id] = all[id] || is
		}
	}
	h := holders{finder: f, ids: all, wanted: func(id, _ int, _ string) bool { return all[id] }}
	seen := make(map[uint64]bool)
	for _, p := range ps {
		h.unread.note(p.PID, h.process(p))
		h.unread.note(p.PID, f.namespaces(p, seen, func(_ Process, ms []mnt.Mount) { h.beneath(p.PID, ms) }))
	}
	return h.found, h.unread.err("holders of a mount")
}

// holders is one call of Holding or Loose.
type holders struct {
	finder *Finder
	ids    map[int]bool
	// wanted tells whether to report what a link in /proc, a name in a directory,
	// leads to: the id is its mount's.
	wanted func(id, dir int, link string) bool
	found  []Holding
	unread doubt
}

func (h *holders) add(pid int, what, path string) {
	h.found = append(h.found, Holding{PID: pid, What: what, Path: path})
}

// beneath finds what is mounted on the mounts: umount2(2) calls them busy for
// it, though nobody uses it.
func (h *holders) beneath(pid int, table []mnt.Mount) {
	for _, m := range table {
		if h.ids[m.Parent] && !h.ids[m.ID] {
			h.add(pid, MountBeneath, m.Point)
		}
	}
}

func (h *holders) process(p Process) error {
	d, err := h.finder.reopen(p)
	if err != nil {
		return err
	}
	defer d.close()
	return d.tasks(func(t task) {
		if t.files {
			h.unread.note(t.tid, h.files(d, t.at))
		}
		if t.fs {
			h.unread.note(t.tid, h.link(d, d.fd, t.at, "cwd", WorkingDirectory))
			h.unread.note(t.tid, h.link(d, d.fd, t.at, "root", RootDirectory))
		}
		if t.mm {
			h.unread.note(t.tid, h.link(d, d.fd, t.at, "exe", RunningProgram))
			h.unread.note(t.tid, h.maps(d, t))
		}
	})
}

// files looks through a descriptor table. One entry that cannot be read does
// not hide the others.
func (h *holders) files(d procDir, at string) error {
	var unread doubt
	left := holdingLimit
	err := d.each(at+"fdinfo", func(n int) bool {
		name := strconv.Itoa(n)
		id, err := mountID(d.fd, at+"fdinfo/"+name)
		unread.note(d.pid, err)
		if err == nil && h.wanted(id, d.fd, at+"fd/"+name) {
			h.add(d.pid, OpenFile, d.name(at+"fd/"+name))
			left--
		}
		return left > 0
	})
	return unread.or(err)
}

// link looks where one of the process's links leads, without opening the file.
func (h *holders) link(d procDir, dir int, at, name, what string) error {
	id, err := linkMountID(dir, at+name)
	if err == nil && h.wanted(id, dir, at+name) {
		h.add(d.pid, what, d.name(at+name))
	}
	return err
}

// maps looks through a memory map. The links of map_files are in the directory
// of a thread's own number alone, not in "task".
func (h *holders) maps(d procDir, t task) error {
	dir := d.fd
	if t.at != "" {
		own, err := h.finder.open(t.tid)
		if err != nil {
			return err
		}
		defer own.close()
		dir = own.fd
	}
	fd, err := openat(d.fd, t.at+"maps", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var unread doubt
	left := holdingLimit
	err = lines(bufio.NewReaderSize(fdReader(fd), lineBuffer), func(line []byte) bool {
		area, path, ok := mapping(string(line))
		if !ok {
			return true
		}
		id, err := linkMountID(dir, "map_files/"+area)
		unread.note(d.pid, err)
		if err == nil && h.wanted(id, dir, "map_files/"+area) {
			h.add(d.pid, MappedFile, path)
			left--
		}
		return left > 0
	})
	return unread.or(err)
}

// mapping takes from a line of proc_pid_maps(5) the name that map_files has for
// the area, and the file's path; ok only where a file is mapped. Memory that is
// no file's has inode 0, and so may a file on a FUSE filesystem.
func mapping(line string) (area, path string, ok bool) {
	var fields [5]string // range, permissions, offset, device, inode; the rest is the path
	for i := range fields {
		fields[i], line, ok = strings.Cut(strings.TrimLeft(line, " "), " ")
		if !ok && i < len(fields)-1 {
			return "", "", false
		}
	}
	path = strings.TrimLeft(line, " ")
	from, to, ok := strings.Cut(fields[0], "-")
	if !ok || fields[4] == "0" && !strings.HasPrefix(path, "/") {
		return "", "", false
	}
	// maps pads addresses to 8 digits, map_files refuses a leading zero.
	return unpad(from) + "-" + unpad(to), path, true
}

func unpad(hex string) string {
	if s := strings.TrimLeft(hex, "0"); s != "" {
		return s
	}
	return "0"
}

// name is what /proc calls a link's target, "" where it cannot be read: it
// serves a message only.
func (d procDir) name(link string) string {
	s, _ := d.readlink(link)
	return s
}

// linkMountID is the mountinfo id of the mount that a link in /proc leads to.
func linkMountID(dir int, name string) (int, error) {
	fd, err := openat(dir, name, unix.O_PATH)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return mountID(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fdinfo/%d", fd))
}

var errFdinfo = errors.New("unknown format of /proc/PID/fdinfo")

// mountID reads "mnt_id:" from a file in the format of proc_pid_fdinfo(5). The
// line is among the first; what some kinds of files append may be long and is
// not read.
func mountID(dir int, name string) (int, error) {
	fd, err := openat(dir, name, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var buf [512]byte
	n, err := fdReader(fd).Read(buf[:])
	if err != nil {
		return 0, err
	}
	_, rest, ok := bytes.Cut(buf[:n], []byte("mnt_id:"))
	value, _, end := bytes.Cut(rest, []byte{'\n'})
	if !ok || !end {
		return 0, errFdinfo
	}
	id, err := strconv.Atoi(string(bytes.TrimSpace(value)))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errFdinfo, err)
	}
	return id, nil
}
