package procs

import (
	"bufio"
	"bytes"
	"context"
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
	DetachedFolder   = "folder on a detached mount"
	FilesInFlight    = "socket with descriptors in flight"
	FilesInRing      = "io_uring with registered files"
)

// Holding is one reason why a mount is in use.
type Holding struct {
	PID  int
	What string // OpenFile …
	// Path is how /proc names it, in the process's own namespace. A tenant chose
	// it: quote it.
	Path string
	// ID is the mountinfo id, of those asked for, that Holding found it by.
	ID int
	// Dev is the filesystem, of those asked for, that Loose found it by; none where
	// it may be of any.
	Dev mnt.Dev
}

// holdingLimit is how many open files, and how many mapped ones, are reported
// of one mount or filesystem. One is enough to be busy, a person reads a few, and a process
// may have a million.
const holdingLimit = 8

// Holding tells what the processes have open, map, or stand in on one of the
// mounts: ids are mountinfo ids, of whatever mount namespace. An id is not used twice on a node at any time, so a descriptor that a process was
// handed from another namespace is found too, and so is one on a mount that has
// been detached since, where the id was read before.
//
// Open files are found without touching storage. Working and root directories,
// programs and mapped files are opened for their names alone (O_PATH), which
// may ask an NFS server whether they are still there: put a deadline on the
// call. While it opens them it makes the mount busy itself: do not unmount
// meanwhile.
//
// A process that ends meanwhile holds nothing. When ctx ends, so does the look.
// Errors: ErrCannotTell beside what was found.
func (f *Finder) Holding(ctx context.Context, ps []Process, ids map[int]bool) ([]Holding, error) {
	h := holders{finder: f, stop: ctx.Err, match: func(id, _ int, _ string) (Holding, bool) {
		return Holding{ID: id}, ids[id]
	}}
	return h.all(ps, "holders of a mount")
}

// holders is one call of Holding or Loose.
type holders struct {
	finder *Finder
	stop   func() error
	// match tells whether to report what a link in /proc, a name in a directory,
	// leads to, and by what it was found: the id is its mount's.
	match func(id, dir int, link string) (Holding, bool)
	// opaque: descriptors are reported that keep files nothing else shows.
	opaque bool
	found  []Holding
	counts map[Holding]int
	unread doubt
}

func (h *holders) all(ps []Process, op string) ([]Holding, error) {
	h.counts = make(map[Holding]int)
	for _, p := range ps {
		err := h.stop()
		if err == nil {
			err = h.process(p)
		}
		h.unread.note(p.PID, err)
	}
	return h.found, h.unread.err(op)
}

// add reports what was found by, unless there is enough of its kind.
func (h *holders) add(by Holding, d procDir, what, link string) {
	if by.What == "" {
		by.What = what
	}
	by.Path = ""
	if h.counts[by]++; h.counts[by] > holdingLimit {
		return
	}
	by.PID, by.Path = d.pid, d.name(link)
	h.found = append(h.found, by)
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
	err := d.each(at+"fdinfo", func(n int) bool {
		err := h.stop()
		if err == nil {
			err = h.file(d, at, strconv.Itoa(n))
		}
		unread.note(d.pid, err)
		return h.stop() == nil
	})
	return unread.or(err)
}

func (h *holders) file(d procDir, at, name string) error {
	fd, err := openat(d.fd, at+"fdinfo/"+name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info, id, err := fdinfo(fd)
	if err != nil {
		return err
	}
	link := at + "fd/" + name
	if by, is := h.match(id, d.fd, link); is {
		h.add(by, d, OpenFile, link)
	}
	if !h.opaque {
		return nil
	}
	what, err := keeps(info, fd)
	if what != "" {
		h.add(Holding{}, d, what, link)
	}
	return err
}

// link looks where one of the process's links leads, without opening the file.
func (h *holders) link(d procDir, dir int, at, name, what string) error {
	id, err := linkMountID(dir, at+name)
	if err != nil {
		return err
	}
	if by, is := h.match(id, dir, at+name); is {
		h.add(by, d, what, at+name)
	}
	return nil
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
	err = lines(bufio.NewReaderSize(fdReader(fd), lineBuffer), func(line []byte) bool {
		err := h.stop()
		if area, _, ok := mapping(string(line)); ok && err == nil {
			err = h.link(procDir{fd: dir, pid: d.pid}, dir, "map_files/", area, MappedFile)
		}
		unread.note(d.pid, err)
		return h.stop() == nil
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

// mountID reads "mnt_id:" from a file in the format of proc_pid_fdinfo(5).
func mountID(dir int, name string) (int, error) {
	fd, err := openat(dir, name, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	_, id, err := fdinfo(fd)
	return id, err
}

// fdinfo reads the beginning of an fdinfo file and the "mnt_id:" in it. The line
// is among the first; what some kinds of files append may be long.
func fdinfo(fd int) (info []byte, id int, err error) {
	buf := make([]byte, 512)
	n, err := fdReader(fd).Read(buf)
	if err != nil {
		return nil, 0, err
	}
	_, rest, ok := bytes.Cut(buf[:n], []byte("mnt_id:"))
	value, _, end := bytes.Cut(rest, []byte{'\n'})
	if !ok || !end {
		return nil, 0, errFdinfo
	}
	id, err = strconv.Atoi(string(bytes.TrimSpace(value)))
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errFdinfo, err)
	}
	return buf[:n], id, nil
}
