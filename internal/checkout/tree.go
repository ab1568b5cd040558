package checkout

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// entry is one file of a walk, by its folder's descriptor: nothing is resolved twice
// and no symbolic link or mount is passed.
type entry struct {
	dir  int
	name string
	rel  string // from the root of the walk
	stat unix.Stat_t
}

func (e *entry) kind() uint32 { return e.stat.Mode & unix.S_IFMT }

const walkResolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openFolder opens a folder beneath root for reading.
func openFolder(root int, rel string) (*os.File, error) {
	return openBeneath(root, rel, unix.O_RDONLY|unix.O_DIRECTORY)
}

func openBeneath(root int, rel string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: walkResolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for {
		fd, err := unix.Openat2(root, rel, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), rel), nil
		}
		// EAGAIN: a rename elsewhere kept the kernel from being certain.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, &fs.PathError{Op: "openat2", Path: rel, Err: err}
		}
	}
}

// walk visits everything beneath a folder, folders before what is in them. What
// disappears meanwhile is left out.
func walk(root *os.File, visit func(e *entry) error) error {
	folders := []string{"."}
	for len(folders) > 0 {
		rel := folders[len(folders)-1]
		folders = folders[:len(folders)-1]
		below, err := visitFolder(root, rel, visit)
		if gone := errors.Is(err, fs.ErrNotExist) && rel != "."; err != nil && !gone {
			return err
		}
		folders = append(folders, below...)
	}
	return nil
}

func visitFolder(root *os.File, rel string, visit func(e *entry) error) (below []string, err error) {
	folder, err := openFolder(int(root.Fd()), rel)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	for {
		names, err := folder.Readdirnames(512)
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			e := entry{dir: int(folder.Fd()), name: name, rel: path.Join(rel, name)}
			if err := unix.Fstatat(e.dir, name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				if errors.Is(err, unix.ENOENT) {
					continue
				}
				return nil, &fs.PathError{Op: "stat", Path: e.rel, Err: err}
			}
			if err := visit(&e); err != nil {
				return nil, err
			}
			if e.kind() == unix.S_IFDIR {
				below = append(below, e.rel)
			}
		}
	}
}

// usage is what a folder takes: bytes as the filesystem counts them, and files.
type usage struct {
	Bytes  int64 `json:"bytes"`
	Inodes int64 `json:"inodes"`
}

func measure(dir string) (usage, error) {
	var u usage
	root, err := os.Open(dir)
	if err != nil {
		return u, err
	}
	defer root.Close()
	err = walk(root, func(e *entry) error {
		u.Inodes++
		u.Bytes += e.stat.Blocks * 512
		return nil
	})
	return u, err
}

// removeAt removes what is called name in a folder, and everything beneath it, but
// never anything on another filesystem or beneath a mount: those are an error.
func removeAt(parent *os.File, name string) error {
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &fs.PathError{Op: "unlink", Path: name, Err: err}
	}
	root, err := openFolder(int(parent.Fd()), name)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := empty(root); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil {
		return &fs.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}

// maxRelative leaves room for one more name beneath PATH_MAX.
const maxRelative = unix.PathMax - 256 - 1

// empty removes everything in a folder. Whoever made the tree may have nested it
// deeper than a path can say: such a branch is moved to the top first.
func empty(root *os.File) error {
	var folders []string
	err := walk(root, func(e *entry) error {
		if e.kind() != unix.S_IFDIR {
			return os.NewSyscallError("unlink", unix.Unlinkat(e.dir, e.name, 0))
		}
		if len(e.rel) > maxRelative {
			top := ".deep-" + rand.Text()
			if err := unix.Renameat(e.dir, e.name, int(root.Fd()), top); err != nil {
				return os.NewSyscallError("rename", err)
			}
			e.rel = top
		}
		folders = append(folders, e.rel)
		return nil
	})
	if err != nil {
		return err
	}
	// Every folder was found after the one it is in.
	for i := len(folders) - 1; i >= 0; i-- {
		rel := folders[i]
		parent, err := openFolder(int(root.Fd()), path.Dir(rel))
		if err != nil {
			return err
		}
		err = unix.Unlinkat(int(parent.Fd()), path.Base(rel), unix.AT_REMOVEDIR)
		parent.Close()
		if err != nil {
			return &fs.PathError{Op: "rmdir", Path: rel, Err: err}
		}
	}
	return nil
}
