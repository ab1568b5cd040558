package main

import (
	"context"
	"os"
	"path"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/vfs"
	"golang.org/x/sys/unix"
)

type folder struct {
	fusefs.Inode
	filesystem *filesystem
	dir        *vfs.Dir
}

var (
	_ fusefs.NodeGetattrer = (*folder)(nil)
	_ fusefs.NodeSetattrer = (*folder)(nil)
	_ fusefs.NodeLookuper  = (*folder)(nil)
	_ fusefs.NodeReaddirer = (*folder)(nil)
	_ fusefs.NodeCreater   = (*folder)(nil)
	_ fusefs.NodeMknoder   = (*folder)(nil)
	_ fusefs.NodeMkdirer   = (*folder)(nil)
	_ fusefs.NodeRmdirer   = (*folder)(nil)
	_ fusefs.NodeUnlinker  = (*folder)(nil)
	_ fusefs.NodeRenamer   = (*folder)(nil)
	_ fusefs.NodeSymlinker = (*folder)(nil)
	_ fusefs.NodeLinker    = (*folder)(nil)
	_ fusefs.NodeStatfser  = (*folder)(nil)
)

// Getattr implements [fusefs.NodeGetattrer].
func (d *folder) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	d.filesystem.attr(d.dir, &out.Attr)
	return 0
}

// Setattr implements [fusefs.NodeSetattrer].
func (d *folder) Setattr(_ context.Context, _ fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if errno := d.filesystem.setattr(in); errno != 0 {
		return errno
	}
	d.filesystem.attr(d.dir, &out.Attr)
	return 0
}

func (d *folder) errno(operation string, err error) syscall.Errno {
	return d.filesystem.report.errno(operation, err)
}

// Lookup implements [fusefs.NodeLookuper].
func (d *folder) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	name, errno := d.filesystem.bucket.standardName(name)
	if errno != 0 {
		return nil, errno
	}
	n, err := d.dir.Stat(name)
	if err != nil {
		return nil, d.errno("lookup", err)
	}
	return d.filesystem.inode(ctx, d.EmbeddedInode(), n, out), 0
}

// Readdir implements [fusefs.NodeReaddirer].
func (d *folder) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	nodes, err := d.dir.ReadDirAll()
	if err != nil {
		return nil, d.errno("readdir", err)
	}
	entries := make([]fuse.DirEntry, 0, len(nodes))
	for _, n := range nodes {
		mode := uint32(syscall.S_IFREG)
		if n.IsDir() {
			mode = syscall.S_IFDIR
		}
		if name, ok := d.filesystem.bucket.listed(n.Name()); ok {
			entries = append(entries, fuse.DirEntry{Name: name, Mode: mode, Ino: n.Inode()})
		}
	}
	return fusefs.NewListDirStream(entries), 0
}

// Create implements [fusefs.NodeCreater].
func (d *folder) Create(ctx context.Context, name string, flags, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	if d.filesystem.readOnly {
		return nil, nil, 0, syscall.EROFS
	}
	name, errno := d.filesystem.bucket.standardName(name)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	created, err := d.dir.Create(name, int(flags))
	if err != nil {
		return nil, nil, 0, d.errno("create", err)
	}
	one := d.filesystem.node(created).(*file)
	h := one.newHandle(flags)
	if errno := one.create(h, flags); errno != 0 {
		one.forget(h)
		return nil, nil, 0, errno
	}
	return d.filesystem.inode(ctx, d.EmbeddedInode(), created, out), h, 0, 0
}

// Mknod implements [fusefs.NodeMknoder], for regular files.
func (d *folder) Mknod(ctx context.Context, name string, mode, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	if mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, syscall.EPERM
	}
	made, h, _, errno := d.Create(ctx, name, uint32(os.O_WRONLY|os.O_CREATE|os.O_EXCL), mode, out)
	if errno != 0 {
		return nil, errno
	}
	errno = h.(*handle).Flush(ctx)
	_ = h.(*handle).Release(ctx)
	return made, errno
}

// Mkdir implements [fusefs.NodeMkdirer].
func (d *folder) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	name, errno := d.filesystem.bucket.standardName(name)
	if errno != 0 {
		return nil, errno
	}
	if errno := d.filesystem.health.gate(); errno != 0 {
		return nil, errno
	}
	made, err := d.dir.Mkdir(name)
	if err != nil {
		return nil, d.errno("mkdir", err)
	}
	return d.filesystem.inode(ctx, d.EmbeddedInode(), made, out), 0
}

