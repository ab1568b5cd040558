package beneath_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

var user = beneath.Owner{UID: 1000, GID: 100}

const home = "home/users/alice"

// parents are the folders on the way to home, and home.
var parents = []string{"home", "home/users", home}

type entry struct {
	mode     uint32
	uid, gid int
	inode    uint64
}

func (e entry) String() string { return fmt.Sprintf("%04o %d:%d", e.mode, e.uid, e.gid) }

func stat(t *testing.T, path string) entry {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return entry{mode: st.Mode & 0o7777, uid: int(st.Uid), gid: int(st.Gid), inode: st.Ino}
}

func create(t *testing.T, root, rel string) error {
	t.Helper()
	r := openRoot(t, root)
	d, err := r.Create(rel, user)
	if err != nil {
		return err
	}
	defer d.Close()
	if d.Path() != filepath.Join(root, rel) {
		t.Errorf("made %s", d.Path())
	}
	var st unix.Stat_t
	must(t, unix.Fstat(d.Fd(), &st))
	if want := stat(t, filepath.Join(root, rel)); st.Ino != want.inode {
		t.Errorf("the descriptor is of inode %d, the folder %d", st.Ino, want.inode)
	}
	return nil
}

// made fails unless path is a folder as a new one should be.
func made(t *testing.T, path string) {
	t.Helper()
	e := stat(t, path)
	if e.mode != beneath.HomeMode || e.uid != user.UID || e.gid != user.GID {
		t.Errorf("%s is %v, want 0775 1000:100", path, e)
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

func umask(t *testing.T, mask int) {
	t.Helper()
	old := unix.Umask(mask)
	t.Cleanup(func() { unix.Umask(old) })
}

func TestANewFolderAndEachMissingOneOnTheWayIsTheUsers(t *testing.T) {
	for _, mask := range []int{0o022, 0o077, 0o777, 0} {
		umask(t, mask)
		root := t.TempDir()
		must(t, create(t, root, home))
		for _, p := range parents {
			made(t, filepath.Join(root, p))
		}
	}
}

func TestAFolderMadeInASetGIDFolderIsTheUsers(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(root+"/home", 0o755))
	must(t, os.Chown(root+"/home", 0, 4711))
	must(t, os.Chmod(root+"/home", 0o775|os.ModeSetgid))
	must(t, create(t, root, home))
	made(t, filepath.Join(root, "home/users"))
	made(t, filepath.Join(root, home))
	if e := stat(t, root+"/home"); e.mode != 0o2775 || e.gid != 4711 {
		t.Errorf("the set-gid folder is %v now", e)
	}
}

func TestAnExistingFolderIsNeverChanged(t *testing.T) {
	for _, mode := range []uint32{0o000, 0o100, 0o500, 0o555, 0o700, 0o755, 0o775, 0o777, 0o1777, 0o1700, 0o2770, 0o2000, 0o4755, 0o7777} {
		for _, owner := range []beneath.Owner{{UID: 0, GID: 0}, {UID: 1000, GID: 1000}, {UID: 4711, GID: 100}, {UID: 65534, GID: 65534}} {
			// Each of them in turn is the one that exists with its parents.
			for i, exists := range parents {
				root := t.TempDir()
				for _, p := range parents[:i+1] {
					must(t, os.Mkdir(filepath.Join(root, p), 0o755))
				}
				p := filepath.Join(root, exists)
				must(t, os.Chown(p, owner.UID, owner.GID))
				must(t, unix.Chmod(p, mode))
				before := stat(t, p)
				must(t, create(t, root, home))
				if after := stat(t, p); after != before {
					t.Errorf("%s was %v and is %v", exists, before, after)
				}
				for _, p := range parents[i+1:] {
					made(t, filepath.Join(root, p))
				}
			}
		}
	}
}

func TestAHalfMadeFolderIsFinished(t *testing.T) {
	// What a crash leaves behind between mkdir, chown and chmod.
	for _, left := range []entry{{mode: 0o1000}, {mode: 0o1000, uid: 1000, gid: 100}, {mode: 0o3000, gid: 4711}} {
		for i := range parents {
			root := t.TempDir()
			for _, p := range parents[:i] {
				must(t, os.Mkdir(filepath.Join(root, p), 0o755))
			}
			p := filepath.Join(root, parents[i])
			must(t, os.Mkdir(p, 0))
			must(t, os.Chown(p, left.uid, left.gid))
			must(t, unix.Chmod(p, left.mode))
			must(t, create(t, root, home))
			for _, p := range parents[i:] {
				made(t, filepath.Join(root, p))
			}
			for _, p := range parents[:i] {
				if e := stat(t, filepath.Join(root, p)); e.mode != 0o755 || e.uid != 0 {
					t.Errorf("%s is %v now", p, e)
				}
			}
		}
	}
}

func TestManyAtOnceMakeOneFolder(t *testing.T) {
	const workers = 32
	for range 20 {
		root := t.TempDir()
		r := openRoot(t, root)
		var wg sync.WaitGroup
		inodes := make([]uint64, workers)
		errs := make([]error, workers)
		start := make(chan struct{})
		for i := range workers {
			wg.Go(func() {
				<-start
				d, err := r.Create(home, user)
				if err != nil {
					errs[i] = err
					return
				}
				defer d.Close()
				var st unix.Stat_t
				errs[i] = unix.Fstat(d.Fd(), &st)
				inodes[i] = st.Ino
			})
		}
		close(start)
		wg.Wait()
		must(t, errors.Join(errs...))
		for _, p := range parents {
			made(t, filepath.Join(root, p))
		}
		if slices.Max(inodes) != slices.Min(inodes) {
			t.Fatalf("inodes %v", inodes)
		}
	}
}

func TestALinkOnTheWayIsRefusedAndNothingIsMadeOutside(t *testing.T) {
	outside := t.TempDir()
	must(t, os.Mkdir(outside+"/users", 0o700))
	before := stat(t, outside+"/users")
	for i, link := range parents {
		for _, to := range []string{outside, ".", "..", "/", "missing", filepath.Join(outside, "missing")} {
			root := t.TempDir()
			for _, p := range parents[:i] {
				must(t, os.Mkdir(filepath.Join(root, p), 0o755))
			}
			must(t, os.Symlink(to, filepath.Join(root, link)))
			if err := create(t, root, home); !errors.Is(err, beneath.ErrEscapes) {
				t.Errorf("%s is a link to %q: %v", link, to, err)
			}
		}
	}
	if after := stat(t, outside+"/users"); after != before {
		t.Errorf("the folder outside was %v and is %v", before, after)
	}
	for _, d := range []string{outside, outside + "/users"} {
		entries, err := os.ReadDir(d)
		must(t, err)
		if want := map[bool]int{true: 1, false: 0}[d == outside]; len(entries) != want {
			t.Errorf("%s has %v", d, entries)
		}
	}
}

func TestAnAdversaryOnTheWayGetsNothingMadeOrGivenAwayOutside(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "victim")
	for _, d := range []string{filepath.Join(root, "users"), victim} {
		must(t, os.Mkdir(d, 0o700))
	}
	must(t, os.Symlink(outside, filepath.Join(root, "link")))
	before := stat(t, victim)
	stop := make(chan struct{})
	swapped := make(chan struct{}, 1)
	var adversary sync.WaitGroup
	var swaps atomic.Int64
	adversary.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, "users"), unix.AT_FDCWD, filepath.Join(root, "link"), unix.RENAME_EXCHANGE) == nil {
				swaps.Add(1)
			}
			select {
			case swapped <- struct{}{}:
			default:
			}
			runtime.Gosched() // where there is one processor, the victim needs it too
		}
	})
	r := openRoot(t, root)
	good, refused := 0, 0
	for i := range 2000 {
		<-swapped
		rel := "users/victim"
		if i%2 == 0 {
			rel = fmt.Sprintf("users/new%d/sub", i)
		}
		d, err := r.Create(rel, user)
		switch {
		case err == nil:
			d.Close()
			good++
		case errors.Is(err, beneath.ErrEscapes):
			refused++
		default:
			t.Fatal(err)
		}
	}
	close(stop)
	adversary.Wait()
	if good == 0 || refused == 0 || swaps.Load() < 1000 {
		t.Errorf("%d made, %d refused, %d swaps: this was no fight", good, refused, swaps.Load())
	}
	if after := stat(t, victim); after != before {
		t.Errorf("the folder outside was %v and is %v", before, after)
	}
	entries, err := os.ReadDir(outside)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("outside there are %v", entries)
	}
}

