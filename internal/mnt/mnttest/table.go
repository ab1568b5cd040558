// Package mnttest has a mount table in memory, and the suite that it and the
// kernel's both pass.
//
// The one in memory behaves like the kernel's as far as the agent can tell:
// peers, slaves, stacked mounts, copies of nested mounts, flags that a copy is
// born with, EBUSY, and containers that follow the node. It is no mock: nothing
// is expected of it, and what a test finds out it finds out by looking at
// mounts.
//
// Directories are real ones, because a beneath.Dir is a descriptor; only the
// mounts are in memory. The table therefore goes by Dir.Path, and a directory's
// contents do not change when something is mounted on it.
package mnttest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

const (
	treeFlags    = mnt.NoSUID | mnt.NoDev | mnt.NoExec
	publishFlags = treeFlags | mnt.ReadOnly
	grantFlags   = mnt.NoSUID | mnt.NoDev

	// uniqueIDs keeps unique mount ids apart from those of mountinfo, as the
	// kernel does: who mixes them up matches nothing.
	uniqueIDs = 1 << 32

	memoryMajor, diskMajor = 0, 8
)

// Table is a mount table in memory. It is safe for concurrent use.
type Table struct {
	mu        sync.Mutex
	node      *namespace
	mounts    []*mount // every mount of every namespace
	lastID    int
	lastGroup int
	lastMinor uint32
	lists     int
	faults    map[string][]error
	log       []string
}

var _ mnt.Table = (*Table)(nil)

// New is a node with one filesystem, mounted on "/" and shared, as systemd
// leaves it.
func New() *Table {
	t := &Table{faults: map[string][]error{}}
	root := t.newMount(t.newFilesystem(diskMajor, "ext4", "/dev/sda1", "/"), "/")
	t.newGroup(root)
	t.node = &namespace{root: root}
	root.ns = t.node
	return t
}

func (t *Table) newFilesystem(major uint32, kind, source, backing string) *filesystem {
	t.lastMinor++
	return &filesystem{dev: mnt.Dev{Major: major, Minor: t.lastMinor}, kind: kind, source: source, backing: backing}
}

// NewTree implements mnt.Table.
func (t *Table) NewTree(on *beneath.Dir) (mnt.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter("newtree", on.Path()); err != nil {
		return mnt.Record{}, err
	}
	m := t.mountNew(on.Path(), memoryMajor, "tmpfs", "node-mounts", treeFlags)
	if m.peer == nil {
		t.newGroup(m)
	}
	return m.record(treeFlags), nil
}

// Publish implements mnt.Table.
func (t *Table) Publish(tree, volume *beneath.Dir) (mnt.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter("publish", tree.Path()+" on "+volume.Path()); err != nil {
		return mnt.Record{}, err
	}
	c := t.cloneTree(t.node.resolve(tree.Path()))
	t.makeSlave(c)
	c.flags |= publishFlags
	parent, at := t.node.resolve(volume.Path())
	t.attach(c, parent, at)
	return c.record(publishFlags), nil
}

// Bind implements mnt.Table. OpenTarget cannot see a mount in memory, so it is
// Bind that answers beneath.ErrMounted where a mount stands on target.
func (t *Table) Bind(source, target *beneath.Dir, flags mnt.Flags) (mnt.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	flags |= grantFlags
	if err := t.enter("bind", fmt.Sprintf("%s on %s %v", source.Path(), target.Path(), flags)); err != nil {
		return mnt.Record{}, err
	}
	parent, at := t.node.resolve(target.Path())
	if parent.point() == path.Clean(target.Path()) {
		return mnt.Record{}, t.failed(fmt.Errorf("attach %s: %w", target.Path(), beneath.ErrMounted))
	}
	c := t.cloneTree(t.node.resolve(source.Path()))
	t.makePrivate(c)
	for _, m := range c.tree() {
		m.flags |= flags
	}
	t.attach(c, parent, at)
	return c.record(flags), nil
}

// Unmount implements mnt.Table.
func (t *Table) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	point := path.Join(dir.Path(), name)
	t.mu.Lock()
	defer t.mu.Unlock()
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return fmt.Errorf("umount %s: %w", dir.Path(), beneath.ErrEscapes)
	}
	op := "unmount"
	if lazy {
		op = "detach"
	}
	if err := t.enter(op, point); err != nil {
		return err
	}
	return t.failed(t.unmount(point, lazy))
}

func (t *Table) unmount(point string, lazy bool) error {
	m, _ := t.node.resolve(point)
	switch {
	case m.parent == nil || m.point() != path.Clean(point):
		return fmt.Errorf("umount %s: %w: %w", point, mnt.ErrNotMounted, unix.EINVAL)
	case !lazy && t.busy(m):
		return fmt.Errorf("umount %s: %w: %w", point, mnt.ErrBusy, unix.EBUSY)
	}
	t.remove(m)
	return nil
}

// At implements mnt.Table. It answers for what stands at the path of dir now.
// The inode is the one of the real directory that shows there: a grant has its
// source's.
func (t *Table) At(dir *beneath.Dir) (mnt.Place, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.fault("at"); err != nil {
		return mnt.Place{}, fmt.Errorf("statx %s: %w", dir.Path(), err)
	}
	m, in := t.node.resolve(dir.Path())
	p := mnt.Place{Dev: m.fs.dev, Root: m.root, ID: m.uniqueID(), MountRoot: in == m.root, Inode: m.inode}
	if p.MountRoot {
		return p, nil
	}
	var err error
	if p.Inode, err = m.fs.inode(in); err != nil {
		return mnt.Place{}, fmt.Errorf("statx %s: %w", dir.Path(), err)
	}
	return p, nil
}

