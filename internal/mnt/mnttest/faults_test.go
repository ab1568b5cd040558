package mnttest_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
)

// published is a bench with a tree, published, and the target "alice" in it.
type published struct {
	*bench
	tree, source, vol *beneath.Dir
}

func newPublished(t *testing.T) *published {
	t.Helper()
	p := &published{bench: newBench(t)}
	home := filepath.Join(p.claim, "home")
	must(t, os.Mkdir(home, 0o755))
	p.tree, p.source, p.vol = openDir(t, p.root), openDir(t, home), openDir(t, p.volume)
	_, err := p.table.NewTree(p.tree)
	must(t, err)
	_, err = p.table.Publish(p.tree, p.vol)
	must(t, err)
	must(t, p.tree.Mkdir("alice", 0o755))
	return p
}

func (p *published) bind(t *testing.T) error {
	t.Helper()
	target, err := p.tree.Open("alice")
	must(t, err)
	defer target.Close()
	_, err = p.table.Bind(p.source, target, 0)
	return err
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

func points(mounts []mnt.Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.Point)
	}
	return out
}

func TestAnOrderedFaultFailsOneCallAndChangesNothing(t *testing.T) {
	p := newPublished(t)
	target := openDir(t, filepath.Join(p.root, "alice"))
	made, err := p.table.Mount(mnt.Filesystem{Type: "nfs4", Source: "h:/x"}, mnt.NoExec)
	must(t, err)
	calls := map[string]func() error{
		"newtree":  func() error { _, err := p.table.NewTree(target); return err },
		"publish":  func() error { _, err := p.table.Publish(p.tree, p.vol); return err },
		"bind":     func() error { return p.bind(t) },
		"mount":    func() error { _, err := p.table.Mount(mnt.Filesystem{Type: "nfs4"}, 0); return err },
		"attach":   func() error { _, err := p.table.Attach(made, target); return err },
		"unmount":  func() error { return p.table.Unmount(p.tree, "alice", true) },
		"list":     func() error { _, err := p.table.List(); return err },
		"children": func() error { _, err := p.table.Children(p.tree); return err },
		"at":       func() error { _, err := p.table.At(p.tree); return err },
		"probe":    func() error { return p.table.Probe(p.tree) },
		"inmemory": func() error { _, err := p.table.InMemory(p.tree); return err },
	}
	for op, call := range calls {
		if op == "unmount" {
			must(t, p.bind(t))
		}
		before := p.table.Mounts()
		first, second := errors.New("first"), errors.New("second")
		p.table.FailNext(op, first)
		p.table.FailNext(op, second)
		for _, want := range []error{first, second} {
			if err := call(); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", op, err, want)
			}
		}
		if !slices.Equal(before, p.table.Mounts()) {
			t.Errorf("%s: a call that failed changed the table", op)
		}
		if err := call(); err != nil {
			t.Errorf("%s: still fails: %v", op, err)
		}
		if op == "bind" {
			must(t, p.table.Unmount(p.tree, "alice", false))
		}
		if op == "newtree" || op == "attach" {
			must(t, p.table.Umount(target.Path(), false))
		}
	}
}

func TestTheLogSaysWhatWasAskedAndWhatFailed(t *testing.T) {
	p := newPublished(t)
	must(t, p.bind(t))
	if err := p.bind(t); !errors.Is(err, beneath.ErrMounted) {
		t.Fatalf("second bind: %v", err)
	}
	release := p.table.Hold(filepath.Join(p.root, "alice"))
	if err := p.table.Unmount(p.tree, "alice", false); !errors.Is(err, mnt.ErrBusy) {
		t.Fatalf("unmount of a held grant: %v", err)
	}
	release()
	release() // releasing twice is releasing once
	must(t, p.table.Unmount(p.tree, "alice", true))
	p.table.FailNext("bind", unix.EIO)
	if err := p.bind(t); !errors.Is(err, unix.EIO) {
		t.Fatalf("bind with a fault: %v", err)
	}
	got := strings.NewReplacer(p.root, "TREE", p.volume, "VOLUME", p.claim, "CLAIM").Replace(strings.Join(p.table.Log(), "\n"))
	want := `newtree TREE
publish TREE on VOLUME
bind CLAIM/home on TREE/alice rw,nosuid,nodev
bind CLAIM/home on TREE/alice rw,nosuid,nodev: a mount stands here already
unmount TREE/alice: busy
detach TREE/alice
bind CLAIM/home on TREE/alice rw,nosuid,nodev: input/output error`
	if got != want {
		t.Errorf("log:\n%s\nwant:\n%s", got, want)
	}
}

