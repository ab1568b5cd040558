package procs

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// Mounts returns the mount table as the process sees it: what its root
// directory hides is not in it, and points are as it would name them.
//
// Errors: ErrGone, ErrTooLarge.
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
	f.readOfProcesses.Add(1)
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
	l := tableLook{stop: func() error { return nil }, lines: maxAllMounts, bytes: maxTable}
	return mnt.ParseMountinfo(&boundedFields{r: &boundedTable{r: fdReader(fd), look: &l, lines: maxMounts}})
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
