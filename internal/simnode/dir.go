package simnode

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dirPrefix is followed by the digits that os.MkdirTemp adds.
	dirPrefix = "node-mounts-"
	// staleAfter is how old a folder is that sweep takes for left behind: between
	// being made and being locked one looks abandoned.
	staleAfter = 10 * time.Minute
)

// makeDir makes the directory that the node is mounted on, and a temporary one
// where none is named. That one is locked for as long as the process has lock:
// to others it is an empty folder.
func makeDir(dir string) (path string, made bool, lock *os.File, err error) {
	if dir == "" {
		sweep(os.TempDir())
		if dir, err = os.MkdirTemp("", dirPrefix); err != nil {
			return "", false, nil, err
		}
		made = true
		if lock, err = lockDir(dir); err != nil {
			return "", false, nil, errors.Join(err, os.Remove(dir))
		}
	} else if err = os.Mkdir(dir, 0o755); err == nil {
		made = true
	} else if !errors.Is(err, fs.ErrExist) {
		return "", false, nil, err
	}
	// The kernel names mounts by the resolved path.
	if path, err = filepath.Abs(dir); err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	return path, made, lock, err
}

// lockDir takes the lock that ends with the process, however that ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "flock", Path: dir, Err: err}
	}
	return f, nil
}

// sweep removes the folders that nodes left in temp because their program was
// killed. Their mounts went with it. A node that runs is mounted in a namespace
// of its own, and rmdir here would take it from there (since Linux 3.18), so a
// folder that is locked is left alone. Nothing that is in a folder is removed,
// and what cannot be removed stays: it is in nobody's way.
func sweep(temp string) {
	entries, err := os.ReadDir(temp)
	if err != nil {
		return
	}
	for _, e := range entries {
		digits, ours := strings.CutPrefix(e.Name(), dirPrefix)
		if !ours || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		info, err := e.Info() // of the folder itself, never of what a link names
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < staleAfter {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
			continue
		}
		dir := filepath.Join(temp, e.Name())
		lock, err := lockDir(dir)
		if err != nil {
			continue
		}
		_ = unix.Rmdir(dir)
		lock.Close()
	}
}
