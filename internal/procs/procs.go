// Package procs finds the processes of a Pod and what they see and hold.
//
// It asks /proc alone, and it asks every process: a Pod's cgroup has a
// different path for each kubelet driver, cgroup version, container runtime and
// degree of nesting, so no path is ever built. What does name the Pod in every
// one of them is a path component with the Pod's uid in it.
//
// A pid is no identity, because it is used again. Every look at a process goes
// through a descriptor of its /proc directory, which the kernel binds to that
// one process: once the process has ended, reading through it answers ESRCH,
// whoever has the number by then.
//
// Threads are looked at where they differ from their process. Any program may
// give one of its threads a working directory or a descriptor table of its own
// (unshare(2)), and one whose first thread has exited goes on in the others
// while its /proc directory looks like that of a zombie.
//
// A mount namespace without a process in it is found by the descriptor that keeps
// it. Of descriptors in flight in a unix socket, and of files registered with
// io_uring, /proc shows that there are some, not which: that is reported as a
// doubt. Not found are an io_uring of which no descriptor is left, what its
// requests still use, and a descriptor that is handed from process to process
// while they are looked at one after the other.
package procs

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// ErrGone is returned for a process that has ended, also where another one has
// its pid by now.
var ErrGone = errors.New("the process has ended")

// ErrCannotTell is returned where something could not be read: for want of the
// right to look into a process (ptrace(2)), or because /proc answers in a way
// this package does not know. What was found is returned beside it. It must
// never be read as "nothing is there".
var ErrCannotTell = errors.New("not every process can be looked into")

// Process is one process of a Pod. PID and Start together identify it for as
// long as the node runs.
type Process struct {
	PID int
	// Container is the id in the name of its cgroup, 64 hexadecimal digits,
	// "" where there is none. The Pod's sandbox (its pause process) has one too.
	Container string
	// MountNS is the inode of /proc/PID/ns/mnt, 0 where it could not be read.
	// For an instant after its start a container's first process is still in the
	// runtime's own mount namespace.
	MountNS uint64
	// Start is when the process started, in clock ticks after boot (field 22 of
	// /proc/PID/stat).
	Start uint64
}

// Finder looks for processes. It is safe for concurrent use.
type Finder struct {
	dir string

	readOfNode, readOfProcesses atomic.Int64

	mu sync.Mutex
	// A scan that runs is of no use to a caller that comes while it runs: it may
	// have passed a process that started just before the call. Such callers share
	// the next one.
	running, next *scan
	last          *scan // the newest that has ended, nil before the first
}

// Read says how many mount tables have been opened.
type Read struct {
	// Node is the node's first process's, with the mounts of every Pod; Processes are
	// those of processes.
	Node, Processes int64
}

// Read is how many mount tables this Finder has opened. Tests hold it against the
// rule that no grant costs a reading of the node's.
func (f *Finder) Read() Read {
	return Read{Node: f.readOfNode.Load(), Processes: f.readOfProcesses.Load()}
}

// New makes a Finder that reads the proc filesystem mounted at procDir
// ("/proc"). It must be the node's (hostPID), or most processes are missing.
func New(procDir string) *Finder { return &Finder{dir: procDir} }

// Of returns the processes of the Pod, by Start, then PID. Zombies are no
// processes, and neither is CRI-O's monitor, which lives in the Pod's cgroup
// but is the runtime's. No process is an empty result and no error.
//
// A call reads one small file of every process on the node, about 10 µs each;
// concurrent calls, for whatever Pods, share one scan. It finds every process
// that was the Pod's when it was called and still is when it returns.
//
// Errors: ErrCannotTell beside the processes found; others when /proc itself
// cannot be read or podUID is no uid.
func (f *Finder) Of(podUID string) ([]Process, error) {
	pod, err := podKey(podUID)
	if err != nil {
		return nil, err
	}
	s := f.join()
	<-s.done
	if s.err != nil {
		return nil, s.err
	}
	var found []Process
	unread := s.unread
	for _, pid := range s.pods[pod] {
		p, err := f.identify(pid, pod, s.own)
		unread.note(pid, err)
		if p.PID != 0 {
			found = append(found, p)
		}
	}
	sortByStart(found)
	return found, unread.err("processes of the pod " + podUID)
}

