package mnttest

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// filesystem is a superblock. Its directory "/x" is the real directory
// backing + "/x".
type filesystem struct {
	dev     mnt.Dev
	kind    string // "tmpfs", "ext4"
	source  string
	backing string
}

// inode is the inode of a directory of fs, as it is on the disk.
func (fs *filesystem) inode(dir string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(path.Join(fs.backing, dir), &st)
	return st.Ino, err
}

// group is a peer group. Its members receive each other's mounts, and its
// slaves receive them too.
type group struct {
	id      int
	members []*mount
}

// mount is one mount of a namespace, or the top of a detached tree while ns is
// nil. Like the kernel's, it is attached on a directory of its parent's
// filesystem, not on a path: that is what lets an attachment find its place in
// every copy of the parent.
type mount struct {
	id       int
	ns       *namespace
	parent   *mount
	at       string // directory of the parent's filesystem
	children []*mount
	fs       *filesystem
	root     string // the directory of fs that shows at the mount point
	inode    uint64 // of that directory, whatever becomes of its name
	flags    mnt.Flags
	peer     *group
	master   *group
	holds    int
}

// namespace is a mount namespace: the node's, or a container's.
type namespace struct {
	root *mount
}

// below gives the path of p, a directory of a filesystem, as seen where the
// directory root of it is shown at point.
func below(point, root, p string) string {
	return path.Join(point, strings.TrimPrefix(p, root))
}

// point is where m is attached in its namespace.
func (m *mount) point() string {
	if m.parent == nil {
		return "/"
	}
	return below(m.parent.point(), m.parent.root, m.at)
}

// resolve walks p from the root of the namespace, over every mount on the way,
// and gives the mount it ends in and the directory of that mount's filesystem.
func (ns *namespace) resolve(p string) (*mount, string) {
	m, base := ns.root, "/"
	dir := below(m.root, base, path.Clean(p))
	for {
		c := m.crossing(dir)
		if c == nil {
			return m, dir
		}
		base = below(base, m.root, c.at)
		dir = below(c.root, c.at, dir)
		m = c
	}
}

// crossing is the child of m that a walk to dir enters first, nil for none.
func (m *mount) crossing(dir string) *mount {
	var first *mount
	for _, c := range m.children {
		if mnt.Within(c.at, dir) && (first == nil || len(c.at) < len(first.at)) {
			first = c
		}
	}
	return first
}

// childAt is the mount attached on the directory at of m itself.
func (m *mount) childAt(at string) *mount {
	for _, c := range m.children {
		if c.at == at {
			return c
		}
	}
	return nil
}

// tree lists m and every mount beneath it, parents first.
func (m *mount) tree() []*mount {
	all := []*mount{m}
	for _, c := range m.children {
		all = append(all, c.tree()...)
	}
	return all
}

// cloneTree copies m, showing the directory root of its filesystem, and every
// mount beneath that directory. The copies are peers of what they were copied
// from and slaves of the same masters, as open_tree(OPEN_TREE_CLONE) makes
// them. They are attached nowhere.
func (t *Table) cloneTree(m *mount, root string) *mount {
	c := t.newMount(m.fs, root)
	if root == m.root {
		c.inode = m.inode
	}
	c.flags, c.master = m.flags, m.master
	if m.peer != nil {
		m.peer.join(c)
	}
	for _, sub := range m.children {
		if mnt.Within(root, sub.at) {
			s := t.cloneTree(sub, sub.root)
			s.parent, s.at = c, sub.at
			c.children = append(c.children, s)
		}
	}
	return c
}

func (t *Table) newMount(fs *filesystem, root string) *mount {
	t.lastID++
	m := &mount{id: t.lastID, fs: fs, root: root}
	m.inode, _ = fs.inode(root)
	t.mounts = append(t.mounts, m)
	return m
}

func (t *Table) newGroup(m *mount) {
	t.lastGroup++
	g := &group{id: t.lastGroup}
	g.join(m)
}

func (g *group) join(m *mount) {
	g.members = append(g.members, m)
	m.peer = g
}

// leave takes m out of its peer group. When the group ends with it, the
// group's slaves follow the group's own master from then on.
func (t *Table) leave(m *mount) {
	g := m.peer
	if g == nil {
		return
	}
	m.peer = nil
	g.members = slices.DeleteFunc(g.members, func(x *mount) bool { return x == m })
	if len(g.members) > 0 {
		return
	}
	for _, s := range t.mounts {
		if s.master == g {
			s.master = m.master
		}
	}
}

// makePrivate cuts the tree off from every group.
func (t *Table) makePrivate(top *mount) {
	for _, m := range top.tree() {
		t.leave(m)
		m.master = nil
	}
}

// makeSlave lets each mount of the tree follow the group it was a peer in.
func (t *Table) makeSlave(top *mount) {
	for _, m := range top.tree() {
		g := m.peer
		t.leave(m)
		if g != nil && len(g.members) > 0 {
			m.master = g
		}
	}
}

// attach puts a detached tree on the directory at of parent, and copies of it
// wherever the parent's group reaches.
func (t *Table) attach(top, parent *mount, at string) {
	if parent.peer != nil {
		t.share(top)
		t.propagate(top, at, parent.peer, parent)
	}
	link(top, parent, at)
}

// share makes each mount of the tree that has no peer group the first of one.
func (t *Table) share(top *mount) {
	for _, m := range top.tree() {
		if m.peer == nil {
			t.newGroup(m)
		}
	}
}

// propagate attaches copies of src, which has just been attached on at of
// origin, on the other members of origin's group g and on its slaves.
func (t *Table) propagate(src *mount, at string, g *group, origin *mount) {
	for _, m := range slices.Clone(g.members) {
		if m != origin && m.shows(at) {
			link(t.cloneTree(src, src.root), m, at)
		}
	}
	t.propagateToSlaves(src, at, g)
}