// InMemory implements mnt.Table.
func (t *Table) InMemory(dir *beneath.Dir) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.fault("inmemory"); err != nil {
		return false, fmt.Errorf("fstatfs %s: %w", dir.Path(), err)
	}
	m, _ := t.node.resolve(dir.Path())
	return m.fs.kind == "tmpfs", nil
}

// Probe implements mnt.Table: this table can always make a mount, except where a
// test says otherwise (FailNext "probe").
func (t *Table) Probe(dir *beneath.Dir) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.fault("probe"); err != nil {
		return fmt.Errorf("probe %s: %w", dir.Path(), err)
	}
	return nil
}

// Children implements mnt.Table.
func (t *Table) Children(dir *beneath.Dir) ([]mnt.Mount, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.fault("children"); err != nil {
		return nil, fmt.Errorf("listmount %s: %w", dir.Path(), err)
	}
	on, _ := t.node.resolve(dir.Path())
	var children []mnt.Mount
	for _, m := range t.node.list() {
		if m.Parent == on.id && m.ID != on.id {
			m.FSType, m.Source = "", ""
			children = append(children, m)
		}
	}
	return children, nil
}

// List implements mnt.Table.
func (t *Table) List() ([]mnt.Mount, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lists++
	if err := t.fault("list"); err != nil {
		return nil, fmt.Errorf("reading mountinfo: %w", err)
	}
	return t.node.list(), nil
}

// Lists is how often the whole table has been read through List.
func (t *Table) Lists() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lists
}

// Mounts is the node's mount table, like List, but it neither counts nor fails.
func (t *Table) Mounts() []mnt.Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.node.list()
}

// MountTmpfs mounts a memory filesystem on point, as kubelet does for a
// memory-backed volume.
func (t *Table) MountTmpfs(point string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mountNew(point, memoryMajor, "tmpfs", "tmpfs", 0)
}

// MountDisk mounts another filesystem on point: the shared claim, or one nested
// in it.
func (t *Table) MountDisk(point string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mountNew(point, diskMajor, "ext4", "/dev/sdb", 0)
}

func (t *Table) mountNew(point string, major uint32, kind, source string, flags mnt.Flags) *mount {
	parent, at := t.node.resolve(point)
	m := t.newMount(t.newFilesystem(major, kind, source, path.Clean(point)), "/")
	m.flags = flags
	t.attach(m, parent, at)
	return m
}

// MakePrivate takes the mount that point lies on out of its peer group: the
// node whose kubelet directory propagates nothing. point must be a mount point.
func (t *Table) MakePrivate(point string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.mountAt(t.node, point)
	t.leave(m)
	m.master = nil
}

// Umount takes the topmost mount off point as somebody else on the node would
// (kubelet, an administrator): it is not logged and does not meet a fault.
func (t *Table) Umount(point string, lazy bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unmount(point, lazy)
}

// Hold is a process with a file open in the topmost mount at point, seen from
// the node. An Unmount that would take this mount is busy until release.
func (t *Table) Hold(point string) (release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold(t.mountAt(t.node, point))
}

func (t *Table) hold(m *mount) (release func()) {
	m.holds++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		m.holds--
	})
}

// mountAt is the topmost mount attached at point. There being none is a mistake
// in the test itself.
func (t *Table) mountAt(ns *namespace, point string) *mount {
	m, _ := ns.resolve(point)
	if m.point() != path.Clean(point) {
		panic("mnttest: no mount stands at " + point)
	}
	return m
}

// FailNext makes the next call of this kind fail with err, after those that were
// asked to fail before. op: "newtree", "publish", "bind", "mount", "attach",
// "unmount" (lazy or not), "at", "inmemory", "probe", "children", "list".
func (t *Table) FailNext(op string, err error) {
	if !slices.Contains([]string{"newtree", "publish", "bind", "mount", "attach", "unmount", "at", "inmemory", "probe", "children", "list"}, op) {
		panic("mnttest: no operation is called " + op)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults[op] = append(t.faults[op], err)
}

func (t *Table) fault(op string) error {
	queue := t.faults[op]
	if len(queue) == 0 {
		return nil
	}
	t.faults[op] = queue[1:]
	return queue[0]
}

// Log is what NewTree, Publish, Bind, Mount, Attach and Unmount were asked to do, in order, a
// line each: "bind /claim/home on /root/pods/u/alice rw,nosuid,nodev", with
// ": reason" where it failed.
func (t *Table) Log() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.log)
}

// enter logs an operation that changes the table and gives the fault that was
// ordered for it.
func (t *Table) enter(op, what string) error {
	t.log = append(t.log, op+" "+what)
	if op == "detach" {
		op = "unmount"
	}
	if err := t.fault(op); err != nil {
		return t.failed(fmt.Errorf("%s %s: %w", op, what, err))
	}
	return nil
}

// failed adds why to the line of the log that enter wrote.
func (t *Table) failed(err error) error {
	if err != nil {
		reason := err.Error()
		for _, known := range []error{mnt.ErrBusy, mnt.ErrNotMounted, beneath.ErrMounted} {
			if i := strings.Index(reason, known.Error()); i >= 0 {
				reason = known.Error()
			}
		}
		if i := strings.LastIndex(reason, ": "); i >= 0 {
			reason = reason[i+2:]
		}
		t.log[len(t.log)-1] += ": " + reason
	}
	return err
}

func (m *mount) uniqueID() uint64 { return uniqueIDs + uint64(m.id) }

func (m *mount) record(flags mnt.Flags) mnt.Record {
	return mnt.Record{Dev: m.fs.dev, Root: m.root, Inode: m.inode, Flags: flags, ID: m.uniqueID()}
}
