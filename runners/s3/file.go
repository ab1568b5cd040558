package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/vfs"
)

// file is one object. Content that is written is collected in the cache directory, and
// the object is stored when a descriptor of it is closed: rclone stores it when the
// last of its handles is closed, so they all are, and are opened again when needed.
type file struct {
	fusefs.Inode
	filesystem *filesystem
	file       *vfs.File

	// mu is held for reading by whoever uses a handle, for writing to close them all.
	mu       sync.RWMutex
	handles  map[*handle]struct{}
	unstored bool // there is content that the bucket has not
	unlinked bool

	seenMu  sync.Mutex
	seen    time.Time // the object's time when it was last opened
	seenAt  time.Time
	seenLen int64
}

// handle is one open file description.
type handle struct {
	of    *file
	flags int

	mu   sync.Mutex
	open vfs.Handle // nil: not open in rclone
	late time.Time  // when a read was last not answered in time
}

var (
	_ fusefs.NodeGetattrer = (*file)(nil)
	_ fusefs.NodeSetattrer = (*file)(nil)
	_ fusefs.NodeOpener    = (*file)(nil)
	_ fusefs.FileReader    = (*handle)(nil)
	_ fusefs.FileWriter    = (*handle)(nil)
	_ fusefs.FileFlusher   = (*handle)(nil)
	_ fusefs.FileFsyncer   = (*handle)(nil)
	_ fusefs.FileReleaser  = (*handle)(nil)
)

func (f *file) errno(operation string, err error) syscall.Errno {
	return f.filesystem.report.errno(operation, err)
}

// Getattr implements [fusefs.NodeGetattrer].
func (f *file) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.filesystem.attr(f.file, &out.Attr)
	return 0
}

// Setattr implements [fusefs.NodeSetattrer].
func (f *file) Setattr(_ context.Context, open fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if errno := f.filesystem.setattr(in); errno != 0 {
		return errno
	}
	if size, ok := in.GetSize(); ok {
		if errno := f.truncate(open, int64(size)); errno != 0 {
			return errno
		}
	}
	f.filesystem.attr(f.file, &out.Attr)
	return 0
}

func (f *file) truncate(open fusefs.FileHandle, size int64) syscall.Errno {
	if h, ok := open.(*handle); ok && h.flags&syscall.O_ACCMODE != os.O_RDONLY {
		return h.truncate(size)
	}
	// The kernel leaves out the descriptor of an open(2) with O_TRUNC, which comes
	// before: its close stores what is written after it.
	if h := f.writer(); h != nil {
		return h.truncate(size)
	}
	// truncate(2) has none that is closed: it is stored at once.
	h := f.newHandle(uint32(os.O_WRONLY))
	defer func() { _ = h.Release(context.Background()) }()
	if errno := h.truncate(size); errno != 0 {
		return errno
	}
	return f.store()
}

// writer is a handle that may write, or nil.
func (f *file) writer() *handle {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for h := range f.handles {
		if h.flags&syscall.O_ACCMODE != os.O_RDONLY {
			return h
		}
	}
	return nil
}

func (h *handle) truncate(size int64) syscall.Errno {
	f := h.of
	f.mu.RLock()
	defer f.mu.RUnlock()
	err := h.with(func(v vfs.Handle) error { return v.Truncate(size) })
	if err == nil {
		f.changed()
	}
	return f.errno("truncate", err)
}

// changed is called with mu held for reading, by whoever has changed the content.
func (f *file) changed() {
	f.seenMu.Lock()
	defer f.seenMu.Unlock()
	if !f.unlinked {
		f.unstored = true
		f.filesystem.setUnstored(f, true)
	}
}

// Open implements [fusefs.NodeOpener].
func (f *file) Open(_ context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if f.filesystem.readOnly && flags&writing != 0 {
		return nil, 0, syscall.EROFS
	}
	h := f.newHandle(flags)
	if flags&uint32(os.O_TRUNC) != 0 {
		if errno := f.truncate(h, 0); errno != 0 {
			f.forget(h)
			return nil, 0, errno
		}
	}
	return h, f.cached(), 0
}