// Known returns those of the Pod's processes that the last scan found and that
// are still the Pod's, in the order of Of. It makes no scan: where it returns what
// the caller looks for, that is certain; where it does not, nothing is.
func (f *Finder) Known(podUID string) []Process {
	var found []Process
	for p := range f.known(podUID) {
		found = append(found, p)
	}
	sortByStart(found)
	return found
}

// known goes through what Known returns, in no order.
func (f *Finder) known(podUID string) iter.Seq[Process] {
	return func(yield func(Process) bool) {
		pod, err := podKey(podUID)
		f.mu.Lock()
		last := f.last
		f.mu.Unlock()
		if err != nil || last == nil {
			return
		}
		for _, pid := range last.pods[pod] {
			if p, _ := f.identify(pid, pod, last.own); p.PID != 0 && !yield(p) {
				return
			}
		}
	}
}

// Has tells whether the Pod has a process. While one that an earlier scan found
// is still the Pod's, no scan is made.
//
// Errors as of Of; ErrCannotTell only where no process was found.
func (f *Finder) Has(podUID string) (bool, error) {
	for range f.known(podUID) {
		return true, nil
	}
	ps, err := f.Of(podUID)
	if len(ps) > 0 {
		return true, nil
	}
	return false, err
}

// Started says when a process started, in clock ticks after boot, whosever it is.
// Errors: ErrGone.
func (f *Finder) Started(pid int) (uint64, error) {
	d, err := f.open(pid)
	if err != nil {
		return 0, err
	}
	defer d.close()
	st, err := d.stat("")
	if isGone(err) {
		err = ErrGone
	}
	return st.start, err
}

func sortByStart(ps []Process) {
	slices.SortFunc(ps, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID))
	})
}

// identify looks at one process again, closer than the scan did. The result is
// the zero Process with ErrGone unless it is alive and the Pod's; with another
// error it is what could be read.
func (f *Finder) identify(pid int, pod string, own map[string]string) (Process, error) {
	d, err := f.open(pid)
	if err != nil {
		return Process{}, err
	}
	defer d.close()
	ms, err := d.members(own)
	if err != nil {
		return Process{}, err
	}
	i := slices.IndexFunc(ms, func(m member) bool { return m.pod == pod })
	if i < 0 {
		return Process{}, ErrGone
	}
	st, err := d.stat("")
	if err != nil {
		return Process{}, err
	}
	at, err := d.alive()
	if err != nil {
		return Process{}, err
	}
	p := Process{PID: pid, Container: ms[i].container, Start: st.start}
	p.MountNS, err = d.mountNS(at)
	if isGone(err) {
		return Process{}, ErrGone
	}
	return p, err
}

// podKey is the form of a Pod's uid that members answer: systemd's slices have
// "_" where the uid has "-".
func podKey(podUID string) (string, error) {
	if podUID == "" || strings.ContainsFunc(podUID, func(r rune) bool { return !uidRune(r) }) {
		return "", fmt.Errorf("%q is no pod uid", podUID)
	}
	return strings.ReplaceAll(podUID, "_", "-"), nil
}

func uidRune(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '-' || r == '_' || r == '.'
}

// doubt collects what could not be read while everything else was.
type doubt struct {
	first error
}

// note remembers err. A process that has ended is in no doubt.
func (d *doubt) note(pid int, err error) {
	if err != nil && d.first == nil && !isGone(err) {
		d.first = fmt.Errorf("process %d: %w", pid, err)
	}
}

// or returns what was noted, else err, for a caller that notes it in turn.
func (d doubt) or(err error) error {
	if d.first != nil {
		return d.first
	}
	return err
}

func (d doubt) err(op string) error {
	if d.first == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", op, ErrCannotTell, d.first)
}
