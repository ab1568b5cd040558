package mnttest

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// drivers are the filesystems that this table can mount.
var drivers = [...]string{"tmpfs", "nfs4"}

// detached is a mount that is attached nowhere. What it shows is decided where it
// is attached: the directory there stands for its root.
type detached struct {
	fs    mnt.Filesystem
	flags mnt.Flags
}

// Close implements mnt.Detached.
func (*detached) Close() {}

var errNoRoot = errors.New("what a mount in memory shows is decided where it is attached")

// Root implements mnt.Detached.
func (*detached) Root() (*beneath.Dir, error) { return nil, errNoRoot }

// Mount implements mnt.Table. Settings are not looked at, and no server is asked.
func (t *Table) Mount(fs mnt.Filesystem, flags mnt.Flags) (mnt.Detached, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	flags |= grantFlags
	if err := t.enter("mount", fmt.Sprintf("%s %s %v", fs.Type, fs.Source, flags)); err != nil {
		return nil, err
	}
	if !slices.Contains(drivers[:], fs.Type) {
		return nil, t.failed(fmt.Errorf("mount %s: %w", fs.Type, mnt.ErrNoFilesystem))
	}
	return &detached{fs: fs, flags: flags}, nil
}

// Attach implements mnt.Table. As with Bind, it is this that answers
// beneath.ErrMounted where a mount stands on target.
func (t *Table) Attach(m mnt.Detached, target *beneath.Dir) (mnt.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter("attach", target.Path()); err != nil {
		return mnt.Record{}, err
	}
	d, ok := m.(*detached)
	if !ok {
		return mnt.Record{}, t.failed(fmt.Errorf("attach %s: a mount of another table: %T", target.Path(), m))
	}
	parent, _ := t.node.resolve(target.Path())
	if parent.point() == path.Clean(target.Path()) {
		return mnt.Record{}, t.failed(fmt.Errorf("attach %s: %w", target.Path(), beneath.ErrMounted))
	}
	return t.mountNew(target.Path(), memoryMajor, d.fs.Type, d.fs.Source, d.flags).record(d.flags), nil
}

// Swap implements mnt.Table.
func (t *Table) Swap(m mnt.Detached, dir *beneath.Dir, name string) (mnt.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	point := path.Join(dir.Path(), name)
	if err := t.enter("swap", point); err != nil {
		return mnt.Record{}, err
	}
	d, ok := m.(*detached)
	if !ok {
		return mnt.Record{}, t.failed(fmt.Errorf("swap %s: a mount of another table: %T", point, m))
	}
	if err := t.unmount(point, true); err != nil {
		return mnt.Record{}, t.failed(err)
	}
	return t.mountNew(point, memoryMajor, d.fs.Type, d.fs.Source, d.flags).record(d.flags), nil
}

// Connection implements mnt.Table. No filesystem here has a server.
func (t *Table) Connection(dev mnt.Dev) (mnt.Connection, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return connection{}, t.enter("connection", dev.String())
}

type connection struct{}

func (connection) Abort() error { return nil }
func (connection) Close()       {}
