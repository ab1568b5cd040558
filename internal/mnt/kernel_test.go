package mnt_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestMain(m *testing.M) {
	simnode.Main()
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestTheKernelConforms(t *testing.T) {
	mnttest.Conform(t, func(t *testing.T) mnttest.Bench { return newBench(t) })
}

// bench is a node on the kernel with one Pod, whose volume kubelet has made.
type bench struct {
	node  *simnode.Node
	pod   *simnode.Pod
	table *mnt.Kernel
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{node: newNode(t), table: &mnt.Kernel{}}
	b.pod = b.node.NewPod("5f2c8f0e-0b1d-4c55-9a8e-d3b0f4a7e611")
	must(t, b.pod.SetUpVolume(false))
	return b
}

func newNode(t *testing.T) *simnode.Node {
	t.Helper()
	node, err := simnode.New(simnode.Options{})
	must(t, err)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node
}

func (b *bench) Table() mnt.Table { return b.table }
func (b *bench) Root() string     { return b.node.Root }
func (b *bench) Volume() string   { return b.pod.VolumePath() }
func (b *bench) Claim() string    { return b.node.Claim }

func (b *bench) Mount(t *testing.T, point string) {
	t.Helper()
	must(t, unix.Mount("nested", point, "tmpfs", 0, ""))
}

func (b *bench) MakePrivate(t *testing.T, point string) {
	t.Helper()
	must(t, unix.Mount("", point, "", unix.MS_PRIVATE, ""))
}

func (b *bench) Container(t *testing.T) mnttest.Container {
	t.Helper()
	return container{b.start(t)}
}

func (b *bench) start(t *testing.T) *simnode.Container {
	t.Helper()
	c, err := b.pod.StartContainer(simnode.ContainerOptions{})
	must(t, err)
	return c
}

type container struct{ *simnode.Container }

func (c container) Mounts(t *testing.T) []mnt.Mount {
	t.Helper()
	mounts, err := c.Container.Mounts()
	must(t, err)
	return mounts
}

func (c container) Hold(t *testing.T, target string) func() {
	t.Helper()
	h, err := c.Container.Hold(filepath.Join(mnttest.MountPath, target))
	must(t, err)
	return func() {
		t.Helper()
		must(t, c.Drop(h))
	}
}

func openDir(t *testing.T, at string) *beneath.Dir {
	t.Helper()
	d, err := beneath.OpenRoot(at)
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoGrantCostsAReadingOfTheTable(t *testing.T) {
	b := newBench(t)
	at := filepath.Join(b.Root(), "pod")
	home := filepath.Join(b.Claim(), "home")
	must(t, os.Mkdir(at, 0o755))
	must(t, os.Mkdir(home, 0o755))
	_, err := b.table.NewTree(openDir(t, at))
	must(t, err)
	tree := openDir(t, at)
	_, err = b.table.Publish(tree, openDir(t, b.Volume()))
	must(t, err)
	const grants = 50
	want := int64(0)
	for range grants {
		must(t, bind(b.table, home, tree, "alice", mnt.ReadOnly))
		granted, err := tree.Open("alice")
		must(t, err)
		place, err := b.table.At(granted)
		must(t, err)
		if !place.MountRoot {
			t.Fatal("no mount stands at the grant")
		}
		if place.ID == 0 {
			want = grants + 2 // before Linux 6.8 a new mount is looked up in it
		}
		_, err = b.table.InMemory(granted)
		must(t, err)
		granted.Close()
		must(t, b.table.Unmount(tree, "alice", false))
	}
	if n := b.table.Lists(); n != want {
		t.Errorf("the table was read %d times, want %d", n, want)
	}
	if _, err := b.table.List(); err != nil || b.table.Lists() != want+1 {
		t.Errorf("after one reading the count is %d: %v", b.table.Lists(), err)
	}
}

func TestATargetPlantedAsALinkIsRefused(t *testing.T) {
	b := newBench(t)
	at := filepath.Join(b.Root(), "pod")
	home := filepath.Join(b.Claim(), "home")
	must(t, os.Mkdir(at, 0o755))
	must(t, os.MkdirAll(filepath.Join(home, "victim"), 0o755))
	_, err := b.table.NewTree(openDir(t, at))
	must(t, err)
	tree := openDir(t, at)
	must(t, os.Symlink(home, filepath.Join(at, "link")))
	before := len(mountsBelow(t, b))
	if _, err := tree.OpenTarget("link"); !errors.Is(err, beneath.ErrEscapes) {
		t.Errorf("a link as a target: %v", err)
	}
	if _, err := tree.OpenTarget("link/victim"); err == nil {
		t.Error("a path as a target was opened")
	}
	for _, lazy := range []bool{false, true} {
		if err := b.table.Unmount(tree, "link", lazy); !errors.Is(err, mnt.ErrNotMounted) {
			t.Errorf("an unmount of a link: %v", err)
		}
	}
	// A link to a mount: an unmount that followed it would take it away.
	must(t, os.Symlink(b.Claim(), filepath.Join(at, "claim")))
	if err := b.table.Unmount(tree, "claim", true); !errors.Is(err, mnt.ErrNotMounted) {
		t.Errorf("an unmount of a link to a mount: %v", err)
	}
	if after := len(mountsBelow(t, b)); after != before {
		t.Errorf("%d mounts, there were %d", after, before)
	}
}

func mountsBelow(t *testing.T, b *bench) []mnt.Mount {
	t.Helper()
	mounts, err := b.node.Mounts()
	must(t, err)
	return mounts
}