func TestAFileOnTheWayIsNoFolder(t *testing.T) {
	root := t.TempDir()
	must(t, os.WriteFile(root+"/home", nil, 0o644))
	if err := create(t, root, home); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("%v", err)
	}
}

func TestCreateRefusesByTextWhatOpenRefuses(t *testing.T) {
	root := t.TempDir()
	r := openRoot(t, root)
	for _, rel := range badNames {
		if _, err := r.Create(rel, user); !errors.Is(err, beneath.ErrEscapes) {
			t.Errorf("%q: %v", rel, err)
		}
	}
	entries, err := os.ReadDir(root)
	must(t, err)
	if len(entries) != 0 {
		t.Errorf("made %v", entries)
	}
}

func TestStorageThatRefusesToGiveAFolderAwayIsAskedWhetherTheUserCanWrite(t *testing.T) {
	for _, c := range []struct {
		name    string
		storage *storage
		ok      bool
	}{
		{"an access point that makes the user the owner", &storage{uid: 1000, gid: 1000, chown: unix.EPERM}, true},
		{"one that makes the user's group the owner", &storage{uid: 65534, gid: 100, chown: unix.EPERM}, true},
		{"one that does not know the call", &storage{uid: 1000, gid: 100, chown: unix.ENOSYS}, true},
		{"an export that squashes root to nobody", &storage{uid: 65534, gid: 65534, chown: unix.EPERM}, false},
		{"one that leaves it root's", &storage{chown: unix.EPERM}, false},
		{"one that gives it to the user without the right to write", &storage{uid: 1000, gid: 100, mode: 0o555, chown: unix.EPERM}, false},
		{"one that gives it to the user without the right to enter", &storage{uid: 1000, gid: 100, mode: 0o666, chown: unix.EPERM}, false},
		{"one with modes of its own that everybody may write", &storage{mode: 0o777, chown: unix.EPERM}, true},
		{"one with modes of its own that only root may write", &storage{mode: 0o755, chown: unix.EPERM}, false},
		{"one that gives folders away but not their modes", &storage{mode: 0o755}, false},
		{"one that refuses to change a mode", &storage{uid: 1000, gid: 100, chown: unix.EPERM, chmod: unix.EPERM}, false},
		{"one that does as it is told", &storage{uid: 65534, gid: 65534}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.storage
			root := s.mount(t)
			err := create(t, root, "alice")
			if s.mode == 0 && !slices.Equal(s.so().mkdirs, []uint32{0o1000}) {
				t.Errorf("folders were made with the modes %o", s.so().mkdirs)
			}
			if c.ok {
				must(t, err)
				if e := stat(t, root+"/alice"); s.mode == 0 && e.mode != beneath.HomeMode {
					t.Errorf("the folder is %v", e)
				}
				if s.so().removed != 0 {
					t.Error("it was removed")
				}
				// The second time it exists, and nothing is changed or asked.
				before := s.so()
				must(t, create(t, root, "alice"))
				if after := s.so(); after.chowns != before.chowns || len(after.mkdirs) != 1 {
					t.Errorf("%+v, before %+v", after, before)
				}
				return
			}
			if !errors.Is(err, beneath.ErrNotWritable) {
				t.Fatalf("error %v", err)
			}
			// One that has not the mode it was made with may be somebody else's, put in
			// its place: that one is not given away.
			if s.mode != 0 && s.so().chowns != 0 {
				t.Errorf("%d chowns", s.so().chowns)
			}
			gone(t, root+"/alice")
			if s.so().removed != 1 {
				t.Errorf("removed %d times", s.so().removed)
			}
			// The user's identity was a thread's, not ours.
			if uid, gid := syscall.Geteuid(), syscall.Getegid(); uid != 0 || gid != 0 {
				t.Errorf("we are %d:%d now", uid, gid)
			}
			must(t, os.Mkdir(t.TempDir()+"/as-root", 0o700))
		})
	}
}

