package mnttest

import (
	"path"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// MountPath is where a View has the Pod's volume.
const MountPath = "/mnt/datalayer"

// View is a container: a mount namespace of its own that has the Pod's volume
// at MountPath.
type View struct {
	t  *Table
	ns *namespace
}

// Container starts a container with what is at volume now. What is mounted
// there later arrives (mountPropagation HostToContainer).
func (t *Table) Container(volume string) *View {
	return t.container(volume, t.makeSlave)
}

// Isolated starts a container with what is at volume now and nothing that is
// mounted there later (no mountPropagation).
func (t *Table) Isolated(volume string) *View {
	return t.container(volume, t.makePrivate)
}

func (t *Table) container(volume string, propagation func(*mount)) *View {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, root := t.node.resolve(volume)
	return t.newView(m, root, propagation)
}

// newView makes a namespace with a copy of what m shows at root, and beneath.
func (t *Table) newView(m *mount, root string, propagation func(*mount)) *View {
	rootfs := t.newMount(t.newFilesystem(memoryMajor, "overlay", "overlay", "/"), "/")
	ns := &namespace{root: rootfs}
	rootfs.ns = ns
	c := t.cloneTree(m, root)
	propagation(c)
	link(c, rootfs, MountPath)
	return &View{t: t, ns: ns}
}

// Pin is a process in the container that has made a private copy of all it
// sees, as any user can in a user namespace: no unmount on the node reaches it.
func (v *View) Pin() *View {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	volume := v.ns.root.childAt(MountPath)
	return v.t.newView(volume, volume.root, v.t.makePrivate)
}

// Mounts is the container's mount table: its own root, and the volume at
// MountPath with what stands in it.
func (v *View) Mounts() []mnt.Mount {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	return v.ns.list()
}

// Hold is a process in the container with a file open in the topmost mount at
// target, a name in the volume ("" for the volume itself).
func (v *View) Hold(target string) (release func()) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	return v.t.hold(v.t.mountAt(v.ns, path.Join(MountPath, target)))
}

// Stop ends the container: its mounts and what it held are gone.
func (v *View) Stop() {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	for _, m := range v.ns.root.tree() {
		v.t.leave(m)
		m.ns, m.master, m.holds = nil, nil, 0
		v.t.forget(m)
	}
	v.ns.root.children = nil
}
