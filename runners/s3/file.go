package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rclone/rclone/vfs"
)

// file is one object. Content that is written is collected in the cache directory, and
// the object is stored when a descriptor of it is closed: rclone stores it when the
// last of its handles is closed, so they all are, and are opened again when needed.
type file struct {
	fusefs.Inode
	filesystem *filesystem
	// is rclone's, which makes another one when it has forgotten the folder in between.
	is atomic.Pointer[vfs.File]

	// use is held for reading by whoever uses a handle that goes through the cache, for
	// writing to close them all. It may be held for as long as the server takes, so that
	// nobody waits for it without a bound, and open(2) does not at all.
	use      lock
	unlinked atomic.Bool

	handlesMu sync.Mutex
	handles   map[*handle]struct{}
	opened    int // how many there have been

	// contentMu is taken after use, by those who hold use for reading: several writes may
	// say at the same time what became of the content. broken is set without use, too, by
	// a write that could not have it.
	contentMu sync.Mutex
	unstored  bool          // there is content that the bucket has not
	broken    syscall.Errno // of a write that failed: what there is is not to be stored

	seenMu  sync.Mutex
	seen    time.Time // the object's time when it was last opened
	seenAt  time.Time
	seenLen int64
}

var (
	_ fusefs.NodeGetattrer = (*file)(nil)
	_ fusefs.NodeSetattrer = (*file)(nil)
	_ fusefs.NodeOpener    = (*file)(nil)
	_ fusefs.NodeStatfser  = (*file)(nil)
)

func (f *file) node() *vfs.File { return f.is.Load() }

func (f *file) errno(operation string, err error) syscall.Errno {
	return f.filesystem.report.errno(operation, err)
}

// Getattr implements [fusefs.NodeGetattrer].
func (f *file) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.filesystem.attr(f.node(), &out.Attr)
	return 0
}

// Statfs implements [fusefs.NodeStatfser].
func (f *file) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	return f.filesystem.statfs(ctx, out)
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
	f.filesystem.attr(f.node(), &out.Attr)
	return 0
}

func (f *file) truncate(open fusefs.FileHandle, size int64) syscall.Errno {
	if h, ok := open.(*handle); ok && h.writes() {
		return h.truncate(size)
	}
	// The kernel leaves out the descriptor of an open(2) with O_TRUNC, which comes
	// before: its close stores what is written after it.
	for h := f.writer(); h != nil; h = f.writer() {
		if errno := h.truncate(size); errno == 0 || !h.isGone() {
			return errno
		}
	}
	// truncate(2) has none that is closed: it is stored at once.
	h := f.newHandle(uint32(os.O_WRONLY))
	defer func() { _ = h.Release(context.Background()) }()
	if errno := h.truncate(size); errno != 0 {
		return errno
	}
	return f.store()
}

// writer is the handle that may write that was opened last, or nil: of those that were
// opened before, the kernel may be about to release one that is closed.
func (f *file) writer() *handle {
	var last *handle
	for _, h := range f.open() {
		if h.writes() && !h.isGone() && (last == nil || h.number > last.number) {
			last = h
		}
	}
	return last
}

// open are the file's handles.
func (f *file) open() []*handle {
	f.handlesMu.Lock()
	defer f.handlesMu.Unlock()
	return slices.Collect(maps.Keys(f.handles))
}

// acquire takes the lock. It is EIO where the server does not answer whoever has it,
// and EINTR where given is closed.
func (f *file) acquire(write bool, given <-chan struct{}) syscall.Errno {
	err := f.use.take(write, func(let <-chan struct{}) error { return number(f.filesystem.await(let, given)) })
	errno, _ := err.(syscall.Errno) //nolint:errorlint // nothing else comes from there
	return errno
}

