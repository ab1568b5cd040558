package procs

import (
	"bufio"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/bug"
)

// scan is one pass over every process of the node. Its fields are read once
// done is closed.
type scan struct {
	done   chan struct{}
	pods   map[string][]int  // pids by Pod, zombies among them
	own    map[string]string // the reader's own cgroups, path by controllers
	unread doubt             // processes whose cgroup could not be read
	err    error             // the pass as a whole failed
}

// join returns a scan that starts after the call: a new one, or the one that
// waits for the running one to end.
func (f *Finder) join() *scan {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running == nil {
		f.running = &scan{done: make(chan struct{})}
		go f.run(f.running)
		return f.running
	}
	if f.next == nil {
		f.next = &scan{done: make(chan struct{})}
	}
	return f.next
}

// run makes the scan, and starts the one that was asked for meanwhile.
func (f *Finder) run(s *scan) {
	if err := bug.Catch(func() error { s.read(f.dir); return nil }); err != nil {
		s.err = err
	}
	f.mu.Lock()
	// Replaced whole: nothing is kept of a Pod that this scan has not seen.
	f.last = s
	f.running, f.next = f.next, nil
	if f.running != nil {
		go f.run(f.running)
	}
	f.mu.Unlock()
	close(s.done)
}

func (s *scan) read(dir string) {
	root, err := os.Open(dir)
	if err != nil {
		s.err = fmt.Errorf("scanning processes: %w", err)
		return
	}
	fd := int(root.Fd())
	s.pods = make(map[string][]int)
	r := bufio.NewReaderSize(nil, lineBuffer)
	s.own, err = ownCgroups(fd, r)
	if err != nil && !isGone(err) {
		s.unread.note(os.Getpid(), err)
	}
	if err := eachNumber(root, func(pid int) bool { s.look(fd, pid, r); return true }); err != nil {
		s.err = fmt.Errorf("scanning processes: %w", err)
	}
}

// lineBuffer is how much of a line counts. The kernel cuts a cgroup's path at
// PATH_MAX, 4 KiB.
const lineBuffer = 8 << 10

func (s *scan) look(proc, pid int, r *bufio.Reader) {
	fd, err := openat(proc, strconv.Itoa(pid)+"/cgroup", unix.O_RDONLY)
	if err != nil {
		s.unread.note(pid, err)
		return
	}
	defer unix.Close(fd)
	r.Reset(fdReader(fd))
	ms, err := membersIn(r, s.own)
	s.unread.note(pid, err)
	for _, m := range ms {
		s.pods[m.pod] = append(s.pods[m.pod], pid)
	}
}

// ownCgroups reads where the calling process itself is, path by controllers.
func ownCgroups(proc int, r *bufio.Reader) (map[string]string, error) {
	fd, err := openat(proc, "self/cgroup", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	own := make(map[string]string)
	r.Reset(fdReader(fd))
	err = lines(r, func(line []byte) bool {
		if controllers, path, ok := cutCgroup(string(line)); ok {
			own[controllers] = path
		}
		return true
	})
	return own, err
}