func TestAHalfMadeFolderOnStorageThatRefusesIsRemovedOnlyWhereItIsEmpty(t *testing.T) {
	s := &storage{uid: 65534, gid: 65534, chown: unix.EPERM}
	root := s.mount(t)
	must(t, os.Mkdir(root+"/alice", 0o755))
	must(t, os.Mkdir(root+"/alice/work", 0o755))
	must(t, unix.Chmod(root+"/alice", 0o1000))
	if err := create(t, root, "alice"); !errors.Is(err, beneath.ErrNotWritable) {
		t.Fatalf("error %v", err)
	}
	if _, err := os.Stat(root + "/alice/work"); err != nil {
		t.Error(err)
	}
}

// go-fuse's loopback hands the permission bits alone to the folder beneath it, and
// calls a mode of 0000 0755 unless it is told not to.
func TestAFolderThatHasNotTheModeItWasMadeWithIsRefusedWithTheModeItHas(t *testing.T) {
	for name, c := range map[string]struct {
		storage *storage
		mode    uint32
	}{
		"the sticky bit is dropped":             {&storage{drops: unix.S_ISVTX, null: true}, 0},
		"the sticky bit is dropped, mode faked": {&storage{drops: unix.S_ISVTX}, 0o755},
		"modes are the storage's own":           {&storage{mode: 0o550}, 0o550},
	} {
		t.Run(name, func(t *testing.T) {
			root := c.storage.mount(t)
			err := create(t, root, "alice")
			lost, ok := errors.AsType[*beneath.MarkError](err)
			if !ok || lost.Mode != c.mode || !errors.Is(err, beneath.ErrNotWritable) {
				t.Errorf("error %v, want the mode %o", err, c.mode)
			}
			gone(t, root+"/alice")
			if c.storage.so().chowns != 0 {
				t.Errorf("%d chowns", c.storage.so().chowns)
			}
			must(t, os.Mkdir(root+"/alice", 0o755))
			must(t, create(t, root, "alice"))
		})
	}
	// One that keeps the mark and refuses the chown is another matter.
	if err := create(t, (&storage{chown: unix.EPERM}).mount(t), "alice"); err == nil {
		t.Error("made")
	} else if lost, ok := errors.AsType[*beneath.MarkError](err); ok {
		t.Errorf("it is said to have made it with mode %o", lost.Mode)
	}
}

func TestAnExistingFolderIsNotAskedWhetherTheUserCanWrite(t *testing.T) {
	s := &storage{uid: 65534, gid: 65534, chown: unix.EPERM}
	root := s.mount(t)
	must(t, os.Mkdir(root+"/alice", 0o700))
	must(t, create(t, root, "alice"))
	if e := stat(t, root+"/alice"); e.mode != 0o700 || s.so().chowns != 0 {
		t.Errorf("the folder is %v after %d chowns", e, s.so().chowns)
	}
}
