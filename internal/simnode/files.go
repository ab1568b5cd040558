package simnode

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileInfo is what stat(2) says of a file, seen from inside a container.
type FileInfo struct {
	Mode     fs.FileMode
	UID, GID int // as the container's user namespace names them
	Nlink    uint64
	Size     int64 // bytes
	Dev      uint64
	Inode    uint64
}

func fileOperations() map[string]handler {
	return map[string]handler{
		opRead: func(req request) (response, error) {
			data, err := os.ReadFile(req.Path)
			return response{Data: data}, err
		},
		opWrite:   only(func(req request) error { return os.WriteFile(req.Path, req.Data, fs.FileMode(req.Mode)) }),
		opReadDir: readDir,
		opStat:    stat,
		opChmod:   only(func(req request) error { return os.Chmod(req.Path, fs.FileMode(req.Mode)) }),
		opSymlink: only(func(req request) error { return os.Symlink(req.Path, req.To) }),
		opMkdir:   only(func(req request) error { return os.Mkdir(req.Path, fs.FileMode(req.Mode)) }),
		opRemove:  only(func(req request) error { return os.Remove(req.Path) }),
		opDevice:  only(openDevice),
		opChdir:   only(func(req request) error { return os.Chdir(req.Path) }),
	}
}

func readDir(req request) (response, error) {
	entries, err := os.ReadDir(req.Path)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return response{Names: names}, err
}

func stat(req request) (response, error) {
	info, err := os.Stat(req.Path)
	if err != nil {
		return response{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return response{}, fmt.Errorf("stat %s: no Stat_t", req.Path)
	}
	return response{Info: &FileInfo{
		Mode: info.Mode(), UID: int(st.Uid), GID: int(st.Gid),
		Nlink: uint64(st.Nlink), //nolint:unconvert // 32 bits wide on arm64
		Size:  info.Size(), Dev: st.Dev, Inode: st.Ino,
	}}, nil
}

func openDevice(req request) error {
	f, err := os.OpenFile(req.Path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func (w *worker) keep(h held) response {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	w.held[w.last] = h
	return response{N: w.last}
}

func (w *worker) heldBy(handle int) (held, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.held[handle]
	if !ok {
		return held{}, fmt.Errorf("handle %d is not held: %w", handle, unix.EBADF)
	}
	return h, nil
}

// hold opens a file for reading, and for writing where that is allowed.
func (w *worker) hold(req request) (response, error) {
	f, err := os.OpenFile(req.Path, os.O_RDWR, 0)
	if err != nil {
		f, err = os.Open(req.Path)
	}
	if err != nil {
		return response{}, err
	}
	return w.keep(held{file: f}), nil
}

// mapFile maps a file and closes it: the mapping alone holds the mount.
func (w *worker) mapFile(req request) (response, error) {
	f, err := os.Open(req.Path)
	if err != nil {
		return response{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return response{}, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return response{}, &fs.PathError{Op: "mmap", Path: req.Path, Err: err}
	}
	return w.keep(held{mapping: m}), nil
}

func (w *worker) heldRead(req request) (response, error) {
	h, err := w.heldBy(req.Handle)
	if err != nil {
		return response{}, err
	}
	if h.mapping != nil {
		return response{Data: h.mapping}, nil
	}
	info, err := h.file.Stat()
	if err != nil {
		return response{}, err
	}
	data, err := io.ReadAll(io.NewSectionReader(h.file, 0, info.Size()))
	return response{Data: data}, err
}

func (w *worker) heldWrite(req request) error {
	h, err := w.heldBy(req.Handle)
	if err != nil {
		return err
	}
	if h.file == nil {
		return fmt.Errorf("handle %d is a mapping for reading: %w", req.Handle, unix.EBADF)
	}
	_, err = h.file.WriteAt(req.Data, 0)
	return err
}

func (w *worker) drop(req request) error {
	h, err := w.heldBy(req.Handle)
	if err != nil {
		return err
	}
	w.mu.Lock()
	delete(w.held, req.Handle)
	w.mu.Unlock()
	if h.mapping != nil {
		return os.NewSyscallError("munmap", unix.Munmap(h.mapping))
	}
	return h.file.Close()
}
