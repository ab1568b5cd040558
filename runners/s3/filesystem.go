package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rclone/rclone/vfs"
)

const (
	// kernelTimeout is for how long the kernel believes a name and its attributes. It
	// comes on top of dirCacheTime.
	kernelTimeout = time.Second
	// endTimeout bounds what is still stored when the process is told to end.
	endTimeout = 20 * time.Second
	// endPause is between two attempts to store at the end.
	endPause = 500 * time.Millisecond
	// answerPause is the time for an answer to be written to the kernel.
	answerPause = 100 * time.Millisecond
)

// filesystem is one mount.
type filesystem struct {
	bucket   *bucket
	cache    *cache
	health   *health
	report   reporter
	uid, gid uint32
	readOnly bool

	mu       sync.Mutex
	unstored map[*file]struct{} // files with content that is not in the bucket yet
	opened   map[*file]struct{} // files with handles
}

// serve answers the kernel until the mount is gone or ctx ends, and stores what is not
// in the bucket by then.
func serve(ctx context.Context, o options, b *bucket) error {
	cache, err := newCache(b.vfs, o.cacheSize)
	if err != nil {
		return err
	}
	f := &filesystem{bucket: b, cache: cache, uid: uint32(o.uid), gid: uint32(o.gid), readOnly: o.readOnly, unstored: map[*file]struct{}{}, opened: map[*file]struct{}{}}
	f.health = newHealth(b, &f.report)
	b.over.health = f.health
	root, err := b.vfs.Root()
	if err != nil {
		return err
	}
	second := kernelTimeout
	top := &folder{filesystem: f, dir: root}
	root.SetAux(f, top)
	server, err := fuse.NewServer(fusefs.NewNodeFS(top, &fusefs.Options{
		EntryTimeout: &second, AttrTimeout: &second, NullPermissions: true,
		RootStableAttr: &fusefs.StableAttr{Ino: root.Inode()},
	}), fmt.Sprintf("/dev/fd/%d", o.fuseFD), &fuse.MountOptions{
		MaxWrite: 1 << 20, MaxReadAhead: 1 << 20,
		DisableXAttrs: true,
	})
	if err != nil {
		return fmt.Errorf("the kernel does not speak FUSE on descriptor %d: %w", o.fuseFD, err)
	}
	gone := make(chan struct{})
	go func() { server.Serve(); close(gone) }()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	return f.end()
}

// end stores what is not in the bucket, in bounded time. A server that does not take it
// now may in a second: who wrote it has gone, and nobody else tries again.
func (f *filesystem) end() error {
	begun := time.Now()
	deadline := time.After(endTimeout)
	waited := false
	broken := make(map[*file]struct{}) // nothing of them is to be stored
	for {
		f.mu.Lock()
		var files []*file
		for one := range f.unstored {
			files = append(files, one)
		}
		f.mu.Unlock()
		if len(files) == 0 {
			if waited {
				// Whoever waits in close(2) is to hear that it was stored.
				time.Sleep(answerPause)
			}
			if len(broken) != 0 {
				return notStored(len(broken), "")
			}
			return nil
		}
		waited = true
		results := make(chan syscall.Errno, len(files))
		for _, one := range files {
			if one.isBroken() != 0 {
				broken[one] = struct{}{}
			}
			go func() { results <- one.store() }()
		}
		if err := allStored(len(files), results, deadline); err != nil {
			if time.Since(begun)+endPause > endTimeout {
				return err
			}
			time.Sleep(endPause)
		}
	}
}

// allStored waits for what became of each of so many files, until the deadline.
func allStored(files int, results <-chan syscall.Errno, deadline <-chan time.Time) error {
	left := files
	for range files {
		select {
		case errno := <-results:
			if errno == 0 {
				left--
			}
		case <-deadline:
			return notStored(left, " in "+endTimeout.String())
		}
	}
	if left != 0 {
		return notStored(left, "")
	}
	return nil
}

func notStored(files int, within string) error {
	what := fmt.Sprintf("%d files", files)
	if files == 1 {
		what = "1 file"
	}
	return &exitError{exitNotStored, what + " could not be stored" + within}
}

// await waits until done is closed. It is EIO where that takes long and the server does
// not list the bucket either, and EINTR where given is closed: what takes long may be
// large, but a server that is silent must not keep a caller.
func (f *filesystem) await(done, given <-chan struct{}) syscall.Errno {
	for {
		begun, patience := time.Now(), answerTimeout
		known := !f.health.isGood()
		if known {
			patience = latePause
		}
		timer := time.NewTimer(patience)
		select {
		case <-done:
			timer.Stop()
			return 0
		case <-given:
			timer.Stop()
			return syscall.EINTR
		case <-timer.C:
		}
		var errno syscall.Errno
		if known {
			errno = f.health.gate()
		} else {
			errno = f.health.since(begun.Add(patience/2), nil)
		}
		if errno != 0 {
			select {
			case <-done:
				return 0
			default:
				return errno
			}
		}
	}
}

