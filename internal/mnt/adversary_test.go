package mnt_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// arena is a claim and a tree with an adversary in both. The claim is a folder
// of a filesystem that has a folder "outside" beside it: device numbers alone
// do not tell the two apart.
type arena struct {
	*bench
	fs      string // the filesystem's mount point
	claim   *beneath.Dir
	tree    *beneath.Dir
	sources []uint64 // inodes that may be granted
	swaps   atomic.Int64
	// swapped has something in it when names were swapped since it was last
	// emptied. Refusals are quick: without it thousands meet the same state.
	swapped chan struct{}
}

func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{bench: newBench(t), swapped: make(chan struct{}, 1)}
	a.fs = a.node.Claim
	tree := filepath.Join(a.node.Root, "pod")
	for _, d := range []string{a.fs + "/shared/a/home", a.fs + "/shared/b/home", a.fs + "/outside/home", a.fs + "/outside/target", tree} {
		must(t, os.MkdirAll(d, 0o755))
	}
	for _, d := range []string{"a/home", "b/home"} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(a.fs, "shared", d), &st))
		a.sources = append(a.sources, st.Ino)
	}
	_, err := a.table.NewTree(openDir(t, tree))
	must(t, err)
	a.tree = openDir(t, tree)
	a.claim = openDir(t, filepath.Join(a.fs, "shared"))
	_, err = a.table.Publish(a.tree, openDir(t, a.Volume()))
	must(t, err)

	must(t, os.Symlink("../outside", filepath.Join(a.fs, "shared", "relative")))
	must(t, os.Symlink(filepath.Join(a.fs, "outside"), filepath.Join(a.fs, "shared", "absolute")))
	must(t, os.Mkdir(filepath.Join(tree, "target"), 0o755))
	must(t, os.Symlink(filepath.Join(a.fs, "outside", "target"), filepath.Join(tree, "link")))
	return a
}

// attack swaps pairs of paths, taken at random, until stop is closed. A swap that
// the kernel refuses (a mount stands there) is one less.
func (a *arena) attack(pairs [][2]string, stop <-chan struct{}) {
	dice := rand.New(rand.NewPCG(1, 2))
	for {
		select {
		case <-stop:
			return
		default:
		}
		for range 1 + dice.IntN(8) {
			p := pairs[dice.IntN(len(pairs))]
			if unix.Renameat2(unix.AT_FDCWD, p[0], unix.AT_FDCWD, p[1], unix.RENAME_EXCHANGE) == nil {
				a.swaps.Add(1)
			}
		}
		select {
		case a.swapped <- struct{}{}:
		default:
		}
		runtime.Gosched() // where there is one processor, the victim needs it too
	}
}

// grant tries one grant and checks where it went and what it is.
func (a *arena) grant(t *testing.T) error {
	source, err := a.claim.Open("a/home")
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := a.tree.OpenTarget("target")
	if err != nil {
		return err
	}
	rec, err := a.table.Bind(source, target, 0)
	target.Close()
	if err != nil {
		return err
	}
	place, err := a.table.At(source)
	if err != nil {
		return err
	}
	if !slices.Contains(a.sources, place.Inode) || place.Dev != rec.Dev || !mnt.Within("/shared", rec.Root) {
		t.Errorf("granted %+v: inode %d of %v", rec, place.Inode, place.Dev)
	}
	return nil
}

// revoke takes the grant away, under whichever of its two names it stands now.
func (a *arena) revoke(t *testing.T) {
	t.Helper()
	for {
		for _, name := range []string{"target", "link"} {
			err := a.table.Unmount(a.tree, name, false)
			if err == nil {
				return
			}
			if !errors.Is(err, mnt.ErrNotMounted) {
				t.Fatal(err)
			}
		}
	}
}

// check reads the whole table and fails for a mount of the claim's filesystem
// that stands anywhere but in the tree and in the volume, or is not of the claim.
func (a *arena) check(t *testing.T, want int) {
	t.Helper()
	mounts, err := a.table.List()
	must(t, err)
	fs, _ := mnt.Covering(mounts, a.fs)
	n := 0
	for _, m := range mounts {
		if m.Dev != fs.Dev || m.Point == a.fs {
			continue
		}
		n++
		parent := filepath.Dir(m.Point)
		if parent != a.tree.Path() && parent != a.Volume() || !mnt.Within("/shared", m.Root) {
			t.Errorf("%s of the claim's filesystem is mounted on %s", m.Root, m.Point)
		}
	}
	if n != want {
		t.Errorf("%d mounts of the claim's filesystem, want %d", n, want)
	}
}

func TestTenThousandGrantsAgainstAnAdversaryNeverLeaveTheClaimOrTheTree(t *testing.T) {
	const grants = 10_000
	a := newArena(t)
	stop := make(chan struct{})
	var adversary sync.WaitGroup
	shared, tree := filepath.Join(a.fs, "shared"), a.tree.Path()
	pairs := [][2]string{
		{shared + "/a", shared + "/relative"},
		{shared + "/a", shared + "/b"},
		{shared + "/a", shared + "/absolute"},
		{shared + "/b", shared + "/absolute"},
		{tree + "/target", tree + "/link"},
		{tree + "/target", tree + "/link"},
	}
	adversary.Go(func() { a.attack(pairs, stop) })
	granted, escapes := 0, 0
	for range grants {
		<-a.swapped
		switch err := a.grant(t); {
		case err == nil:
			if granted++; granted%100 == 0 {
				a.check(t, 2)
			}
			a.revoke(t)
		case errors.Is(err, beneath.ErrEscapes):
			escapes++
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAGAIN):
			// Swapped under our feet, too often: refused as well.
		default:
			t.Fatal(err)
		}
		if t.Failed() {
			break
		}
	}
	close(stop)
	adversary.Wait()
	a.check(t, 0)
	for _, d := range []string{"home", "target"} {
		entries, err := os.ReadDir(filepath.Join(a.fs, "outside", d))
		must(t, err)
		if len(entries) != 0 {
			t.Errorf("outside/%s has %v", d, entries)
		}
	}
	t.Logf("%d granted, %d refused as escapes, %d swaps", granted, escapes, a.swaps.Load())
	if granted < grants/20 || escapes < grants/20 || a.swaps.Load() < grants {
		t.Errorf("%d granted, %d refused as escapes, %d swaps: this was no fight", granted, escapes, a.swaps.Load())
	}
}

// The same fight with a resolver that trusts paths shows that the adversary wins
// where it can.
func TestTheAdversaryBeatsGrantsByPath(t *testing.T) {
	a := newArena(t)
	stop := make(chan struct{})
	var adversary sync.WaitGroup
	shared := filepath.Join(a.fs, "shared")
	adversary.Go(func() { a.attack([][2]string{{shared + "/a", shared + "/relative"}}, stop) })
	defer adversary.Wait()
	defer close(stop)
	for range 10_000 {
		<-a.swapped
		source, err := beneath.OpenRoot(filepath.Join(shared, "a", "home"))
		must(t, err)
		place, err := a.table.At(source)
		source.Close()
		must(t, err)
		if !slices.Contains(a.sources, place.Inode) {
			return
		}
	}
	t.Error("no path led outside: the adversary is none")
}
