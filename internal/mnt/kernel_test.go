package mnt_test

import (
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
