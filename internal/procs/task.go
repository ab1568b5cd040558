package procs

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// task is a thread, and what is to be looked at through it because no thread
// before it shares it.
type task struct {
	tid   int
	at    string // prefix of its files in the process's directory
	files bool   // its descriptor table
	fs    bool   // its root and working directory, and its mount namespace
	mm    bool   // its memory
}

// tasks calls yield with every thread through which something is to be looked
// at: the first always, others where they have something of their own.
//
// A mount namespace is not compared by itself: unshare(2) of one unshares the
// working directory too, and setns(2) refuses a thread that shares it.
func (d procDir) tasks(yield func(t task)) error {
	var files, fs, mm sharing
	return d.each("task", func(tid int) bool {
		t := task{tid: tid}
		if tid != d.pid {
			t.at = "task/" + strconv.Itoa(tid) + "/"
		}
		t.files = files.isNew(tid, kcmpFiles)
		t.fs = fs.isNew(tid, kcmpFS)
		t.mm = mm.isNew(tid, kcmpVM)
		if t.files || t.fs || t.mm {
			yield(t)
		}
		return true
	})
}

// What kcmp(2) compares.
const (
	kcmpVM    = 1
	kcmpFiles = 2
	kcmpFS    = 3
)

// sharing remembers the last thread that had a thing of its own. Comparing with
// the last alone keeps the memory constant and the comparisons few. Threads that
// take turns with two tables are looked at more often than needed, never less.
type sharing struct {
	last int // a tid, 0 before the first
}

func (s *sharing) isNew(tid int, what uintptr) bool {
	if s.last != 0 {
		r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(s.last), uintptr(tid), what, 0, 0, 0)
		// A kernel without kcmp, no right to compare, a thread that has just
		// ended: then it is looked at, and says so itself.
		if errno == 0 && r == 0 {
			return false
		}
	}
	s.last = tid
	return true
}

// alive returns the prefix of a thread that runs: the first, unless it exited
// before others. ErrGone when none is left.
func (d procDir) alive() (string, error) {
	st, err := d.stat("")
	if err != nil {
		return "", err
	}
	if !st.exited() {
		return "", nil
	}
	at, found := "", ErrGone
	err = d.each("task", func(tid int) bool {
		prefix := "task/" + strconv.Itoa(tid) + "/"
		if st, err := d.stat(prefix); err == nil && !st.exited() {
			at, found = prefix, nil
		}
		return found != nil
	})
	if err != nil {
		return "", err
	}
	return at, found
}
