package beneath

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/thread"
)

// Owner is who a new home folder is given to.
type Owner struct {
	UID, GID int
}

// HomeMode is the mode of a new home folder.
const HomeMode = 0o775

// halfMade marks a folder that has been made but not yet given to its owner.
// No folder in use has this mode (sticky, and nothing for anybody). A crash
// between mkdir and chown leaves it behind, and the next attempt, on this node
// or another, finishes it instead of taking it for an existing folder and
// locking its owner out of it.
const halfMade = unix.S_ISVTX

// ErrNotWritable is returned by Create for a new folder that its owner could
// not write to: the storage refused the chown, and its own ownership rules do
// not make the folder writable for the sandbox user either.
var ErrNotWritable = errors.New("the new folder would not be writable for the sandbox user")

// MarkError is an ErrNotWritable for a new folder that has not the mode it was made
// with: the storage sets modes itself, or drops the sticky bit, as go-fuse's loopback
// does. It could not be told from one that somebody has locked, so it is not given
// away.
type MarkError struct {
	// Mode is what the folder has, as the storage says.
	Mode uint32
}

func (e *MarkError) Error() string {
	return fmt.Sprintf("the storage made the new folder with mode %04o instead of %04o", e.Mode, uint32(halfMade))
}

func (e *MarkError) Unwrap() error { return ErrNotWritable }

// Create opens rel beneath d like Open, and makes what is missing, one
// component at a time. Only what it has just made is given to owner with
// HomeMode; an existing folder is never changed. A folder that cannot be made
// usable is removed again, and the error is ErrNotWritable.
func (d *Dir) Create(rel string, owner Owner) (*Dir, error) {
	if err := checkRelative(rel); err != nil {
		return nil, &fs.PathError{Op: "mkdirat", Path: path.Join(d.path, rel), Err: err}
	}
	cur := d
	for seg := range strings.SplitSeq(rel, "/") {
		next, err := cur.openOrMake(seg, owner)
		if cur != d {
			cur.Close()
		}
		if err != nil {
			return nil, err
		}
		cur = next
	}
	return cur, nil
}

func (d *Dir) openOrMake(name string, owner Owner) (*Dir, error) {
	sub, err := d.Open(name)
	made := false
	if errors.Is(err, fs.ErrNotExist) {
		err := Uninterrupted(func() error { return unix.Mkdirat(d.fd, name, halfMade) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, &fs.PathError{Op: "mkdirat", Path: path.Join(d.path, name), Err: err}
		}
		made = err == nil
		sub, err = d.Open(name)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	if err := sub.finish(owner, made); err != nil {
		sub.Close()
		if errors.Is(err, ErrNotWritable) {
			// Only an empty folder goes: a full one answers ENOTEMPTY.
			_ = unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
		}
		return nil, err
	}
	return sub, nil
}

// finish gives a half-made folder to its owner, mode last, so that the mark
// stays until everything else is done. Any other folder is left alone: also one
// that we have just made, where it does not have the mode we gave it (the
// storage sets modes itself, another node has finished it, or somebody has put
// his own in its place). Such a one must only be writable.
func (d *Dir) finish(owner Owner, made bool) error {
	var st unix.Stat_t
	if err := Uninterrupted(func() error { return unix.Fstatat(d.fd, "", &st, unix.AT_EMPTY_PATH) }); err != nil {
		return &fs.PathError{Op: "fstat", Path: d.path, Err: err}
	}
	// In a set-gid folder a new one is born set-gid.
	if st.Mode&0o7777&^unix.S_ISGID != halfMade {
		if !made {
			return nil
		}
		if err := d.writableBy(owner); err != nil {
			return &fs.PathError{Op: "mkdirat", Path: d.path, Err: fmt.Errorf("%w: access: %w", &MarkError{Mode: st.Mode & 0o7777}, err)}
		}
		return nil
	}
	chown := Uninterrupted(func() error { return unix.Fchownat(d.fd, "", owner.UID, owner.GID, unix.AT_EMPTY_PATH) })
	if err := d.chmod(HomeMode); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	if chown == nil {
		return nil
	}
	// An export that squashes root, or an access point that sets the owner
	// itself, refuses the chown. What counts is whether the user can write.
	if err := d.writableBy(owner); err != nil {
		return &fs.PathError{Op: "fchown", Path: d.path, Err: fmt.Errorf("%w: chown: %w; access: %w", ErrNotWritable, chown, err)}
	}
	return nil
}

// writableBy asks the storage itself whether owner may write and enter d, by
// asking as that user: mode bits do not tell what an NFS server will answer.
func (d *Dir) writableBy(owner Owner) error {
	return thread.Own(func() error { return accessAs(d.fd, owner) })
}

// accessAs makes the thread the owner's.
func accessAs(fd int, owner Owner) error {
	// Raw calls: the wrappers of package syscall change every thread.
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETFSGID, uintptr(owner.GID), 0, 0); e != 0 {
		return e
	}
	// Leaving fsuid 0 also drops the file capabilities (CAP_DAC_OVERRIDE …).
	if _, _, e := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(owner.UID), 0, 0); e != 0 {
		return e
	}
	return Uninterrupted(func() error { return unix.Faccessat2(fd, "", unix.W_OK|unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH) })
}