// number is the error that a number is, and nil for 0.
func number(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func (h *handle) truncate(size int64) syscall.Errno {
	f := h.of
	if errno := f.acquire(false, nil); errno != 0 {
		return errno
	}
	defer f.use.unlock()
	if errno := f.isBroken(); errno != 0 && size != 0 {
		return errno
	}
	begun := false
	err := h.with(size, func(v vfs.Handle) error { begun = true; return v.Truncate(size) })
	if err == nil {
		f.changed()
		f.filesystem.cache.resized(f, size)
		if size == 0 {
			f.setBroken(0) // whatever was missing is not wanted any more
		}
		return 0
	}
	errno := f.errno("truncate", err)
	if begun {
		f.setBroken(errno)
	}
	return errno
}

func (f *file) isBroken() syscall.Errno {
	f.contentMu.Lock()
	defer f.contentMu.Unlock()
	return f.broken
}

func (f *file) setBroken(errno syscall.Errno) {
	f.contentMu.Lock()
	defer f.contentMu.Unlock()
	f.broken = errno
}

// changed is called with use held for reading, by whoever has changed the content.
func (f *file) changed() {
	f.contentMu.Lock()
	defer f.contentMu.Unlock()
	if !f.unlinked.Load() {
		f.unstored = true
		f.filesystem.setUnstored(f, true)
	}
}

// Open implements [fusefs.NodeOpener].
func (f *file) Open(_ context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if f.filesystem.readOnly && flags&writing != 0 {
		return nil, 0, syscall.EROFS
	}
	if f.unlinked.Load() {
		return nil, 0, syscall.ESTALE // the kernel looks the name up again
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
	modified, size := f.node().ModTime(), f.node().Size()
	same := modified.Equal(f.seen) && size == f.seenLen && f.seenAt.Sub(modified) > 2*time.Second
	f.seen, f.seenLen, f.seenAt = modified, size, time.Now()
	if same {
		return fuse.FOPEN_KEEP_CACHE
	}
	return 0
}

func (f *file) newHandle(flags uint32) *handle {
	h := &handle{of: f, flags: int(flags)}
	f.remember(h)
	return h
}

func (f *file) remember(h *handle) {
	f.handlesMu.Lock()
	defer f.handlesMu.Unlock()
	f.opened++
	h.number = f.opened
	f.handles[h] = struct{}{}
	f.filesystem.setOpen(f, true)
}

func (f *file) forget(h *handle) {
	f.handlesMu.Lock()
	defer f.handlesMu.Unlock()
	delete(f.handles, h)
	if len(f.handles) == 0 {
		f.filesystem.setOpen(f, false)
	}
}

// create makes the file in the cache: it is stored when it is closed, if it is empty too.
func (f *file) create(h *handle, flags uint32) syscall.Errno {
	if errno := f.acquire(false, nil); errno != 0 {
		return errno
	}
	defer f.use.unlock()
	f.filesystem.cache.begin(f)
	err := f.filesystem.cache.reserve(f, 0)
	var opened vfs.Handle
	if err == nil {
		opened, err = f.node().Open(int(flags)&^os.O_EXCL | os.O_CREATE)
	}
	if err != nil {
		f.filesystem.cache.end(f)
		return f.errno("create", err)
	}
	h.open = opened
	f.changed()
	return 0
}

// store puts what was written into the bucket. Every close(2), fsync(2) and rename(2)
// waits for it, and says what became of it. Where the server does not answer that is
// EIO, and it goes on being tried until rclone gives up; another call tries again then.
func (f *file) store() syscall.Errno {
	if errno := f.acquire(true, nil); errno != 0 {
		return errno
	}
	return f.filesystem.bounded(func() syscall.Errno {
		defer f.use.unlock()
		return f.storeNow()
	})
}

// storeNow is called with use held for writing.
func (f *file) storeNow() syscall.Errno {
	if errno := f.isBroken(); errno != 0 {
		if !f.unlinked.Load() {
			f.discard()
		}
		return errno
	}
	if !f.unstored || f.unlinked.Load() {
		return 0
	}
	if errno := f.filesystem.health.gate(); errno != 0 {
		return errno
	}
	var errs []error
	err := f.fetch()
	if err == nil {
		errs = f.closeCached()
	} else {
		errs = []error{err}
	}
	if len(errs) == 0 {
		// The last attempt failed: the content is in the cache still.
		f.filesystem.cache.begin(f)
		again, err := f.node().Open(os.O_RDWR)
		if err == nil {
			_, err = again.Seek(0, io.SeekEnd) // opens the content
			err = errors.Join(err, again.Close())
		}
		f.filesystem.cache.end(f)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		errno := f.errno("store", err)
		if errno == syscall.ENOSPC {
			f.setBroken(errno) // what is still to be fetched has no room
			f.discard()
		}
		return errno
	}
	f.unstored = false
	f.filesystem.setUnstored(f, false)
	return 0
}

// fetch has everything in the cache that storing needs of the object; called with use
// held for writing. rclone fetches it as well when it closes a file, but where that fails
// it is closed by half: the next open drops what was written.
func (f *file) fetch() error {
	if !f.unstored || f.unlinked.Load() {
		return nil
	}
	return f.filesystem.cache.fetch(f)
}

// closeCached closes rclone's handles that go through the cache; called with use held
// for writing.
func (f *file) closeCached() (errs []error) {
	for _, h := range f.open() {
		if open := h.take(isCached); open != nil {
			errs = append(errs, open.Close())
			f.filesystem.cache.end(f)
		}
		if h.isGone() {
			f.forget(h)
		}
	}
	return errs
}

// discard drops what was written, so that the object stays what it is; called with use
// held for writing.
func (f *file) discard() {
	f.filesystem.cache.discard(f, func() { _ = f.closeCached() })
	f.seenMu.Lock()
	f.seen = time.Time{} // the kernel's pages are of what was dropped
	f.seenMu.Unlock()
	f.unstored = false
	f.filesystem.setUnstored(f, false)
	if f.node().DirEntry() == nil {
		_ = f.node().Remove() // the name: there is no object
		f.gone()
	}
}

// isCached says whether content goes through the cache directory.
func isCached(v vfs.Handle) bool {
	_, ok := v.(*vfs.RWFileHandle)
	return ok
}

func (f *file) unlink() syscall.Errno {
	if errno := f.acquire(true, nil); errno != 0 {
		return errno
	}
	defer f.use.unlock()
	if errno := f.filesystem.health.gate(); errno != 0 {
		return errno
	}
	wasUnstored := f.unstored
	err := f.node().Remove()
	if err != nil && wasUnstored && errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		f.gone()
	}
	return f.errno("unlink", err)
}

func (f *file) replaced() {
	_ = f.use.take(true, forever) // never an error
	defer f.use.unlock()
	f.gone()
}

// gone is called with use held for writing.
func (f *file) gone() {
	f.unlinked.Store(true)
	f.unstored = false
	f.filesystem.setUnstored(f, false)
	for _, h := range f.open() {
		if !h.isGone() {
			continue
		}
		if open := h.take(isCached); open != nil { // release kept it
			_ = open.Close()
			f.filesystem.cache.end(f)
		}
		f.forget(h)
	}
	f.filesystem.cache.gone(f)
}

// storeBeneath stores what was written in a folder that is to be renamed.
func (f *filesystem) storeBeneath(dir string) syscall.Errno {
	f.mu.Lock()
	var files []*file
	for one := range f.unstored {
		if strings.HasPrefix(one.node().Path(), dir+"/") {
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

// release is called with use held for writing.
func (f *file) release(h *handle) syscall.Errno {
	defer f.use.unlock()
	h.end()
	if f.isBroken() != 0 && !f.unlinked.Load() {
		f.discard()
		f.forget(h)
		if f.writer() == nil {
			f.setBroken(0)
		}
		return 0
	}
	if h.has(isCached) {
		if err := f.fetch(); err != nil {
			return f.errno("close", err) // it is kept for who stores next
		}
	}
	f.forget(h)
	if open := h.take(isCached); open != nil {
		err := open.Close()
		f.filesystem.cache.end(f)
		if err != nil && !f.unlinked.Load() {
			return f.errno("close", err)
		}
	}
	return 0
}
