package mnt_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// A home folder that nobody needs.
const throwAway = 40

// surface is how a Pod's tree is made and published. As the agent does it, both
// guards are up; the tests take them down.
type surface struct {
	memory   bool // the tree is a tmpfs
	readOnly bool // the publication is read-only
}

// newSurface makes a tree with one rw grant of a home folder, published.
func newSurface(t *testing.T, b *bench, s surface) (tree *beneath.Dir, home string) {
	t.Helper()
	home = filepath.Join(b.node.Claim, "home")
	for i := range throwAway {
		dir := filepath.Join(home, fmt.Sprintf("dir%d", i%4))
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d", i)), []byte("mine"), 0o644))
	}
	at := filepath.Join(b.node.Root, "pod")
	must(t, os.Mkdir(at, 0o755))
	if s.memory {
		_, err := b.table.NewTree(openDir(t, at))
		must(t, err)
	} else {
		// Anything but a tmpfs is what kubelet calls disk.
		must(t, unix.Mount("disk", at, "ramfs", 0, "mode=0755"))
	}
	tree, err := beneath.OpenRoot(at)
	must(t, err)
	t.Cleanup(tree.Close)
	volume, err := beneath.OpenRoot(b.pod.VolumePath())
	must(t, err)
	defer volume.Close()
	if s.readOnly {
		_, err = b.table.Publish(tree, volume)
	} else {
		err = publishWritable(tree, volume)
	}
	must(t, err)
	must(t, bind(b.table, home, tree, "alice", 0))
	return tree, home
}

// publishWritable publishes as Publish does, but for the flags.
func publishWritable(tree, volume *beneath.Dir) error {
	fd, err := unix.OpenTree(tree.Fd(), "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_SLAVE}); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", volume.Fd(), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

func bind(table mnt.Table, source string, tree *beneath.Dir, target string, flags mnt.Flags) error {
	if err := tree.Mkdir(target, 0o755); err != nil {
		return err
	}
	src, err := beneath.OpenRoot(source)
	if err != nil {
		return err
	}
	defer src.Close()
	on, err := tree.OpenTarget(target)
	if err != nil {
		return err
	}
	defer on.Close()
	_, err = table.Bind(src, on, flags)
	return err
}

func files(t *testing.T, dir string) int {
	t.Helper()
	n := 0
	must(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return err
	}))
	return n
}

func TestKubeletsTeardownWithAGrantStandingAndNoAgent(t *testing.T) {
	for _, c := range []struct {
		name string
		surface
		how  string
		err  error
		lost bool
	}{
		{"as the agent publishes it, kubelet gets EBUSY and nothing is lost", surface{memory: true, readOnly: true}, "tmpfs", unix.EBUSY, false},
		{"with a writable publication alone, kubelet gets EBUSY and nothing is lost", surface{memory: true}, "tmpfs", unix.EBUSY, false},
		{"with a tree on disk alone, kubelet gets EROFS and nothing is lost", surface{readOnly: true}, "disk", unix.EROFS, false},
		{"with a tree on disk and a writable publication, the home folder is lost", surface{}, "disk", unix.EBUSY, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			tree, home := newSurface(t, b, c.surface)
			// kubelet tries again and again; once is as good as twenty times.
			for range 20 {
				how, err := b.pod.TearDownVolume()
				if how != c.how || !errors.Is(err, c.err) {
					t.Fatalf("kubelet took the branch %q and got %v, want %q and %v", how, err, c.how, c.err)
				}
			}
			left := files(t, home)
			if c.lost {
				if left == throwAway {
					t.Fatal("nothing is lost: this test does not show what the guards are for")
				}
				return
			}
			if left != throwAway {
				t.Fatalf("%d of %d files are left", left, throwAway)
			}
			// Revoked, the Pod comes unstuck.
			must(t, b.table.Unmount(tree, "alice", false))
			for _, wantErr := range []bool{true, false} {
				if how, err := b.pod.TearDownVolume(); (err != nil) != wantErr && c.memory {
					t.Fatalf("after the revocation kubelet took the branch %q and got %v", how, err)
				}
			}
		})
	}
}

func TestKubeletsFirstUnmountTakesThePublicationAndItsSecondItsOwn(t *testing.T) {
	b := newBench(t)
	tree, _ := newSurface(t, b, surface{memory: true, readOnly: true})
	must(t, b.table.Unmount(tree, "alice", false))
	own := mountsAt(t, b, b.Volume())[0]

	how, err := b.pod.TearDownVolume()
	if how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("first attempt: branch %q, %v", how, err)
	}
	left := mountsAt(t, b, b.Volume())
	if len(left) != 1 || left[0].ID != own.ID {
		t.Fatalf("the first attempt left %+v, want kubelet's own %+v", left, own)
	}
	how, err = b.pod.TearDownVolume()
	if how != "tmpfs" || err != nil {
		t.Fatalf("second attempt: branch %q, %v", how, err)
	}
	if _, err := os.Stat(b.Volume()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the volume is still there: %v", err)
	}
	how, err = b.pod.TearDownVolume()
	if how != "gone" || err != nil {
		t.Fatalf("third attempt: branch %q, %v", how, err)
	}
	// The tree is the agent's and stays until the agent takes it.
	if n := len(mountsAt(t, b, tree.Path())); n != 1 {
		t.Fatalf("%d mounts at the tree", n)
	}
}

func mountsAt(t *testing.T, b *bench, point string) []mnt.Mount {
	t.Helper()
	all, err := b.table.List()
	must(t, err)
	var found []mnt.Mount
	for _, m := range all {
		if m.Point == point {
			found = append(found, m)
		}
	}
	return found
}
