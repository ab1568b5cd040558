package beneath_test

import (
	"context"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// storage is a filesystem of folders with ideas of its own about owners and
// modes: an export that squashes root, an access point.
type storage struct {
	uid, gid uint32        // the owner of every folder, whoever makes it
	mode     uint32        // the mode of every folder, 0 for the one asked for
	drops    uint32        // bits that a new folder is not given
	null     bool          // a mode of 0000 is told as it is
	chown    syscall.Errno // its answer to one
	chmod    syscall.Errno
	swapFor  string // what a link leads to that takes the place of a new folder at once

	mu    sync.Mutex
	asked asked
}

// asked is what storage was asked for.
type asked struct {
	mkdirs  []uint32 // the mode of each
	chowns  int
	removed int
}

func (s *storage) so() asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// folder is one folder of it.
type folder struct {
	fs.Inode
	in       *storage
	uid, gid uint32
	mode     uint32
}

var (
	_ = fs.NodeGetattrer((*folder)(nil))
	_ = fs.NodeSetattrer((*folder)(nil))
	_ = fs.NodeMkdirer((*folder)(nil))
	_ = fs.NodeRmdirer((*folder)(nil))
)

func (f *folder) attr(out *fuse.Attr) {
	out.Mode, out.Uid, out.Gid, out.Nlink = f.mode, f.uid, f.gid, 2
}

func (f *folder) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.in.mu.Lock()
	defer f.in.mu.Unlock()
	f.attr(&out.Attr)
	return 0
}

func (f *folder) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	f.in.mu.Lock()
	defer f.in.mu.Unlock()
	if uid, ok := in.GetUID(); ok {
		f.in.asked.chowns++
		if f.in.chown != 0 {
			return f.in.chown
		}
		f.uid = uid
	}
	if gid, ok := in.GetGID(); ok {
		if f.in.chown != 0 {
			return f.in.chown
		}
		f.gid = gid
	}
	if mode, ok := in.GetMode(); ok {
		if f.in.chmod != 0 {
			return f.in.chmod
		}
		if f.in.mode == 0 {
			f.mode = mode & 0o7777
		}
	}
	f.attr(&out.Attr)
	return 0
}

func (f *folder) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	f.in.mu.Lock()
	defer f.in.mu.Unlock()
	child := f.GetChild(name)
	if child == nil {
		return nil, syscall.ENOENT
	}
	if f.in.swapFor != "" {
		link := &fs.MemSymlink{Data: []byte(f.in.swapFor)}
		return f.NewPersistentInode(ctx, link, fs.StableAttr{Mode: fuse.S_IFLNK}), 0
	}
	child.Operations().(*folder).attr(&out.Attr)
	return child, 0
}

func (f *folder) Mkdir(ctx context.Context, _ string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	f.in.mu.Lock()
	defer f.in.mu.Unlock()
	f.in.asked.mkdirs = append(f.in.asked.mkdirs, mode&0o7777)
	sub := &folder{in: f.in, uid: f.in.uid, gid: f.in.gid, mode: mode & 0o7777 &^ f.in.drops}
	if f.in.mode != 0 {
		sub.mode = f.in.mode
	}
	sub.attr(&out.Attr)
	return f.NewPersistentInode(ctx, sub, fs.StableAttr{Mode: fuse.S_IFDIR}), 0
}

func (f *folder) Rmdir(_ context.Context, name string) syscall.Errno {
	f.in.mu.Lock()
	defer f.in.mu.Unlock()
	if len(f.GetChild(name).Children()) > 0 {
		return syscall.ENOTEMPTY
	}
	f.in.asked.removed++
	return 0
}

// mount serves the storage. The kernel checks permissions by owner and mode, and
// asks for both each time.
func (s *storage) mount(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	server, err := fs.Mount(dir, &folder{in: s, uid: 0, gid: 0, mode: 0o755}, &fs.Options{
		NullPermissions: s.null,
		MountOptions:    fuse.MountOptions{DirectMountStrict: true, AllowOther: true, Name: "folders", Options: []string{"default_permissions"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return dir
}