func TestListCountsAndMountsDoesNot(t *testing.T) {
	p := newPublished(t)
	p.table.Mounts()
	if n := p.table.Lists(); n != 0 {
		t.Fatalf("%d lists before the first", n)
	}
	must(t, p.bind(t))
	must(t, p.table.Unmount(p.tree, "alice", false))
	if n := p.table.Lists(); n != 0 {
		t.Fatalf("%d lists, one grant cost a reading", n)
	}
	if _, err := p.table.List(); err != nil || p.table.Lists() != 1 {
		t.Fatalf("%d lists after the first: %v", p.table.Lists(), err)
	}
}

func TestAContainerWithoutPropagationReceivesNothing(t *testing.T) {
	p := newPublished(t)
	isolated, follows := p.table.Isolated(p.volume), p.table.Container(p.volume)
	must(t, p.bind(t))
	inside := mnttest.MountPath + "/alice"
	if slices.Contains(points(isolated.Mounts()), inside) {
		t.Error("it arrived in a container without propagation")
	}
	if !slices.Contains(points(follows.Mounts()), inside) {
		t.Error("it did not arrive in a container with propagation")
	}
}

func TestOnANodeWithAPrivateVolumeNothingArrives(t *testing.T) {
	b := newBench(t)
	b.table.MakePrivate(b.volume)
	v := b.table.Container(b.volume)
	tree := openDir(t, b.root)
	_, err := b.table.NewTree(tree)
	must(t, err)
	_, err = b.table.Publish(openDir(t, b.root), openDir(t, b.volume))
	must(t, err)
	if got := points(v.Mounts()); !slices.Equal(got, []string{"/", mnttest.MountPath}) {
		t.Errorf("the container has %v", got)
	}
	if mnt.Shared(b.table.Mounts(), b.root) == false {
		t.Error("the tree is private")
	}
}

func TestAPinKeepsTheGrantAfterItIsGoneFromEverywhere(t *testing.T) {
	p := newPublished(t)
	v := p.table.Container(p.volume)
	must(t, p.bind(t))
	pin := v.Pin()
	must(t, p.table.Unmount(p.tree, "alice", false))
	inside := mnttest.MountPath + "/alice"
	if slices.Contains(points(v.Mounts()), inside) {
		t.Error("the container still has the grant")
	}
	if !slices.Contains(points(pin.Mounts()), inside) {
		t.Error("the private copy went with it")
	}
	pin.Stop()
	if got := pin.Mounts(); len(got) != 1 {
		t.Errorf("a stopped view has %v", points(got))
	}
}

func TestAStoppedContainerHoldsNothing(t *testing.T) {
	p := newPublished(t)
	v := p.table.Container(p.volume)
	must(t, p.bind(t))
	v.Hold("alice")
	if err := p.table.Unmount(p.tree, "alice", false); !errors.Is(err, mnt.ErrBusy) {
		t.Fatalf("unmount of a held grant: %v", err)
	}
	v.Stop()
	must(t, p.table.Unmount(p.tree, "alice", false))
}

func TestKubeletsUmountsTakeThePublicationThenItsOwnFilesystem(t *testing.T) {
	p := newPublished(t)
	must(t, p.bind(t))
	if err := p.table.Umount(p.volume, false); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("umount with a grant standing: %v", err)
	}
	must(t, p.table.Unmount(p.tree, "alice", false))
	must(t, p.table.Umount(p.volume, false))
	must(t, p.table.Umount(p.volume, false))
	if err := p.table.Umount(p.volume, false); !errors.Is(err, unix.EINVAL) {
		t.Fatalf("third umount: %v", err)
	}
	place, err := p.table.At(openDir(t, p.volume))
	must(t, err)
	if place.MountRoot {
		t.Error("something is still mounted on the volume")
	}
}

func TestAMistakenTestPanics(t *testing.T) {
	p := newPublished(t)
	for name, call := range map[string]func(){
		"hold where no mount stands": func() { p.table.Hold(filepath.Join(p.root, "nothing")) },
		"unknown operation":          func() { p.table.FailNext("remount", unix.EIO) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error(name + " was accepted")
				}
			}()
			call()
		}()
	}
}
