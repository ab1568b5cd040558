package procs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procDir is an open /proc/PID directory. The kernel binds it to the process:
// it never comes to mean another one with the same pid.
//
// Methods take at, a prefix: "" is the process's first thread, "task/TID/"
// another one.
type procDir struct {
	fd  int
	pid int
}

// open opens the process's directory, whoever the process is. ErrGone when
// there is none.
func (f *Finder) open(pid int) (procDir, error) {
	fd, err := openat(unix.AT_FDCWD, f.dir+"/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY)
	if isGone(err) {
		return procDir{}, ErrGone
	}
	return procDir{fd: fd, pid: pid}, err
}

// reopen opens the directory of p, and of no other process with its pid. It may
// be a zombie, which has nothing to look at any more.
func (f *Finder) reopen(p Process) (procDir, error) {
	d, err := f.open(p.PID)
	if err != nil {
		return procDir{}, err
	}
	st, err := d.stat("")
	if isGone(err) || err == nil && st.start != p.Start {
		err = ErrGone
	}
	if err != nil {
		d.close()
		return procDir{}, err
	}
	return d, nil
}

func (d procDir) close() { _ = unix.Close(d.fd) }

// members reads the process's cgroup file.
func (d procDir) members(own map[string]string) ([]member, error) {
	fd, err := openat(d.fd, "cgroup", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return membersIn(bufio.NewReaderSize(fdReader(fd), lineBuffer), own)
}

// status is what this package needs of a stat file.
type status struct {
	state byte
	start uint64
}

// exited tells whether the thread has ended: Z, or X and x for one whose entry
// is just being removed. A process goes on in its other threads.
func (s status) exited() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

// stat reads the stat file.
func (d procDir) stat(at string) (status, error) {
	fd, err := openat(d.fd, at+"stat", unix.O_RDONLY)
	if err != nil {
		return status{}, err
	}
	defer unix.Close(fd)
	var buf [4096]byte // about 350 bytes on a real node
	n, err := io.ReadFull(fdReader(fd), buf[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return status{}, err
	}
	return parseStat(buf[:n])
}

var errStat = errors.New("unknown format of /proc/PID/stat")

// parseStat reads fields 3 and 22 of proc_pid_stat(5). Field 2 is a name the
// process chose, in parentheses: it may have blanks and parentheses itself, and
// no later field has a ")".
func parseStat(b []byte) (status, error) {
	i := bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[i+1:])) // from the third on
	const state, start = 0, 19
	if i < 0 || len(fields) <= start {
		return status{}, errStat
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return status{}, fmt.Errorf("%w: %w", errStat, err)
	}
	return status{state: fields[state][0], start: ticks}, nil
}

// mountNS reads the inode of the mount namespace, "mnt:[4026531841]".
func (d procDir) mountNS(at string) (uint64, error) {
	link, err := d.readlink(at + "ns/mnt")
	if err != nil {
		return 0, err
	}
	ns, ok := namespaceNumber(link)
	if !ok {
		return 0, fmt.Errorf("unknown format of /proc/PID/ns/mnt: %q", link)
	}
	return ns, nil
}

func (d procDir) readlink(name string) (string, error) {
	var buf [unix.PathMax]byte
	n, err := unix.Readlinkat(d.fd, name, buf[:])
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(buf[:n]), nil
}

// each calls yield with every numeric name in a directory of the process, in
// its order, until it answers false.
func (d procDir) each(dir string, yield func(n int) bool) error {
	fd, err := openat(d.fd, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	return eachNumber(os.NewFile(uintptr(fd), dir), yield)
}

// eachNumber calls yield with every number among the names in a directory, in
// its order, until it answers false. It closes the directory.
func eachNumber(dir *os.File, yield func(n int) bool) error {
	defer dir.Close()
	const batch = 512 // names held at a time, of what may be a million
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			n, err := strconv.Atoi(name)
			if err == nil && n >= 0 && !yield(n) {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// isGone tells whether err only says that the process, or the part of it that
// was asked for, is no longer there.
func isGone(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

// openat is openat(2). A plain call and not package os, whose files are offered
// to the poller first: a scan opens thousands.
func openat(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// fdReader reads a descriptor it does not own.
type fdReader int

// Read is read(2).
func (r fdReader) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(r), p)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// lines calls yield with every line of r until it answers false. A line longer
// than the reader's buffer is cut to it: what a process names itself may be of
// any length, and the memory for it must not be.
func lines(r *bufio.Reader, yield func(line []byte) bool) error {
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 && !yield(bytes.TrimSuffix(line, []byte{'\n'})) {
			return nil
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