// bounded does what may take as long as the server does, and goes on with it where the
// server does not answer.
func (f *filesystem) bounded(do func() syscall.Errno) syscall.Errno {
	var errno syscall.Errno
	done := make(chan struct{})
	go func() { errno = do(); close(done) }()
	if late := f.await(done, nil); late != 0 {
		return late
	}
	return errno
}

func (f *filesystem) setUnstored(one *file, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if is {
		f.unstored[one] = struct{}{}
	} else {
		delete(f.unstored, one)
	}
}

func (f *filesystem) setOpen(one *file, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if is {
		f.opened[one] = struct{}{}
	} else {
		delete(f.opened, one)
	}
}

func (f *filesystem) attr(n vfs.Node, out *fuse.Attr) {
	mode := uint32(n.Mode().Perm())
	out.Nlink = 1
	if n.IsDir() {
		mode |= syscall.S_IFDIR
	} else {
		mode |= syscall.S_IFREG
		out.Size = uint64(n.Size())
	}
	out.Mode, out.Ino, out.Uid, out.Gid = mode, n.Inode(), f.uid, f.gid
	out.Blocks, out.Blksize = (out.Size+511)/512, 1<<20
	when := n.ModTime()
	out.SetTimes(&when, &when, &when)
}

// node is what there is of a file or a folder here: one for each name. rclone forgets a
// folder that nobody has listed for two minutes, and makes its files anew: a file that is
// open stays the one it was, or two stores of it would not know of each other.
func (f *filesystem) node(n vfs.Node) fusefs.InodeEmbedder {
	var same *file
	if one, ok := n.(*vfs.File); ok && n.Aux(f) == nil {
		same = f.openedAs(one)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known, _ := n.Aux(f).(fusefs.InodeEmbedder)
	switch n := n.(type) {
	case *vfs.Dir:
		if known == nil {
			known = &folder{filesystem: f, dir: n}
		}
	case *vfs.File:
		if known == nil && same != nil {
			known = same
		}
		if known == nil {
			known = &file{filesystem: f, handles: map[*handle]struct{}{}}
		}
		known.(*file).is.Store(n) //nolint:forcetypeassert // a File's is nothing else
	}
	n.SetAux(f, known)
	return known
}

// openedAs is the file that is open, or not stored yet, under the name of rclone's, nil
// where there is none.
func (f *filesystem) openedAs(n *vfs.File) *file {
	f.mu.Lock()
	all := slices.AppendSeq(slices.Collect(maps.Keys(f.opened)), maps.Keys(f.unstored))
	f.mu.Unlock()
	for _, one := range all { // rclone may wait for the server: not with mu held
		if is := one.node(); !one.unlinked.Load() && is.Name() == n.Name() && is.Path() == n.Path() {
			return one
		}
	}
	return nil
}

func (f *filesystem) inode(ctx context.Context, parent *fusefs.Inode, n vfs.Node, out *fuse.EntryOut) *fusefs.Inode {
	f.attr(n, &out.Attr)
	return parent.NewInode(ctx, f.node(n), fusefs.StableAttr{Mode: out.Mode & syscall.S_IFMT, Ino: n.Inode()})
}

// setattr is what chmod, chown and utimens come to: S3 keeps none of them.
func (f *filesystem) setattr(in *fuse.SetAttrIn) syscall.Errno {
	if f.readOnly {
		return syscall.EROFS
	}
	if uid, ok := in.GetUID(); ok && uid != f.uid {
		return syscall.EPERM
	}
	if gid, ok := in.GetGID(); ok && gid != f.gid {
		return syscall.EPERM
	}
	return 0
}

// statfs says whether the server serves the bucket. A bucket has no size: tools that
// look for room before they write find an exabyte.
func (f *filesystem) statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := f.health.errno(ctx); errno != 0 {
		return errno
	}
	out.Bsize, out.Frsize, out.NameLen = 1<<20, 1<<20, longestName
	out.Blocks, out.Bfree, out.Bavail = 1<<40, 1<<40, 1<<40
	out.Files, out.Ffree = 1<<40, 1<<40
	return 0
}

var writing = uint32(os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_TRUNC)
