package mnttest

import (
	"errors"
	"os"
	"path"
	"testing"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// Bench is a node that Conform tries a mount table on. Its methods end the test
// where they cannot do what they should.
type Bench interface {
	// Table is the table under test.
	Table() mnt.Table
	// Root is an empty directory for trees.
	Root() string
	// Volume is the Pod's volume: a directory with kubelet's memory filesystem
	// mounted on it.
	Volume() string
	// Claim is a filesystem with directories to grant.
	Claim() string
	// Mount mounts a new filesystem on a directory, as somebody else on the node
	// would. Everything on the node is shared, as systemd leaves it.
	Mount(t *testing.T, point string)
	// MakePrivate takes the mount at point out of its peer group.
	MakePrivate(t *testing.T, point string)
	// Container starts a container of the Pod with the volume at MountPath.
	Container(t *testing.T) Container
}

// Container is a running container of a Bench's Pod.
type Container interface {
	// Mounts is the container's mount table.
	Mounts(t *testing.T) []mnt.Mount
	// Hold keeps a file or directory open in the mount at target, a name in the
	// volume, until release.
	Hold(t *testing.T, target string) (release func())
}

const (
	treeName  = "pod"
	sourceDir = "home/alice"
	// rw are the flags of a grant with nothing asked for beyond the flags that
	// every grant has.
	rw = grantFlags
)

// pod is what most cases start from: the bench's Pod with a tree.
type pod struct {
	Bench
	table  mnt.Table
	pods   *beneath.Dir
	tree   *beneath.Dir
	claim  *beneath.Dir
	record mnt.Record // of the tree
}

func newPod(t *testing.T, b Bench) *pod {
	t.Helper()
	p := &pod{Bench: b, table: b.Table()}
	p.pods = openRoot(t, b.Root())
	p.claim = openRoot(t, b.Claim())
	noErr(t, p.pods.Mkdir(treeName, 0o755))
	on, err := p.pods.OpenTarget(treeName)
	noErr(t, err)
	p.record, err = p.table.NewTree(on)
	on.Close()
	noErr(t, err)
	p.tree, err = p.pods.Open(treeName)
	noErr(t, err)
	t.Cleanup(p.tree.Close)
	return p
}

func openRoot(t *testing.T, at string) *beneath.Dir {
	t.Helper()
	d, err := beneath.OpenRoot(at)
	noErr(t, err)
	t.Cleanup(d.Close)
	return d
}

// source makes a directory of the claim.
func (p *pod) source(t *testing.T, rel string) string {
	t.Helper()
	full := path.Join(p.Claim(), rel)
	noErr(t, os.MkdirAll(full, 0o755))
	return full
}

// publish publishes the tree on the volume.
func (p *pod) publish(t *testing.T) mnt.Record {
	t.Helper()
	v := openRoot(t, p.Volume())
	defer v.Close()
	rec, err := p.table.Publish(p.tree, v)
	noErr(t, err)
	return rec
}

// grant binds a directory of the claim, which it makes, at target.
func (p *pod) grant(t *testing.T, rel, target string, flags mnt.Flags) mnt.Record {
	t.Helper()
	p.source(t, rel)
	rec, err := p.tryGrant(t, rel, target, flags)
	noErr(t, err)
	return rec
}

func (p *pod) tryGrant(t *testing.T, rel, target string, flags mnt.Flags) (mnt.Record, error) {
	t.Helper()
	noErr(t, p.tree.Mkdir(target, 0o755))
	src, err := p.claim.Open(rel)
	noErr(t, err)
	defer src.Close()
	on, err := p.tree.OpenTarget(target)
	if err != nil {
		return mnt.Record{}, err
	}
	defer on.Close()
	return p.table.Bind(src, on, flags)
}

// unpublish takes the topmost mount off the volume.
func (p *pod) unpublish(t *testing.T, lazy bool) error {
	t.Helper()
	parent := openRoot(t, path.Dir(p.Volume()))
	defer parent.Close()
	return p.table.Unmount(parent, path.Base(p.Volume()), lazy)
}

func (p *pod) inTree(target string) string   { return path.Join(p.Root(), treeName, target) }
func (p *pod) inVolume(target string) string { return path.Join(p.Volume(), target) }
func (p *pod) inside(target string) string   { return path.Join(MountPath, target) }

func (p *pod) list(t *testing.T) []mnt.Mount {
	t.Helper()
	mounts, err := p.table.List()
	noErr(t, err)
	return mounts
}

// at gives the mounts attached at point, oldest first.
func at(mounts []mnt.Mount, point string) []mnt.Mount {
	var found []mnt.Mount
	for _, m := range mounts {
		if m.Point == point {
			found = append(found, m)
		}
	}
	return found
}

// one is the only mount at point.
func one(t *testing.T, mounts []mnt.Mount, point string) mnt.Mount {
	t.Helper()
	found := at(mounts, point)
	if len(found) != 1 {
		t.Fatalf("%d mounts at %s, want 1: %+v", len(found), point, found)
	}
	return found[0]
}

// counts fails unless so many mounts stand at target: in the tree, in the
// volume as the node sees it, and in the container.
func (p *pod) counts(t *testing.T, c Container, target string, inTree, inVolume, inside int) {
	t.Helper()
	mounts := p.list(t)
	got := [3]int{
		len(at(mounts, p.inTree(target))),
		len(at(mounts, p.inVolume(target))),
		len(at(c.Mounts(t), p.inside(target))),
	}
	if want := [3]int{inTree, inVolume, inside}; got != want {
		t.Fatalf("mounts at %q in tree, volume, container: %v, want %v", target, got, want)
	}
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func isErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
