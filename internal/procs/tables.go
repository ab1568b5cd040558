package procs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/thread"
)

// Table is the whole mount table of one mount namespace.
type Table struct {
	// Process is in the namespace, or keeps it by a descriptor; MountNS is the
	// namespace's. Where only a thread of the process is in it, PID and Start are
	// the thread's, and Finder.Mounts takes them.
	Process
	// Mounts have their points counted from the namespace's root.
	Mounts []mnt.Mount
	// Err: there are no Mounts, because something of this process could not be
	// read; of which one cannot be told where PID is 0.
	Err error
}

// ErrTooLarge is returned where a Pod has more mounts, or longer descriptions of
// them, than are looked through.
var ErrTooLarge = errors.New("the Pod's mount tables are too large to look through")

// What is read of mount tables in one look. Any user may have fs.mount-max mounts
// (100,000) in each of any number of namespaces, each in a line of a MiB: what a
// tenant makes must not be the agent's work. A container has 20 to 200 mounts.
const (
	maxMounts    = 8192     // of one namespace
	maxAllMounts = 16384    // of all together
	maxTable     = 16 << 20 // bytes, of all together, before fields are cut
)

// Tables returns the mount table of every mount namespace that a thread of the
// processes is in, or that one of them keeps by an open descriptor (a namespace
// lives on without a process in it, and whoever has the descriptor can enter it).
//
// A namespace is read once, whole, by a thread that enters it: the mountinfo of
// a process shows only what is beneath the process's root, and anybody may
// chroot(2) in a user namespace of his own. No storage is touched. When ctx ends,
// so does the look.
//
// Errors: ErrCannotTell beside what was found, also for a namespace that is kept
// by nothing but a mount of it; with ErrTooLarge, or ctx's, where that was why. A
// Table with an Err says where.
func (f *Finder) Tables(ctx context.Context, ps []Process) ([]Table, error) {
	l := tableLook{finder: f, stop: ctx.Err, seen: make(map[uint64]error), lines: maxAllMounts, bytes: maxTable}
	for _, p := range ps {
		l.note(p, l.process(p, l.threads))
	}
	// Only then the descriptors: most lead to a namespace that a process is in.
	for _, p := range ps {
		l.note(p, l.process(p, l.descriptors))
	}
	l.mounted()
	return l.found, l.unread.err("mount tables")
}

// tableLook is one call of Tables.
type tableLook struct {
	finder       *Finder
	stop         func() error
	seen         map[uint64]error // why a namespace was not read, nil where it was
	found        []Table
	unread       doubt
	lines, bytes int // that may still be read
}

func (l *tableLook) note(p Process, err error) {
	if err != nil && !isGone(err) {
		l.unread.note(p.PID, err)
		l.found = append(l.found, Table{Process: p, Err: err})
	}
}

func (l *tableLook) process(p Process, look func(p Process, d procDir) error) error {
	if err := l.stop(); err != nil {
		return err
	}
	d, err := l.finder.reopen(p)
	if err != nil {
		return err
	}
	defer d.close()
	return look(p, d)
}

// threads reads the namespaces that p's threads are in.
func (l *tableLook) threads(p Process, d procDir) error {
	var unread doubt
	err := d.tasks(func(t task) {
		if t.fs {
			unread.note(t.tid, l.thread(p, d, t))
		}
	})
	return unread.or(err)
}

func (l *tableLook) thread(p Process, d procDir, t task) error {
	ns, err := d.mountNS(t.at)
	if err != nil {
		return err
	}
	if err, seen := l.seen[ns]; seen {
		return err
	}
	p.MountNS = ns
	if t.at != "" {
		st, err := d.stat(t.at)
		if err != nil {
			return err
		}
		p.PID, p.Start = t.tid, st.start
	}
	fd, err := openat(d.fd, t.at+"ns/mnt", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return l.enter(p, fd)
}

// descriptors reads the namespaces that p keeps.
func (l *tableLook) descriptors(p Process, d procDir) error {
	var unread doubt
	err := d.tasks(func(t task) {
		if !t.files {
			return
		}
		unread.note(t.tid, d.each(t.at+"fd", func(n int) bool {
			err := l.stop()
			if err == nil {
				unread.note(t.tid, l.descriptor(p, d, fmt.Sprintf("%sfd/%d", t.at, n)))
			}
			unread.note(t.tid, err)
			return err == nil
		}))
	})
	return unread.or(err)
}

func (l *tableLook) descriptor(p Process, d procDir, name string) error {
	link, err := d.readlink(name)
	ns, is := namespaceNumber(link)
	if err != nil || !is {
		return err
	}
	if err, seen := l.seen[ns]; seen {
		return err
	}
	// For its name alone at first: by now it may be another file, one whose opening
	// waits for whoever the tenant likes.
	at, err := openat(d.fd, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	self := fmt.Sprintf("/proc/self/fd/%d", at)
	var buf [64]byte
	n, err := unix.Readlink(self, buf[:])
	if err != nil || string(buf[:n]) != link {
		return err
	}
	fd, err := openat(unix.AT_FDCWD, self, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p.MountNS = ns
	return l.enter(p, fd)
}

// mounted finds namespaces that a mount keeps. The way to one leads through
// places that a tenant made: none is entered.
func (l *tableLook) mounted() {
	for _, t := range l.found {
		for _, m := range t.Mounts {
			ns, is := namespaceNumber(m.Root)
			if _, seen := l.seen[ns]; is && m.FSType == "nsfs" && !seen {
				l.note(Process{}, fmt.Errorf("a mount at %q keeps a mount namespace that no process is in", m.Point))
			}
		}
	}
}

// namespaceNumber reads "mnt:[4026531841]".
func namespaceNumber(link string) (uint64, bool) {
	number, ok := strings.CutPrefix(link, "mnt:[")
	if !ok {
		return 0, false
	}
	ns, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return ns, err == nil
}

// enter reads the whole table of the mount namespace ns, which is p's.
func (l *tableLook) enter(p Process, ns int) error {
	if l.lines <= 0 || l.bytes <= 0 {
		return ErrTooLarge
	}
	// Opened here, because in there the name may lead anywhere.
	proc, err := openat(unix.AT_FDCWD, "/proc", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	table := -1
	l.finder.readOfProcesses.Add(1)
	err = thread.Own(func() error {
		// setns refuses a thread that shares its working directory.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		// Sets the thread's root to the namespace's, whatever the process's is.
		if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		// The open file keeps the namespace and the root it was opened with.
		var err error
		table, err = openat(proc, "thread-self/mountinfo", unix.O_RDONLY)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(table)
	r := &boundedTable{r: fdReader(table), look: l, lines: maxMounts}
	ms, err := mnt.ParseMountinfo(&boundedFields{r: r})
	l.seen[p.MountNS] = err
	if err != nil {
		return err
	}
	l.found = append(l.found, Table{Process: p, Mounts: ms})
	return nil
}

// boundedTable ends with an error where a look has read enough, or is given up.
type boundedTable struct {
	r     io.Reader
	look  *tableLook
	lines int // that this table may still have
}

// Read is io.Reader's.
func (b *boundedTable) Read(p []byte) (int, error) {
	if err := b.look.stop(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	lines := bytes.Count(p[:n], []byte{'\n'})
	b.lines -= lines
	b.look.lines -= lines
	b.look.bytes -= n
	if b.lines < 0 || b.look.lines < 0 || b.look.bytes < 0 {
		return 0, ErrTooLarge
	}
	return n, err
}
