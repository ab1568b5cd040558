package procs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// Copy is a mount in the namespace of a process. Where only a thread of the
// process is in that namespace, PID and Start are the thread's, and
// Finder.Mounts takes them.
type Copy struct {
	Process
	Mount mnt.Mount
}

// Mounts returns the mount table as the process sees it: what its root
// directory hides is not in it, and points are as it would name them.
//
// Errors: ErrGone.
func (f *Finder) Mounts(p Process) ([]mnt.Mount, error) {
	ms, err := f.mounts(p)
	if isGone(err) {
		err = ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("mounts of process %d: %w", p.PID, err)
	}
	return ms, nil
}

func (f *Finder) mounts(p Process) ([]mnt.Mount, error) {
	d, err := f.reopen(p)
	if err != nil {
		return nil, err
	}
	defer d.close()
	at, err := d.alive()
	if err != nil {
		return nil, err
	}
	fd, err := openat(d.fd, at+"mountinfo", unix.O_RDONLY)
	if errors.Is(err, unix.EINVAL) {
		// It has ended since: a process gives up its namespaces first.
		err = ErrGone
	}
	if err != nil {
		return nil, err
	}
	return parseMounts(fd)
}

// parseMounts reads a mount table to its end and closes it.
func parseMounts(fd int) ([]mnt.Mount, error) {
	defer unix.Close(fd)
	return mnt.ParseMountinfo(&boundedFields{r: fdReader(fd)})
}

// Copies returns every mount, in the mount namespaces of the processes, of the
// filesystem dev with root or a directory beneath it as its root. A root that
// has been deleted since is still one (mountinfo says "root//deleted"). Which
// of them are the Pod's own volumes is the caller's to know. A directory that
// was renamed has the new name in every mountinfo: take root from the mount
// as it is, not as it was when it was made.
//
// A namespace is read once, whole, by a thread that enters it: the mountinfo of
// a process shows only what is beneath the process's root, and anybody may
// chroot(2) in a user namespace of his own. Points are therefore counted from
// the namespace's root. No storage is touched.
//
// Errors: ErrCannotTell beside what was found.
func (f *Finder) Copies(ps []Process, dev mnt.Dev, root string) ([]Copy, error) {
	var found []Copy
	var unread doubt
	seen := make(map[uint64]bool)
	for _, p := range ps {
		err := f.namespaces(p, seen, func(in Process, ms []mnt.Mount) {
			for _, m := range ms {
				if m.Dev == dev && within(m.Root, root) {
					found = append(found, Copy{Process: in, Mount: m})
				}
			}
		})
		unread.note(p.PID, err)
	}
	return found, unread.err("copies of a mount")
}

// within compares roots by whole components.
func within(dir, root string) bool {
	const deleted = "//deleted"
	root = path.Clean(strings.TrimSuffix(root, deleted))
	return dir == root || root == "/" || strings.HasPrefix(dir, root+"/")
}

// namespaces calls yield with every mount namespace that a thread of p is in
// and that is not in seen, and puts it there.
func (f *Finder) namespaces(p Process, seen map[uint64]bool, yield func(in Process, ms []mnt.Mount)) error {
	d, err := f.reopen(p)
	if err != nil {
		return err
	}
	defer d.close()
	var unread doubt
	err = d.tasks(func(t task) {
		if t.fs {
			unread.note(t.tid, d.namespace(p, t, seen, yield))
		}
	})
	return unread.or(err)
}

func (d procDir) namespace(p Process, t task, seen map[uint64]bool, yield func(in Process, ms []mnt.Mount)) error {
	ns, err := d.mountNS(t.at)
	if err != nil || seen[ns] {
		return err
	}
	in := p
	in.MountNS = ns
	if t.at != "" {
		st, err := d.stat(t.at)
		if err != nil {
			return err
		}
		in.PID, in.Start = t.tid, st.start
	}
	ms, err := d.namespaceMounts(t.at)
	if err != nil {
		return err
	}
	seen[ns] = true
	yield(in, ms)
	return nil
}

// namespaceMounts reads the whole table of the thread's mount namespace.
func (d procDir) namespaceMounts(at string) ([]mnt.Mount, error) {
	ns, err := openat(d.fd, at+"ns/mnt", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(ns)
	// Opened here, because in there the name may lead anywhere.
	proc, err := openat(unix.AT_FDCWD, "/proc", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(proc)
	table := -1
	err = onLostThread(func() error {
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
		return nil, err
	}
	return parseMounts(table)
}

// onLostThread runs call on a thread that nothing else ever runs on and that
// ends with it.
func onLostThread(call func() error) error {
	answer := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends a thread with its locked goroutine.
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// All but the first, which it keeps, parked, for /proc/self to show. Held
			// here until another thread has done it.
			defer runtime.UnlockOSThread()
			answer <- onLostThread(call)
			return
		}
		answer <- call()
	}()
	return <-answer
}

// boundedFields passes a mount table on with every field cut to fieldLimit, so
// that a line cannot be longer than the parser of it takes. A mount's root has no
// limit (1.2 MiB were seen on 6.18): anybody can nest directories beyond PATH_MAX
// and bind the innermost in a user namespace, and one such line must not make a
// whole table unreadable. The fields that tell mounts apart are short, or differ
// in how they begin.
type boundedFields struct {
	r       io.Reader
	length  int  // of the field being passed on
	cutting bool // the rest of it is dropped
}

// fieldLimit, in bytes, leaves room for a path of PATH_MAX with every byte
// escaped. A line has four fields that may be long.
const fieldLimit = 16 << 10

// Read is io.Reader's.
func (b *boundedFields) Read(p []byte) (int, error) {
	for {
		n, err := b.r.Read(p)
		kept := b.cut(p[:n])
		if kept > 0 || err != nil || len(p) == 0 {
			return kept, err
		}
	}
}

// cut shortens the fields in p in place and returns what is left of it.
func (b *boundedFields) cut(p []byte) int {
	const escape = len(`\040`) // never cut in two
	kept := 0
	for _, c := range p {
		switch {
		case c == ' ' || c == '\n':
			b.length, b.cutting = 0, false
		case b.length >= fieldLimit || c == '\\' && b.length > fieldLimit-escape:
			b.cutting = true
		}
		if b.cutting {
			continue
		}
		if c != ' ' && c != '\n' {
			b.length++
		}
		p[kept] = c
		kept++
	}
	return kept
}