func (t *Table) propagateToSlaves(src *mount, at string, g *group) {
	done := map[*group]bool{}
	for _, s := range slices.Clone(t.mounts) {
		switch {
		case s.master != g || s.ns == nil:
		case s.peer == nil:
			if s.shows(at) {
				link(t.slaveOf(src), s, at)
			}
		case !done[s.peer]:
			done[s.peer] = true
			// The first member gets a slave that is a peer group of its own,
			// the others get peers of that one.
			from := src
			for _, m := range slices.Clone(s.peer.members) {
				if !m.shows(at) {
					continue
				}
				var c *mount
				if from == src {
					c = t.slaveOf(src)
					t.share(c)
					from = c
				} else {
					c = t.cloneTree(from, from.root)
				}
				link(c, m, at)
			}
			t.propagateToSlaves(from, at, s.peer)
		}
	}
}

func (t *Table) slaveOf(src *mount) *mount {
	c := t.cloneTree(src, src.root)
	t.makeSlave(c)
	return c
}

// shows tells whether the directory at of the filesystem is visible in m, so
// that something can be attached there.
func (m *mount) shows(at string) bool { return m.ns != nil && mnt.Within(m.root, at) }

// link attaches top. A mount that covers the place already (a container's own)
// stays on top: what arrives goes beneath it.
func link(top, parent *mount, at string) {
	over := parent.childAt(at)
	top.parent, top.at = parent, at
	parent.children = append(parent.children, top)
	for _, m := range top.tree() {
		m.ns = parent.ns
	}
	if over != nil {
		parent.drop(over)
		under := top
		for c := under.childAt(under.root); c != nil; c = under.childAt(under.root) {
			under = c
		}
		over.parent, over.at = under, under.root
		under.children = append(under.children, over)
	}
}

func (m *mount) drop(c *mount) {
	m.children = slices.DeleteFunc(m.children, func(x *mount) bool { return x == c })
}

// copies are the mounts that came into being with m by propagation: what is
// attached on the same directory of every mount that the parent's group
// reaches.
func (t *Table) copies(m *mount) []*mount {
	if m.parent == nil || m.parent.peer == nil {
		return nil
	}
	var found []*mount
	seen := map[*group]bool{}
	var visit func(g *group)
	visit = func(g *group) {
		if seen[g] {
			return
		}
		seen[g] = true
		for _, p := range t.mounts {
			if (p.peer == g || p.master == g) && p != m.parent && p.ns != nil {
				if c := p.childAt(m.at); c != nil && !slices.Contains(found, c) {
					found = append(found, c)
				}
			}
			if p.master == g && p.peer != nil {
				visit(p.peer)
			}
		}
	}
	visit(m.parent.peer)
	return found
}

// topper is the one mount that covers c completely, nil where there is none or
// something else stands in c too.
func (m *mount) topper() *mount {
	if len(m.children) == 1 && m.children[0].at == m.root {
		return m.children[0]
	}
	return nil
}

// busy is the kernel's answer to an umount without MNT_DETACH: a mount beneath,
// a holder, or a holder of a copy that would go with it. A copy with mounts
// beneath does not count: it would be left where it is.
func (t *Table) busy(m *mount) bool {
	if len(m.children) > 0 || m.holds > 0 {
		return true
	}
	for _, c := range t.copies(m) {
		if (len(c.children) == 0 || c.topper() != nil) && c.holds > 0 {
			return true
		}
	}
	return false
}

// remove detaches m with every mount beneath it, and the copies of each.
func (t *Table) remove(m *mount) {
	going := m.tree()
	asked := len(going)
	for _, x := range going[:asked:asked] {
		for _, c := range t.copies(x) {
			if !slices.Contains(going, c) {
				going = append(going, c)
			}
		}
	}
	// A copy that holds a mount which stays cannot go either; a single cover
	// is moved down instead.
	for again := true; again; {
		again = false
		for i := len(going) - 1; i >= asked; i-- {
			if c := going[i]; c.topper() == nil && !c.clears(going) {
				going = slices.Delete(going, i, i+1)
				again = true
			}
		}
	}
	for _, c := range going {
		if q := c.topper(); q != nil && !slices.Contains(going, q) {
			c.drop(q)
			q.parent, q.at = c.parent, c.at
			c.parent.children = append(c.parent.children, q)
		}
	}
	for _, c := range going {
		c.parent.drop(c)
	}
	for _, c := range going {
		t.leave(c)
		c.ns, c.master = nil, nil
		t.forget(c)
	}
}

func (t *Table) forget(m *mount) {
	t.mounts = slices.DeleteFunc(t.mounts, func(x *mount) bool { return x == m })
}

func (m *mount) clears(going []*mount) bool {
	return !slices.ContainsFunc(m.children, func(c *mount) bool { return !slices.Contains(going, c) })
}

// list is the mount table of the namespace, in the order of /proc/PID/mountinfo
// since Linux 6.8: oldest first.
func (ns *namespace) list() []mnt.Mount {
	all := ns.root.tree()
	slices.SortFunc(all, func(a, b *mount) int { return a.id - b.id })
	lines := make([]mnt.Mount, len(all))
	for i, m := range all {
		lines[i] = mnt.Mount{
			ID: m.id, Dev: m.fs.dev, Root: m.root, Point: m.point(),
			Flags: m.flags, FSType: m.fs.kind, Source: m.fs.source,
		}
		if m.parent != nil {
			lines[i].Parent = m.parent.id
		}
		if m.peer != nil {
			lines[i].Peer = m.peer.id
		}
		if m.master != nil {
			lines[i].Master = m.master.id
		}
	}
	return lines
}
