// Package beneath opens directories that are proven to lie under a root, and
// makes home folders there.
//
// A Dir is a file descriptor, not a path: once opened it names one inode, and
// no rename or symlink swap can make it name another. Only this package makes
// one, so an unproven path cannot reach a mount call. Resolution is openat2(2)
// with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS; the
// kernel allows "a/../b" under RESOLVE_BENEATH, so names with a ".." segment
// are refused by text before it is asked.
//
// Every call here may touch user storage and may therefore hang on a dead
// server. Callers put a deadline around it (package deadline).
package beneath

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrEscapes is returned for a name that leads, or could lead, outside its
// root: a symlink or "..", whether in the text or found while resolving.
var ErrEscapes = errors.New("leads outside its root or through a symbolic link")

// ErrMounted is returned by OpenTarget where a mount already stands on the
// name.
var ErrMounted = errors.New("a mount stands here already")

const resolveBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// Dir is an open directory (O_PATH) proven to lie beneath a root when it was
// opened. The zero value is unusable. Close it as soon as the mount call is
// done: a held descriptor inside a mount makes our own unmount busy.
type Dir struct {
	fd   int
	path string
}

// OpenRoot opens the directory that others are resolved beneath. The path is
// configuration, so symlinks in it are followed.
func OpenRoot(p string) (*Dir, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	return &Dir{fd: fd, path: path.Clean(p)}, nil
}

// Open opens rel, a directory beneath d, crossing mounts but no symlinks.
// Errors: ErrEscapes, fs.ErrNotExist, unix.ENOTDIR.
func (d *Dir) Open(rel string) (*Dir, error) { return d.open(rel, 0) }

// OpenTarget opens the directory name in d for a mount to be attached on it.
// ErrMounted says that a mount stands there already (RESOLVE_NO_XDEV answers
// EXDEV), so a second one is never stacked on it.
func (d *Dir) OpenTarget(name string) (*Dir, error) {
	t, err := d.open(name, unix.RESOLVE_NO_XDEV)
	if errors.Is(err, unix.EXDEV) {
		return nil, &fs.PathError{Op: "openat2", Path: path.Join(d.path, name), Err: ErrMounted}
	}
	return t, err
}

func (d *Dir) open(rel string, resolve uint64) (*Dir, error) {
	full := path.Join(d.path, rel)
	if err := checkRelative(rel); err != nil {
		return nil, &fs.PathError{Op: "openat2", Path: full, Err: err}
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat2(d.fd, rel, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: resolveBeneath | resolve,
		})
	})
	if err == nil {
		return &Dir{fd: fd, path: full}, nil
	}
	if errors.Is(err, unix.ELOOP) || (errors.Is(err, unix.EXDEV) && resolve&unix.RESOLVE_NO_XDEV == 0) {
		err = fmt.Errorf("%w (%w)", ErrEscapes, err)
	} else if errors.Is(err, unix.ENOTDIR) && d.throughSymlink(rel) {
		// With O_DIRECTORY a final symlink answers ENOTDIR on some kernels.
		err = fmt.Errorf("%w (%w)", ErrEscapes, err)
	}
	return nil, &fs.PathError{Op: "openat2", Path: full, Err: err}
}

// throughSymlink tells whether the last component of rel is a symlink. It
// serves the error message only.
func (d *Dir) throughSymlink(rel string) bool {
	var st unix.Stat_t
	return unix.Fstatat(d.fd, rel, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// Close closes the descriptor. The Dir is unusable afterwards.
func (d *Dir) Close() {
	if d != nil && d.fd >= 0 {
		_ = unix.Close(d.fd)
		d.fd = -1
	}
}

// Dup opens the same directory once more.
func (d *Dir) Dup() (*Dir, error) {
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "dup", Path: d.path, Err: err}
	}
	return &Dir{fd: fd, path: d.path}, nil
}

// Fd is the O_PATH descriptor, owned by d.
func (d *Dir) Fd() int { return d.fd }

// Path is the name d was opened by, for messages and for fakes. It proves
// nothing: never resolve it again.
func (d *Dir) Path() string { return d.path }

// Mkdir makes the directory name in d with exactly this mode, whatever the
// umask. One that exists already is left as it is.
func (d *Dir) Mkdir(name string, mode uint32) error {
	full := path.Join(d.path, name)
	if err := checkSegment(name); err != nil {
		return &fs.PathError{Op: "mkdirat", Path: full, Err: err}
	}
	err := Uninterrupted(func() error { return unix.Mkdirat(d.fd, name, mode) })
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "mkdirat", Path: full, Err: err}
	}
	sub, err := d.Open(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	return sub.chmod(mode)
}

// chmod sets the mode of d itself. fchmod does not take an O_PATH descriptor;
// its /proc name leads to the same inode without resolving anything again.
func (d *Dir) chmod(mode uint32) error {
	err := Uninterrupted(func() error { return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", d.fd), mode, 0) })
	if err != nil {
		return &fs.PathError{Op: "fchmod", Path: d.path, Err: err}
	}
	return nil
}

// Rmdir removes the empty directory name in d. One that is gone already is
// no error. Nothing here ever deletes recursively.
func (d *Dir) Rmdir(name string) error {
	full := path.Join(d.path, name)
	if err := checkSegment(name); err != nil {
		return &fs.PathError{Op: "rmdir", Path: full, Err: err}
	}
	err := unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: full, Err: err}
	}
	return nil
}

func checkRelative(rel string) error {
	if rel == "" || strings.HasPrefix(rel, "/") || strings.ContainsRune(rel, 0) {
		return ErrEscapes
	}
	for seg := range strings.SplitSeq(rel, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return ErrEscapes
		}
	}
	return nil
}

func checkSegment(name string) error {
	if strings.Contains(name, "/") {
		return ErrEscapes
	}
	return checkRelative(name)
}

// retry repeats a call that was interrupted, or that openat2 asks to repeat
// because a rename raced with the resolution (EAGAIN, see openat2(2)). The
// count is bounded: an adversary who renames without pause costs an error,
// not the thread.
func retry(call func() (int, error)) (int, error) {
	const attempts = 1000
	var fd int
	var err error
	for range attempts {
		fd, err = call()
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
	return fd, err
}

// Uninterrupted repeats a call on users' storage that a signal has interrupted: Go
// sends its own, and a server of FUSE answers them with EINTR. Package os does the same.
// The count is bounded, because it is the server that says so.
func Uninterrupted(call func() error) error {
	_, err := retry(func() (int, error) { return 0, call() })
	return err
}
