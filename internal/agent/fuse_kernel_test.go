package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// storage is a filesystem whose server is in the tests' hands: it can stop
// answering, die, and refuse root what it gives to users.
type storage struct {
	dir  string // where it is mounted
	conn int    // the kernel's number of the connection

	gone    sync.Once
	mu      sync.Mutex
	gate    chan struct{} // closed when the server answers again; nil while it does
	arrived chan struct{} // closed at the first request that finds it blocked
	rules   rules
}

// rules are how the storage departs from a local disk.
type rules struct {
	chown, chmod  syscall.Errno // what it answers root
	owner, group  uint32        // whose a new folder is
	squashesReads bool          // root may not list what is not open to all
}

// serve mounts a storage on a folder. Both go with the test.
func serve(t testing.TB, dir string, r rules) *storage {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	s := &storage{dir: dir, rules: r}
	zero := time.Duration(0)
	_, err := fs.Mount(dir, &folder{s: s, mode: 0o755}, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, AllowOther: true, FsName: "storage", Name: "test",
			Options: []string{"default_permissions"}, DisableXAttrs: true,
		},
	})
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(dir, &st))
	s.conn = int(unix.Minor(st.Dev))
	t.Cleanup(func() {
		s.answer()
		s.unmount(t)
	})
	return s
}

// unmount takes the storage off its folder. Its server ends with the last grant
// of it.
func (s *storage) unmount(t testing.TB) {
	t.Helper()
	s.gone.Do(func() { must(t, unix.Unmount(s.dir, unix.MNT_DETACH)) })
}

// hang stops the server from answering. arrived is closed when a request has
// come that it does not answer.
func (s *storage) hang() (arrived <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate, s.arrived = make(chan struct{}), make(chan struct{})
	return s.arrived
}

// answer has the server answer again, what has come in the meantime first.
func (s *storage) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
	}
}

// die ends the connection as the death of the server does.
func (s *storage) die(t testing.TB) {
	t.Helper()
	control := t.TempDir()
	must(t, unix.Mount("fusectl", control, "fusectl", 0, ""))
	defer func() { must(t, unix.Unmount(control, 0)) }()
	must(t, os.WriteFile(filepath.Join(control, strconv.Itoa(s.conn), "abort"), []byte("1"), 0o200))
}

func (s *storage) wait() {
	s.mu.Lock()
	gate := s.gate
	if gate != nil && s.arrived != nil {
		close(s.arrived)
		s.arrived = nil
	}
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// folder is a folder of a storage.
type folder struct {
	fs.Inode
	s *storage

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
	case chown && f.s.rules.chown != 0:
		f.mu.Unlock()
		return f.s.rules.chown
	case chmod && f.s.rules.chmod != 0:
		f.mu.Unlock()
		return f.s.rules.chmod
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
	child := &folder{s: f.s, mode: mode & 0o7777, uid: f.s.rules.owner, gid: f.s.rules.group}
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
	if f.s.rules.squashesReads && ok && caller.Uid == 0 && f.mode&0o005 != 0o005 {
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
