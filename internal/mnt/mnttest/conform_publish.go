package mnttest

import (
	"testing"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

func publishCases() []conformCase {
	return []conformCase{
		{"a publication is a read-only slave of the tree", publicationIsASlave},
		{"a publication is read-only at its top alone", onlyTopIsReadOnly},
		{"a publication carries what stood in the tree before it", publishedLate},
		{"publishing again leaves standing grants as they are, and one unmount takes the new publication alone", publishedTwice},
		{"a publication is told from the volume beneath it and from another Pod's", publicationIsRecognised},
		{"detaching a publication leaves the tree its grants", publicationDetached},
		{"a container started after the publication follows the tree past a new publication", containerFollowsTree},
	}
}

func publicationIsASlave(t *testing.T, p *pod) {
	c := p.Container(t)
	rec := p.publish(t)
	mounts := p.list(t)
	tree := one(t, mounts, p.inTree(""))
	stack := at(mounts, p.Volume())
	equal(t, "mounts on the volume", len(stack), 2)
	pub := stack[1]
	matches(t, rec, pub)
	equal(t, "flags", pub.Flags, publishFlags)
	equal(t, "master", pub.Master, tree.Peer)
	if pub.Peer == tree.Peer {
		t.Error("the publication is a peer of the tree: what a tenant mounts would reach it")
	}
	inside := at(c.Mounts(t), MountPath)
	equal(t, "mounts in the container", len(inside), 2)
	matches(t, rec, inside[1])
}

func onlyTopIsReadOnly(t *testing.T, p *pod) {
	c := p.Container(t)
	p.grant(t, "home/before", "before", rw)
	p.publish(t)
	p.grant(t, "home/after", "after", rw)
	for _, name := range []string{"before", "after"} {
		equal(t, "flags in the volume", one(t, p.list(t), p.inVolume(name)).Flags, rw)
		equal(t, "flags in the container", one(t, c.Mounts(t), p.inside(name)).Flags, rw)
	}
	equal(t, "flags of the tree", one(t, p.list(t), p.inTree("")).Flags, treeFlags)
}

func publishedLate(t *testing.T, p *pod) {
	before := p.Container(t)
	p.Mount(t, p.source(t, sourceDir+"/nested"))
	rec := p.grant(t, sourceDir, "alice", mnt.ReadOnly)
	p.publish(t)
	after := p.Container(t)
	for _, c := range []Container{before, after} {
		p.counts(t, c, "alice", 1, 1, 1)
		p.counts(t, c, "alice/nested", 1, 1, 1)
		matches(t, rec, one(t, c.Mounts(t), p.inside("alice")))
	}
	// What was there first is still followed: it goes from everywhere.
	noErr(t, p.table.Unmount(p.tree, "alice", true))
	for _, c := range []Container{before, after} {
		p.counts(t, c, "alice", 0, 0, 0)
		p.counts(t, c, "alice/nested", 0, 0, 0)
	}
}

func publishedTwice(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	p.grant(t, sourceDir, "alice", rw)
	p.publish(t)
	mounts := p.list(t)
	equal(t, "flags in the tree", one(t, mounts, p.inTree("alice")).Flags, rw)
	equal(t, "mounts on the volume", len(at(mounts, p.Volume())), 3)
	for _, m := range at(mounts, p.inVolume("alice")) {
		equal(t, "flags in the volume", m.Flags, rw)
	}
	for _, m := range at(c.Mounts(t), p.inside("alice")) {
		equal(t, "flags in the container", m.Flags, rw)
	}
	// A later grant is in the tree once, however often it was published.
	p.grant(t, "home/bob", "bob", rw)
	one(t, p.list(t), p.inTree("bob"))

	isErr(t, p.unpublish(t, false), mnt.ErrBusy)
	noErr(t, p.unpublish(t, true))
	equal(t, "mounts on the volume", len(at(p.list(t), p.Volume())), 2)
	p.counts(t, c, "alice", 1, 1, 1)
	p.counts(t, c, "bob", 1, 1, 1)

	// Without grants, one unmount is one publication, and kubelet's own
	// filesystem is left.
	noErr(t, p.table.Unmount(p.tree, "alice", false))
	noErr(t, p.table.Unmount(p.tree, "bob", false))
	p.publish(t)
	for left := 3; left > 1; left-- {
		equal(t, "mounts on the volume", len(at(p.list(t), p.Volume())), left)
		equal(t, "mounts in the container", len(at(c.Mounts(t), MountPath)), left)
		noErr(t, p.unpublish(t, false))
	}
	matchesNot(t, p.record, one(t, p.list(t), p.Volume()))
}

func publicationIsRecognised(t *testing.T, p *pod) {
	rec := p.publish(t)
	// Another Pod's tree, published on its own volume.
	noErr(t, p.pods.Mkdir("other", 0o755))
	on, err := p.pods.OpenTarget("other")
	noErr(t, err)
	defer on.Close()
	other, err := p.table.NewTree(on)
	noErr(t, err)

	mounts := p.list(t)
	stack := at(mounts, p.Volume())
	equal(t, "mounts on the volume", len(stack), 2)
	matchesNot(t, rec, stack[0])
	matchesNot(t, other, stack[1])
	matches(t, rec, stack[1])
	equal(t, "master", stack[1].Master, one(t, mounts, p.inTree("")).Peer)
	if other.Dev == p.record.Dev {
		t.Error("two trees have one device number")
	}
}

func publicationDetached(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	rec := p.grant(t, sourceDir, "alice", rw)
	isErr(t, p.unpublish(t, false), mnt.ErrBusy)
	noErr(t, p.unpublish(t, true))
	p.counts(t, c, "alice", 1, 0, 0)
	matches(t, rec, one(t, p.list(t), p.inTree("alice")))
	equal(t, "mounts on the volume", len(at(p.list(t), p.Volume())), 1)
	equal(t, "mounts in the container", len(at(c.Mounts(t), MountPath)), 1)
	// Published again, it is back where it was.
	p.publish(t)
	p.counts(t, c, "alice", 1, 1, 1)
}

func containerFollowsTree(t *testing.T, p *pod) {
	p.publish(t)
	c := p.Container(t)
	p.grant(t, "home/a", "a", rw)
	p.counts(t, c, "a", 1, 1, 1)
	// The container's own publication is the root of its volume: nothing on the
	// node takes it away, and it follows the tree without the node's copy.
	noErr(t, p.table.Unmount(p.tree, "a", false))
	noErr(t, p.unpublish(t, false))
	p.publish(t)
	rec := p.grant(t, "home/b", "b", mnt.ReadOnly)
	p.counts(t, c, "b", 1, 1, 1)
	matches(t, rec, one(t, c.Mounts(t), p.inside("b")))
	noErr(t, p.table.Unmount(p.tree, "b", false))
	p.counts(t, c, "b", 0, 0, 0)
}

func unmountCases() []conformCase {
	return []conformCase{
		{"an unmount in the tree takes the grant from everywhere", unmountEverywhere},
		{"a grant that a container has open is busy until it is closed", heldIsBusy},
		{"a held grant can be detached from everywhere", heldDetached},
		{"a grant with a mount beneath is busy, and a detach takes both", nestedIsBusy},
		{"a grant that a container is not using goes although another is used", heldElsewhere},
		{"a name without a mount is not mounted", notMounted},
		{"a name that leads elsewhere is refused", badNames},
		{"a tree without grants can be unmounted, one with grants is busy", treeUnmount},
		{"a publication that a container has open is busy", heldPublication},
	}
}

func unmountEverywhere(t *testing.T, p *pod) {
	before := p.Container(t)
	p.publish(t)
	p.grant(t, sourceDir, "alice", rw)
	after := p.Container(t)
	for _, c := range []Container{before, after} {
		p.counts(t, c, "alice", 1, 1, 1)
	}
	n := len(p.list(t))
	noErr(t, p.table.Unmount(p.tree, "alice", false))
	for _, c := range []Container{before, after} {
		p.counts(t, c, "alice", 0, 0, 0)
	}
	equal(t, "mounts fewer", n-len(p.list(t)), 2)
	isErr(t, p.table.Unmount(p.tree, "alice", false), mnt.ErrNotMounted)
	p.grant(t, sourceDir, "alice", rw)
	for _, c := range []Container{before, after} {
		p.counts(t, c, "alice", 1, 1, 1)
	}
}

func heldIsBusy(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	p.grant(t, sourceDir, "alice", rw)
	release := c.Hold(t, "alice")
	isErr(t, p.table.Unmount(p.tree, "alice", false), mnt.ErrBusy)
	p.counts(t, c, "alice", 1, 1, 1)
	release()
	noErr(t, p.table.Unmount(p.tree, "alice", false))
	p.counts(t, c, "alice", 0, 0, 0)
}

func heldDetached(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	p.grant(t, sourceDir, "alice", rw)
	release := c.Hold(t, "alice")
	defer release()
	noErr(t, p.table.Unmount(p.tree, "alice", true))
	p.counts(t, c, "alice", 0, 0, 0)
	isErr(t, p.table.Unmount(p.tree, "alice", true), mnt.ErrNotMounted)
	// The target is free again although the old mount lives on in its holder.
	p.grant(t, "home/bob", "alice", rw)
	p.counts(t, c, "alice", 1, 1, 1)
	noErr(t, p.table.Unmount(p.tree, "alice", false))
}

func nestedIsBusy(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	p.Mount(t, p.source(t, sourceDir+"/nested"))
	p.grant(t, sourceDir, "alice", rw)
	p.counts(t, c, "alice/nested", 1, 1, 1)
	isErr(t, p.table.Unmount(p.tree, "alice", false), mnt.ErrBusy)
	p.counts(t, c, "alice/nested", 1, 1, 1)
	noErr(t, p.table.Unmount(p.tree, "alice", true))
	p.counts(t, c, "alice", 0, 0, 0)
	p.counts(t, c, "alice/nested", 0, 0, 0)
}

func heldElsewhere(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	p.grant(t, "home/a", "a", rw)
	p.grant(t, "home/b", "b", rw)
	release := c.Hold(t, "a")
	defer release()
	noErr(t, p.table.Unmount(p.tree, "b", false))
	p.counts(t, c, "a", 1, 1, 1)
	p.counts(t, c, "b", 0, 0, 0)
}

func notMounted(t *testing.T, p *pod) {
	n := len(p.list(t))
	noErr(t, p.tree.Mkdir("plain", 0o755))
	for _, name := range []string{"plain", "missing"} {
		for _, lazy := range []bool{false, true} {
			isErr(t, p.table.Unmount(p.tree, name, lazy), mnt.ErrNotMounted)
		}
	}
	equal(t, "mounts", len(p.list(t)), n)
}

func badNames(t *testing.T, p *pod) {
	p.publish(t)
	n := len(p.list(t))
	for _, name := range []string{"", ".", "..", "a/b", "/", "../" + treeName, "a/", "/etc"} {
		isErr(t, p.table.Unmount(p.tree, name, true), beneath.ErrEscapes)
	}
	equal(t, "mounts", len(p.list(t)), n)
}

func treeUnmount(t *testing.T, p *pod) {
	p.publish(t)
	p.grant(t, sourceDir, "alice", rw)
	p.tree.Close() // our own descriptor would make it busy
	isErr(t, p.table.Unmount(p.pods, treeName, false), mnt.ErrBusy)
	tree, err := p.pods.Open(treeName)
	noErr(t, err)
	noErr(t, p.table.Unmount(tree, "alice", false))
	tree.Close()
	noErr(t, p.unpublish(t, false))
	noErr(t, p.table.Unmount(p.pods, treeName, false))
	equal(t, "mounts at the tree", len(at(p.list(t), p.inTree(""))), 0)
	isErr(t, p.table.Unmount(p.pods, treeName, false), mnt.ErrNotMounted)
}

func heldPublication(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	release := c.Hold(t, "")
	isErr(t, p.unpublish(t, false), mnt.ErrBusy)
	equal(t, "mounts in the container", len(at(c.Mounts(t), MountPath)), 2)
	release()
	noErr(t, p.unpublish(t, false))
	equal(t, "mounts in the container", len(at(c.Mounts(t), MountPath)), 1)
}

func matchesNot(t *testing.T, rec mnt.Record, m mnt.Mount) {
	t.Helper()
	if rec.Matches(m) {
		t.Fatalf("record %+v matches %+v", rec, m)
	}
}
