package mnt

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// ErrNoFilesystem is returned by Mount for a type that this kernel has no driver
// for, and could not load one.
var ErrNoFilesystem = errors.New("this kernel has no such filesystem")

// Filesystem is a filesystem that the kernel mounts itself.
type Filesystem struct {
	Type     string    // as in /proc/filesystems
	Source   string    // what to mount, in the driver's own form
	Settings []Setting // the driver's options, in this order
	// ReadOnly makes the filesystem itself read-only, not the mount alone: no other
	// mount of it, whoever made that, can be written through.
	ReadOnly bool
}

// Setting is one option of a filesystem. Without a value it is a flag.
type Setting struct {
	Key, Value string
}

// Detached is a mount that is attached nowhere. Close lets it go; one that was
// attached since stays.
type Detached interface {
	// Root opens its root, so that a filesystem can be tried before anybody sees it.
	Root() (*beneath.Dir, error)
	Close()
}

// KernelError says why the kernel did not mount a filesystem.
type KernelError struct {
	Step string // the call, or the option, that failed
	// Words are what the driver itself said, "" where it said nothing.
	Words string
	Err   error
}

func (e *KernelError) Error() string {
	if e.Words == "" {
		return fmt.Sprintf("%s: %v", e.Step, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Step, e.Words, e.Err)
}

func (e *KernelError) Unwrap() error { return e.Err }

// detached is the kernel's Detached.
type detached struct {
	fd    int
	flags Flags
	close func()
}

func (d *detached) Close() { d.close() }

func (d *detached) Root() (*beneath.Dir, error) {
	return beneath.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", d.fd))
}

// Mount implements Table.
func (k *Kernel) Mount(fs Filesystem, flags Flags) (Detached, error) {
	flags |= NoSUID | NoDev
	fd, err := superblock(fs)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", fs.Type, err)
	}
	defer unix.Close(fd)
	mfd, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, int(flags.attrs()))
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", fs.Type, said(fd, "fsmount", err))
	}
	d := &detached{fd: mfd, flags: flags, close: sync.OnceFunc(func() { _ = unix.Close(mfd) })}
	err = isFolder(mfd)
	if err == nil && fs.ReadOnly {
		err = readOnly(mfd)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("mount %s: %w", fs.Type, err)
	}
	return d, nil
}

// isFolder refuses what could not be attached on a directory: an NFS server may
// export a file, and attaching that says EINVAL, like much else.
func isFolder(mfd int) error {
	var stx unix.Statx_t
	err := unix.Statx(mfd, "", statxFlags, unix.STATX_TYPE, &stx)
	if err == nil && stx.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return &KernelError{Step: "root", Err: err}
	}
	return nil
}

// superblock makes the filesystem, and returns its context.
func superblock(fs Filesystem) (int, error) {
	fd, err := unix.Fsopen(fs.Type, unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w: %w", ErrNoFilesystem, err)
	}
	if err != nil {
		return -1, err
	}
	settings := append([]Setting{{"source", fs.Source}}, fs.Settings...)
	if fs.ReadOnly {
		settings = append(settings, Setting{Key: "ro"})
	}
	for _, s := range settings {
		if err := configure(fd, s); err != nil {
			err = said(fd, s.Key, err)
			unix.Close(fd)
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		err = said(fd, "create", err)
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func configure(fd int, s Setting) error {
	if s.Value == "" {
		return unix.FsconfigSetFlag(fd, s.Key)
	}
	return unix.FsconfigSetString(fd, s.Key, s.Value)
}

// readOnly makes the superblock of a detached mount read-only. What was asked for
// when it was made is not enough: where NFS crosses from one filesystem of its
// server to another on the way to the export, the superblock that it ends on is
// made on that way, and inherits no "ro" (before Linux 6.18, and before the stable
// kernels that have its fix).
func readOnly(mfd int) error {
	fd, err := unix.Fspick(mfd, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return &KernelError{Step: "fspick", Err: err}
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetFlag(fd, "ro"); err != nil {
		return said(fd, "ro", err)
	}
	if err := unix.FsconfigReconfigure(fd); err != nil {
		return said(fd, "reconfigure", err)
	}
	return nil
}

// said is err with what the context fd has to say about it: a message for each
// read, after a letter for its severity ("e nfs4: …"), and ENODATA at the end.
func said(fd int, step string, err error) error {
	var words []string
	buf := make([]byte, 4096)
	for {
		n, rerr := unix.Read(fd, buf)
		if errors.Is(rerr, unix.EINTR) {
			continue
		}
		if rerr != nil || n <= 0 {
			return &KernelError{Step: step, Words: strings.Join(words, "; "), Err: err}
		}
		severity, message, _ := strings.Cut(strings.TrimSpace(string(buf[:n])), " ")
		if severity == "e" || severity == "w" {
			words = append(words, message)
		}
	}
}

// Attach implements Table.
func (k *Kernel) Attach(m Detached, target *beneath.Dir) (Record, error) {
	d, ok := m.(*detached)
	if !ok {
		return Record{}, wrap("attach", target, fmt.Errorf("a mount of another table: %T", m))
	}
	if err := attach(d.fd, target); err != nil {
		return Record{}, wrap("attach", target, err)
	}
	return k.record(d.fd, d.flags), nil
}
