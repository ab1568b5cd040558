package mnttest

import (
	"testing"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// memory is a filesystem that every kernel has and that asks nobody.
func memory() mnt.Filesystem { return mnt.Filesystem{Type: "tmpfs", Source: "conform"} }

func filesystemCases() []conformCase {
	return []conformCase{
		{"a filesystem stands nowhere until it is attached, and then has its flags at once", filesystemFlags},
		{"a filesystem that is closed before it is attached leaves nothing", filesystemClosed},
		{"two mounts of the same source are two filesystems", filesystemsApart},
		{"a filesystem is not attached on a mount", filesystemOnTaken},
		{"a filesystem the kernel does not have is told by name", filesystemUnknown},
		{"a filesystem is unmounted like a grant", filesystemUnmounted},
		{"a filesystem takes the place of another, whoever uses that one", filesystemSwapped},
		{"nothing takes the place of no mount", filesystemSwappedForNothing},
	}
}

// attach attaches m at target.
func (p *pod) attach(t *testing.T, m mnt.Detached, target string) (mnt.Record, error) {
	t.Helper()
	noErr(t, p.tree.Mkdir(target, 0o755))
	on, err := p.tree.OpenTarget(target)
	if err != nil {
		return mnt.Record{}, err
	}
	defer on.Close()
	return p.table.Attach(m, on)
}

func (p *pod) mounted(t *testing.T, target string, flags mnt.Flags) mnt.Record {
	t.Helper()
	m, err := p.table.Mount(memory(), flags)
	noErr(t, err)
	defer m.Close()
	rec, err := p.attach(t, m, target)
	noErr(t, err)
	return rec
}

func filesystemFlags(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	for _, g := range []struct {
		target string
		flags  mnt.Flags
	}{{"none", 0}, {"ro", mnt.ReadOnly}, {"noexec", mnt.NoExec}, {"all", mnt.ReadOnly | mnt.NoExec}} {
		m, err := p.table.Mount(memory(), g.flags)
		noErr(t, err)
		p.counts(t, c, g.target, 0, 0, 0)
		rec, err := p.attach(t, m, g.target)
		noErr(t, err)
		m.Close()
		p.counts(t, c, g.target, 1, 1, 1)
		equal(t, "flags in the record", rec.Flags, g.flags|rw)
		seen := one(t, c.Mounts(t), p.inside(g.target))
		equal(t, "flags in the container", seen.Flags, g.flags|rw)
		matches(t, rec, seen)
		matches(t, rec, one(t, p.list(t), p.inTree(g.target)))
		equal(t, "filesystem", seen.FSType, "tmpfs")
		equal(t, "source", seen.Source, "conform")
		dir, err := p.tree.Open(g.target)
		noErr(t, err)
		place, err := p.table.At(dir)
		dir.Close()
		noErr(t, err)
		equal(t, "the record's mount stands there", rec.SameAs(place) && rec.ID == place.ID, true)
	}
}

func filesystemClosed(t *testing.T, p *pod) {
	before := len(p.list(t))
	m, err := p.table.Mount(memory(), 0)
	noErr(t, err)
	m.Close()
	m.Close()
	equal(t, "mounts", len(p.list(t)), before)
}

func filesystemsApart(t *testing.T, p *pod) {
	if a, b := p.mounted(t, "a", 0), p.mounted(t, "b", 0); a.Dev == b.Dev {
		t.Errorf("both are %v", a.Dev)
	}
}

func filesystemOnTaken(t *testing.T, p *pod) {
	p.mounted(t, "taken", 0)
	m, err := p.table.Mount(memory(), 0)
	noErr(t, err)
	defer m.Close()
	_, err = p.attach(t, m, "taken")
	isErr(t, err, beneath.ErrMounted)
	one(t, p.list(t), p.inTree("taken"))
}

func filesystemUnknown(t *testing.T, p *pod) {
	_, err := p.table.Mount(mnt.Filesystem{Type: "nosuchfs", Source: "x"}, 0)
	isErr(t, err, mnt.ErrNoFilesystem)
}

func filesystemUnmounted(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	p.mounted(t, "fs", 0)
	release := c.Hold(t, "fs")
	isErr(t, p.table.Unmount(p.tree, "fs", false), mnt.ErrBusy)
	release()
	noErr(t, p.table.Unmount(p.tree, "fs", false))
	p.counts(t, c, "fs", 0, 0, 0)
	isErr(t, p.table.Unmount(p.tree, "fs", false), mnt.ErrNotMounted)
}

func filesystemSwapped(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	old := p.mounted(t, "fs", 0)
	release := c.Hold(t, "fs")
	defer release()
	for range 3 {
		m, err := p.table.Mount(memory(), mnt.NoExec)
		noErr(t, err)
		rec, err := p.table.Swap(m, p.tree, "fs")
		m.Close()
		noErr(t, err)
		p.counts(t, c, "fs", 1, 1, 1)
		seen := one(t, c.Mounts(t), p.inside("fs"))
		matches(t, rec, seen)
		matchesNot(t, old, seen)
		equal(t, "flags", seen.Flags, rw|mnt.NoExec)
		old = rec
	}
	noErr(t, p.table.Unmount(p.tree, "fs", false))
	p.counts(t, c, "fs", 0, 0, 0)
}

func filesystemSwappedForNothing(t *testing.T, p *pod) {
	noErr(t, p.tree.Mkdir("plain", 0o755))
	m, err := p.table.Mount(memory(), 0)
	noErr(t, err)
	defer m.Close()
	_, err = p.table.Swap(m, p.tree, "plain")
	isErr(t, err, mnt.ErrNotMounted)
	equal(t, "mounts", len(at(p.list(t), p.inTree("plain"))), 0)
}
