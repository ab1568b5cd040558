package agent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// server is the process that answers for a storage. It reads one request a line
// and says when it has done it; that a request of the kernel waits it says unasked.
type server struct {
	rules rules

	mu      sync.Mutex
	gate    chan struct{} // closed when it answers again; nil while it does
	waiting bool          // that a request waits has been said
}

// runServer is the server's program: it mounts a storage on dir, and ends when its
// standard input does.
func runServer(dir, config string) error {
	s := &server{}
	if err := json.Unmarshal([]byte(config), &s.rules); err != nil {
		return err
	}
	zero := time.Duration(0)
	_, err := fs.Mount(dir, &folder{s: s, mode: 0o755}, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, AllowOther: true, FsName: "storage", Name: "test",
			Options: []string{"default_permissions"}, DisableXAttrs: true,
		},
	})
	if err != nil {
		return err
	}
	fmt.Println(done)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		s.mu.Lock()
		switch in.Text() {
		case hang:
			s.gate, s.waiting = make(chan struct{}), false
		case answer:
			if s.gate != nil {
				close(s.gate)
				s.gate = nil
			}
		}
		fmt.Println(done)
		s.mu.Unlock()
	}
	return nil
}

// wait is the first thing that each request of the kernel does.
func (s *server) wait() {
	s.mu.Lock()
	gate := s.gate
	if gate != nil && !s.waiting {
		s.waiting = true
		fmt.Println(arrived)
	}
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// folder is a folder of a storage.
type folder struct {
	fs.Inode
	s *server

	mu             sync.Mutex
	mode, uid, gid uint32
}

var _ = (interface {
	fs.NodeLookuper
	fs.NodeGetattrer
	fs.NodeSetattrer
	fs.NodeMkdirer
	fs.NodeRmdirer
	fs.NodeOpendirer
	fs.NodeReaddirer
	fs.NodeCreater
})((*folder)(nil))

func (f *folder) fill(a *fuse.Attr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.Mode, a.Uid, a.Gid, a.Nlink, a.Ino = syscall.S_IFDIR|f.mode, f.uid, f.gid, 2, f.StableAttr().Ino
}

func (f *folder) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	f.s.wait()
	child := f.GetChild(name)
	if child == nil {
		return nil, syscall.ENOENT
	}
	switch n := child.Operations().(type) {
	case *folder:
		n.fill(&out.Attr)
	case *fs.MemRegularFile:
		var attr fuse.AttrOut
		if errno := n.Getattr(ctx, nil, &attr); errno != 0 {
			return nil, errno
		}
		out.Attr = attr.Attr
	}
	return child, 0
}

func (f *folder) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.s.wait()
	f.fill(&out.Attr)
	return 0
}

func (f *folder) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	f.s.wait()
	f.mu.Lock()
	uid, chown := in.GetUID()
	gid, _ := in.GetGID()
	mode, chmod := in.GetMode()
	switch {
	case chown && f.s.rules.Chown != 0:
		f.mu.Unlock()
		return f.s.rules.Chown
	case chmod && f.s.rules.Chmod != 0:
		f.mu.Unlock()
		return f.s.rules.Chmod
	}
	if chown {
		f.uid, f.gid = uid, gid
	}
	if chmod {
		f.mode = mode & 0o7777
	}
	f.mu.Unlock()
	f.fill(&out.Attr)
	return 0
}

func (f *folder) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	f.s.wait()
	child := &folder{s: f.s, mode: mode & 0o7777, uid: f.s.rules.Owner, gid: f.s.rules.Group}
	if f.s.rules.DropsSticky {
		child.mode &^= syscall.S_ISVTX
	}
	inode := f.NewInode(ctx, child, fs.StableAttr{Mode: syscall.S_IFDIR})
	if !f.AddChild(name, inode, false) {
		return nil, syscall.EEXIST
	}
	child.fill(&out.Attr)
	return inode, 0
}

func (f *folder) Rmdir(_ context.Context, name string) syscall.Errno {
	f.s.wait()
	child := f.GetChild(name)
	switch {
	case child == nil:
		return syscall.ENOENT
	case len(child.Children()) > 0:
		return syscall.ENOTEMPTY
	}
	f.RmChild(name)
	return 0
}

func (f *folder) Opendir(ctx context.Context) syscall.Errno {
	f.s.wait()
	caller, ok := fuse.FromContext(ctx)
	if f.s.rules.SquashesReads && ok && caller.Uid == 0 && f.mode&0o005 != 0o005 {
		return syscall.EACCES
	}
	return 0
}

func (f *folder) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	f.s.wait()
	var entries []fuse.DirEntry
	for name, child := range f.Children() {
		entries = append(entries, fuse.DirEntry{Name: name, Mode: child.Mode(), Ino: child.StableAttr().Ino})
	}
	return fs.NewListDirStream(entries), 0
}

func (f *folder) Create(ctx context.Context, name string, _, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	f.s.wait()
	file := &fs.MemRegularFile{Attr: fuse.Attr{Mode: mode & 0o777}}
	if caller, ok := fuse.FromContext(ctx); ok {
		file.Attr.Uid, file.Attr.Gid = caller.Uid, caller.Gid
	}
	inode := f.NewInode(ctx, file, fs.StableAttr{Mode: syscall.S_IFREG})
	f.AddChild(name, inode, true)
	out.Attr = file.Attr
	return inode, nil, 0, 0
}