// cached says that the kernel may keep the pages it has, where the object is the one
// that they were read from. A time has seconds: an object that was young when it was
// looked at may have been replaced within the same one.
func (f *file) cached() uint32 {
	f.seenMu.Lock()
	defer f.seenMu.Unlock()
	modified, size := f.file.ModTime(), f.file.Size()
	same := modified.Equal(f.seen) && size == f.seenLen && f.seenAt.Sub(modified) > 2*time.Second
	f.seen, f.seenLen, f.seenAt = modified, size, time.Now()
	if same {
		return fuse.FOPEN_KEEP_CACHE
	}
	return 0
}

func (f *file) newHandle(flags uint32) *handle {
	h := &handle{of: f, flags: int(flags)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handles[h] = struct{}{}
	return h
}

func (f *file) forget(h *handle) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.handles, h)
}

// create makes the file in the cache: it is stored when it is closed, if it is empty too.
func (f *file) create(h *handle, flags uint32) syscall.Errno {
	f.mu.RLock()
	defer f.mu.RUnlock()
	opened, err := f.file.Open(int(flags)&^os.O_EXCL | os.O_CREATE)
	if err != nil {
		return f.errno("create", err)
	}
	h.open = opened
	f.changed()
	return 0
}

// store puts what was written into the bucket. Every close(2), fsync(2) and rename(2)
// waits for it, and says what became of it.
func (f *file) store() syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.unstored || f.unlinked {
		return 0
	}
	var errs []error
	closed := false
	for h := range f.handles {
		if open := h.take(isCached); open != nil {
			errs, closed = append(errs, open.Close()), true
		}
	}
	if !closed {
		// The last attempt failed: the content is in the cache still.
		again, err := f.file.Open(os.O_RDWR)
		if err == nil {
			_, err = again.Seek(0, io.SeekEnd) // opens the content
			err = errors.Join(err, again.Close())
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return f.errno("store", err)
	}
	f.unstored = false
	f.filesystem.setUnstored(f, false)
	return 0
}

// isCached says whether content goes through the cache directory.
func isCached(v vfs.Handle) bool {
	_, ok := v.(*vfs.RWFileHandle)
	return ok
}

func (f *file) unlink() syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	wasUnstored := f.unstored
	err := f.file.Remove()
	if err != nil && wasUnstored && errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		f.gone()
	}
	return f.errno("unlink", err)
}

func (f *file) replaced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone()
}

// gone is called with mu held.
func (f *file) gone() {
	f.unlinked, f.unstored = true, false
	f.filesystem.setUnstored(f, false)
}

// storeBeneath stores what was written in a folder that is to be renamed.
func (f *filesystem) storeBeneath(dir string) syscall.Errno {
	f.mu.Lock()
	var files []*file
	for one := range f.unstored {
		if strings.HasPrefix(one.file.Path(), dir+"/") {
			files = append(files, one)
		}
	}
	f.mu.Unlock()
	for _, one := range files {
		if errno := one.store(); errno != 0 {
			return errno
		}
	}
	return 0
}

// with uses rclone's handle, which it opens where it is not open; called with the
// file's mu held for reading.
func (h *handle) with(do func(vfs.Handle) error) error {
	h.mu.Lock()
	if h.open == nil {
		if h.of.unlinked {
			h.mu.Unlock()
			return errors.New("the file has been removed")
		}
		opened, err := h.of.file.Open(h.flags &^ (os.O_CREATE | os.O_EXCL | os.O_TRUNC))
		if err != nil {
			h.mu.Unlock()
			return err
		}
		h.open = opened
	}
	open := h.open
	h.mu.Unlock()
	return do(open)
}

// drop closes rclone's handle without waiting: it may be in a request that hangs.
func (h *handle) drop() {
	if open := h.take(func(v vfs.Handle) bool { return !isCached(v) }); open != nil {
		go func() { _ = open.Close() }()
	}
}