// Rmdir implements [fusefs.NodeRmdirer].
func (d *folder) Rmdir(_ context.Context, name string) syscall.Errno {
	name, errno := d.filesystem.bucket.standardName(name)
	if errno != 0 {
		return errno
	}
	n, err := d.dir.Stat(name)
	if err != nil {
		return d.errno("rmdir", err)
	}
	if !n.IsDir() {
		return syscall.ENOTDIR
	}
	if errno := d.filesystem.health.gate(); errno != 0 {
		return errno
	}
	return d.errno("rmdir", n.Remove())
}

// Unlink implements [fusefs.NodeUnlinker].
func (d *folder) Unlink(_ context.Context, name string) syscall.Errno {
	name, errno := d.filesystem.bucket.standardName(name)
	if errno != 0 {
		return errno
	}
	n, err := d.dir.Stat(name)
	if err != nil {
		return d.errno("unlink", err)
	}
	removed, ok := n.(*vfs.File)
	if !ok {
		return syscall.EISDIR
	}
	return d.filesystem.node(removed).(*file).unlink()
}

// Rename implements [fusefs.NodeRenamer]: a copy on the server and a removal, for each
// object of a folder.
func (d *folder) Rename(ctx context.Context, name string, newParent fusefs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	to := newParent.(*folder)
	if flags&^unix.RENAME_NOREPLACE != 0 {
		return syscall.EINVAL
	}
	name, errno := d.filesystem.bucket.standardName(name)
	if errno != 0 {
		return errno
	}
	newName, errno = d.filesystem.bucket.standardName(newName)
	if errno != 0 {
		return errno
	}
	n, err := d.dir.Stat(name)
	if err != nil {
		return d.errno("rename", err)
	}
	there, err := to.dir.Stat(newName)
	switch errno := d.errno("rename", err); {
	case errno == syscall.ENOENT:
	case errno != 0:
		return errno
	case flags&unix.RENAME_NOREPLACE != 0:
		return syscall.EEXIST
	case there == n:
		return 0
	default:
		if errno := d.makeRoom(n, there); errno != 0 {
			return errno
		}
	}
	if one, ok := n.(*vfs.File); ok {
		// What is in the bucket is what can be copied there.
		if errno := d.filesystem.node(one).(*file).store(); errno != 0 {
			return errno
		}
	} else if errno := d.filesystem.storeBeneath(n.Path()); errno != 0 {
		return errno
	}
	if errno := d.filesystem.health.gate(); errno != 0 {
		return errno
	}
	// A signal to the caller, which the kernel passes on as the end of ctx, must not leave
	// half of it moved.
	ctx = context.WithoutCancel(ctx)
	return d.filesystem.bounded(func() syscall.Errno { return d.move(ctx, n, there, name, to, newName) })
}

// move is the rename where nothing speaks against it; there is what it replaces, or nil.
func (d *folder) move(ctx context.Context, n, there vfs.Node, name string, to *folder, newName string) syscall.Errno {
	from := n.Path()
	target := path.Join(to.dir.Path(), newName)
	if err := d.filesystem.cache.rename(from, target, func() error { return d.dir.Rename(name, newName, to.dir) }); err != nil {
		return d.errno("rename", err)
	}
	moved, ok := n.(*vfs.Dir)
	if !ok {
		if old, ok := there.(*vfs.File); ok {
			// Whoever has the old one open has it no more.
			d.filesystem.node(old).(*file).replaced()
		}
		return 0
	}
	if err := d.filesystem.bucket.moveFolders(ctx, from, target); err != nil {
		return d.errno("rename", err)
	}
	return d.errno("rename", listAnew(moved))
}

// listAnew gives rclone's files in a folder that was moved the objects that they are
// now: it would go on writing to the old keys.
func listAnew(dir *vfs.Dir) error {
	dir.ForgetPath("any", fs.EntryObject) // the listing, not what is known of the files
	nodes, err := dir.ReadDirAll()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if beneath, ok := n.(*vfs.Dir); ok {
			if err := listAnew(beneath); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeRoom is for what a rename replaces.
func (d *folder) makeRoom(n, there vfs.Node) syscall.Errno {
	switch {
	case n.IsDir() && !there.IsDir():
		return syscall.ENOTDIR
	case !n.IsDir() && there.IsDir():
		return syscall.EISDIR
	case n.IsDir():
		return d.errno("rename", there.Remove())
	}
	return 0
}

// Symlink implements [fusefs.NodeSymlinker]: S3 has none.
func (*folder) Symlink(context.Context, string, string, *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

// Link implements [fusefs.NodeLinker]: S3 has none.
func (*folder) Link(context.Context, fusefs.InodeEmbedder, string, *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

// Statfs implements [fusefs.NodeStatfser].
func (d *folder) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	return d.filesystem.statfs(ctx, out)
}
