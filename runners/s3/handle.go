package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/vfs"
)

// handle is one open file description.
type handle struct {
	of     *file
	flags  int
	number int // of the file's: later ones are larger

	mu   sync.Mutex
	open vfs.Handle // nil: not open in rclone
	gone bool       // released: a read that was given up must not open it again
	late time.Time  // when a read was last not answered in time
}

var (
	_ fusefs.FileReader   = (*handle)(nil)
	_ fusefs.FileWriter   = (*handle)(nil)
	_ fusefs.FileFlusher  = (*handle)(nil)
	_ fusefs.FileFsyncer  = (*handle)(nil)
	_ fusefs.FileReleaser = (*handle)(nil)
)

// with uses rclone's handle, which it opens where it is not open, when there is room
// for a file of that size; called with the file's use held for reading.
func (h *handle) with(size int64, do func(vfs.Handle) error) error {
	open, err := h.ready(size)
	if err != nil {
		return err
	}
	return do(open)
}

func (h *handle) ready(size int64) (vfs.Handle, error) {
	f, cache := h.of, h.of.filesystem.cache
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open != nil {
		if h.writes() {
			return h.open, cache.reserve(f, size)
		}
		return h.open, nil
	}
	if h.gone {
		return nil, os.ErrClosed
	}
	if f.unlinked.Load() {
		return nil, errRemoved
	}
	cache.begin(f)
	if h.writes() {
		err := cache.reserve(f, size)
		if err == nil && size > 0 {
			err = cache.fetchable(min(size, f.node().Size()))
		}
		if err != nil {
			cache.end(f)
			return nil, err
		}
	}
	opened, err := f.node().Open(h.flags &^ (os.O_CREATE | os.O_EXCL | os.O_TRUNC))
	if err != nil {
		cache.end(f)
		return nil, err
	}
	if !isCached(opened) {
		cache.end(f)
	}
	h.open = opened
	return opened, nil
}

func (h *handle) writes() bool { return h.flags&syscall.O_ACCMODE != os.O_RDONLY }

var errRemoved = errors.New("the file has been removed")

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

// has says whether rclone's handle is open and of the kind.
func (h *handle) has(ofKind func(vfs.Handle) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open != nil && ofKind(h.open)
}

func (h *handle) isGone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}

func (h *handle) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
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
	given, stop := givenUp(ctx)
	defer stop()
	go func() {
		n, err := h.read(content.bytes, off, given, sync.OnceFunc(func() { close(begun) }))
		content.bytes = content.bytes[:n]
		done <- err
	}()
	select {
	case <-begun:
	case err := <-done: // the lock is not to be had
		return nil, h.of.errno("read", err)
	case <-given:
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
	case <-given:
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

// read says when it has begun: not while the file is stored, which takes as long as it
// takes.
func (h *handle) read(to []byte, off int64, given <-chan struct{}, begun func()) (n int, err error) {
	once := func() error {
		if errno := h.of.acquire(false, given); errno != 0 {
			return errno
		}
		unlock := sync.OnceFunc(h.of.use.unlock)
		defer unlock()
		begun()
		return h.with(h.of.node().Size(), func(v vfs.Handle) (err error) {
			if !isCached(v) {
				unlock() // whoever stores need not wait for this request
			}
			n, err = v.ReadAt(to, off)
			return err
		})
	}
	err = once()
	if errors.Is(err, fs.ErrorObjectNotFound) {
		// It was renamed since it was opened.
		h.drop()
		err = once()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// signalPatience is how long a call goes on after a signal to its caller. Most signals
// mean nothing to it (a child has ended, a window has another size), and programs take
// EINTR from a file for a failure; but one that is killed must not wait for a server.
const signalPatience = 2 * time.Second

// givenUp is closed some time after the kernel has said that a signal came.
func givenUp(ctx context.Context) (given <-chan struct{}, stop func()) {
	patient, cancel := context.WithCancel(context.Background())
	end := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(signalPatience):
			cancel()
		case <-patient.Done():
		}
	})
	return patient.Done(), func() { end(); cancel() }
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

// Write implements [fusefs.FileWriter]. What there is after one that failed is not what
// the program meant: it is never stored.
func (h *handle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	f := h.of
	if errno := f.acquire(false, nil); errno != 0 {
		f.setBroken(errno)
		return 0, errno
	}
	defer f.use.unlock()
	if errno := f.isBroken(); errno != 0 {
		return 0, errno
	}
	n := 0
	write := func(v vfs.Handle) error {
		more, err := v.WriteAt(data[n:], off+int64(n))
		n += more
		return err
	}
	is := f.node().Size()
	size := max(is, off+int64(len(data)))
	if h.flags&os.O_APPEND != 0 {
		size = max(off, is) + int64(len(data))
	}
	err := h.with(size, write)
	if errors.Is(err, syscall.ENOSPC) && f.filesystem.cache.freeAll() {
		err = h.with(size, write)
	}
	if n > 0 {
		f.changed()
	}
	errno := f.errno("write", err)
	if errno != 0 {
		f.setBroken(errno)
		return 0, errno
	}
	return uint32(n), 0
}

// Flush implements [fusefs.FileFlusher]: close(2) waits for it.
func (h *handle) Flush(context.Context) syscall.Errno { return h.flush() }

// Fsync implements [fusefs.FileFsyncer].
func (h *handle) Fsync(context.Context, uint32) syscall.Errno { return h.flush() }

func (h *handle) flush() syscall.Errno {
	if !h.writes() {
		return 0
	}
	return h.of.store()
}

// Release implements [fusefs.FileReleaser]. Nobody waits for it: where the file is in use
// it is done when it is not, and what could not be stored is tried again behind it.
func (h *handle) Release(context.Context) syscall.Errno {
	h.drop()
	if h.of.filesystem.health.isGood() && h.of.use.try() {
		return h.of.release(h)
	}
	go func() {
		_ = h.of.use.take(true, forever) // never an error
		_ = h.of.release(h)              // the kernel has been answered
	}()
	return 0
}