// take returns rclone's handle, which is this one's no more, where it is open and of
// the kind; otherwise nil.
func (h *handle) take(ofKind func(vfs.Handle) bool) vfs.Handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	open := h.open
	if open == nil || !ofKind(open) {
		return nil
	}
	h.open = nil
	return open
}

// Read implements [fusefs.FileReader]. It answers in bounded time, and a read after one
// that failed begins anew.
func (h *handle) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if h.wasLate() {
		return nil, syscall.EIO
	}
	done := make(chan error, 1)
	content := newContent(len(dest)) // dest is used again when this returns
	begun := make(chan struct{})
	go func() {
		h.of.mu.RLock() // not while the file is stored, which takes as long as it takes
		defer h.of.mu.RUnlock()
		close(begun)
		n := 0
		read := func(v vfs.Handle) (err error) {
			n, err = v.ReadAt(content.bytes, off)
			return err
		}
		err := h.with(read)
		if errors.Is(err, fs.ErrorObjectNotFound) {
			// It was renamed since it was opened.
			h.drop()
			err = h.with(read)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		content.bytes = content.bytes[:n]
		done <- err
	}()
	select {
	case <-begun:
	case <-ctx.Done():
		return nil, syscall.EINTR
	}
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	var err error
	select {
	case err = <-done:
	case <-timer.C:
		err = errLate
		h.setLate()
	case <-ctx.Done():
		h.drop()
		return nil, syscall.EINTR
	}
	if err != nil {
		h.drop()
		errno := h.of.errno("read", err)
		if errno == syscall.ENOENT {
			errno = syscall.EIO // the object was removed by somebody else
		}
		return nil, errno
	}
	return content, 0
}

// content is the answer to a read. Its buffer is used again when the kernel has it; one
// that was given up is not.
type content struct{ bytes []byte }

var contents = sync.Pool{New: func() any { return &content{bytes: make([]byte, 0, 128<<10)} }}

func newContent(size int) *content {
	c := contents.Get().(*content)
	if cap(c.bytes) < size {
		c.bytes = make([]byte, size)
	}
	c.bytes = c.bytes[:size]
	return c
}

// Bytes implements [fuse.ReadResult].
func (c *content) Bytes([]byte) ([]byte, fuse.Status) { return c.bytes, fuse.OK }

// Size implements [fuse.ReadResult].
func (c *content) Size() int { return len(c.bytes) }

// Done implements [fuse.ReadResult].
func (c *content) Done() { contents.Put(c) }

// wasLate says whether this read is the kernel's second attempt: it asks for the one
// page after the pages around it could not be read.
func (h *handle) wasLate() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.late) < time.Second
}

func (h *handle) setLate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.late = time.Now()
}

// Write implements [fusefs.FileWriter].
func (h *handle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	h.of.mu.RLock()
	defer h.of.mu.RUnlock()
	n := 0
	err := h.with(func(v vfs.Handle) (err error) {
		n, err = v.WriteAt(data, off)
		return err
	})
	if n > 0 {
		h.of.changed()
	}
	return uint32(n), h.of.errno("write", err)
}

// Flush implements [fusefs.FileFlusher]: close(2) waits for it.
func (h *handle) Flush(context.Context) syscall.Errno { return h.flush() }

// Fsync implements [fusefs.FileFsyncer].
func (h *handle) Fsync(context.Context, uint32) syscall.Errno { return h.flush() }

func (h *handle) flush() syscall.Errno {
	if h.flags&syscall.O_ACCMODE == os.O_RDONLY {
		return 0
	}
	return h.of.store()
}

// Release implements [fusefs.FileReleaser].
func (h *handle) Release(context.Context) syscall.Errno {
	h.drop()
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	delete(h.of.handles, h)
	if open := h.take(isCached); open != nil {
		if err := open.Close(); err != nil && !h.of.unlinked {
			return h.of.errno("close", err)
		}
	}
	return 0
}
