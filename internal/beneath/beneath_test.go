package beneath_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openRoot(t *testing.T, at string) *beneath.Dir {
	t.Helper()
	d, err := beneath.OpenRoot(at)
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

// badNames are refused by their text, whatever is there.
var badNames = []string{
	"", ".", "..", "/", "/etc", "a/..", "../a", "a/../b", "a/../../b", "./a", "a/.", "a/./b", "a//b", "//a", "a/", "/a", "a\x00b", "\x00", "a/\x00", "..\x00",
}

func TestOpenRefusesByTextWhatCouldLeadOutside(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(root+"/a/b", 0o755))
	r := openRoot(t, root)
	for _, rel := range badNames {
		for what, open := range map[string]func(string) (*beneath.Dir, error){"Open": r.Open, "OpenTarget": r.OpenTarget} {
			if d, err := open(rel); !errors.Is(err, beneath.ErrEscapes) {
				t.Errorf("%s(%q): %v", what, rel, err)
				d.Close()
			}
		}
	}
}

func TestOpenFollowsNoLink(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(root+"/a/b", 0o755))
	must(t, os.Mkdir(outside+"/b", 0o755))
	must(t, os.WriteFile(root+"/file", nil, 0o644))
	r := openRoot(t, root)
	for name, to := range map[string]string{
		"absolute": outside, "relative": "../" + filepath.Base(outside), "inside": "a", "self": ".", "up": "..",
		"broken": "missing", "circle": "circle", "to-file": "file", "proc": "/proc/self/root", "fd": fmt.Sprintf("/proc/self/fd/%d", r.Fd()),
	} {
		must(t, os.Symlink(to, filepath.Join(root, name)))
		for _, rel := range []string{name, name + "/b", name + "/b/c"} {
			if d, err := r.Open(rel); !errors.Is(err, beneath.ErrEscapes) {
				t.Errorf("%s, a link to %s: %v", rel, to, err)
				d.Close()
			}
		}
	}
	must(t, os.Symlink(outside, root+"/a/link"))
	if d, err := r.Open("a/link/b"); !errors.Is(err, beneath.ErrEscapes) {
		t.Errorf("a link in the middle: %v", err)
		d.Close()
	}
	// A file is no folder, and no link either.
	for _, rel := range []string{"file", "file/b"} {
		if d, err := r.Open(rel); !errors.Is(err, unix.ENOTDIR) || errors.Is(err, beneath.ErrEscapes) {
			t.Errorf("%s, a file: %v", rel, err)
			d.Close()
		}
	}
	if d, err := r.Open("a/missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing folder: %v", err)
		d.Close()
	}
}

func TestOpenNamesOneInodeWhateverBecomesOfTheName(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	odd := "sp ace\nnew\\line"
	must(t, os.MkdirAll(filepath.Join(root, "a", odd), 0o755))
	r := openRoot(t, root)
	d, err := r.Open("a/" + odd)
	must(t, err)
	defer d.Close()
	if want := filepath.Join(root, "a", odd); d.Path() != want {
		t.Errorf("path %q, want %q", d.Path(), want)
	}
	var before, after unix.Stat_t
	must(t, unix.Fstat(d.Fd(), &before))
	must(t, os.Rename(root+"/a", root+"/moved"))
	must(t, os.Symlink(outside, root+"/a"))
	must(t, unix.Fstat(d.Fd(), &after))
	if before.Ino != after.Ino || before.Dev != after.Dev {
		t.Error("the descriptor names another folder now")
	}
	if flags, err := unix.FcntlInt(uintptr(d.Fd()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("children inherit the descriptor: flags %d, %v", flags, err)
	}
}

func TestTheRootIsConfigurationAndMayBeALink(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(root+"/real/a", 0o755))
	must(t, os.Symlink("real", root+"/link"))
	d, err := openRoot(t, root+"/link/").Open("a")
	must(t, err)
	defer d.Close()
	if want := root + "/link/a"; d.Path() != want {
		t.Errorf("path %s, want %s", d.Path(), want)
	}
	must(t, os.WriteFile(root+"/file", nil, 0o644))
	if _, err := beneath.OpenRoot(root + "/file"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
	if _, err := beneath.OpenRoot(root + "/missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

func TestOpenCrossesMountsAndOpenTargetDoesNot(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(root+"/a/mounted", 0o755))
	must(t, os.Mkdir(root+"/free", 0o755))
	must(t, unix.Mount("here", root+"/a/mounted", "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(root+"/a/mounted", 0)) })
	must(t, os.Mkdir(root+"/a/mounted/b", 0o755))
	for _, rel := range []string{"a/mounted", "a/mounted/b"} {
		d, err := openRoot(t, root).Open(rel)
		must(t, err)
		d.Close()
	}
	a := openRoot(t, root+"/a")
	if _, err := a.OpenTarget("mounted"); !errors.Is(err, beneath.ErrMounted) || errors.Is(err, beneath.ErrEscapes) {
		t.Errorf("a target that is taken: %v", err)
	}
	// A bind of the same filesystem is a mount too.
	must(t, unix.Mount(root+"/a", root+"/free", "", unix.MS_BIND, ""))
	r := openRoot(t, root)
	if _, err := r.OpenTarget("free"); !errors.Is(err, beneath.ErrMounted) {
		t.Errorf("a target taken by a bind: %v", err)
	}
	must(t, unix.Unmount(root+"/free", 0))
	d, err := r.OpenTarget("free")
	must(t, err)
	d.Close()
	if _, err := r.OpenTarget("missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing target: %v", err)
	}
}

func TestCloseIsSafeToRepeat(t *testing.T) {
	d, err := beneath.OpenRoot(t.TempDir())
	must(t, err)
	d.Close()
	d.Close()
	if d.Fd() != -1 {
		t.Errorf("descriptor %d after Close", d.Fd())
	}
	var none *beneath.Dir
	none.Close()
}

func TestMkdirGivesExactlyTheModeAskedFor(t *testing.T) {
	umask(t, 0o077)
	root := t.TempDir()
	r := openRoot(t, root)
	for _, mode := range []uint32{0o755, 0o700, 0o777, 0o1777} {
		name := fmt.Sprintf("%o", mode)
		must(t, r.Mkdir(name, mode))
		if e := stat(t, filepath.Join(root, name)); e.mode != mode {
			t.Errorf("%v, want %o", e, mode)
		}
	}
	must(t, r.Mkdir("700", 0o755))
	if e := stat(t, root+"/700"); e.mode != 0o700 {
		t.Errorf("one that existed is %v now", e)
	}
	for _, name := range append([]string{"a/b"}, badNames...) {
		if err := r.Mkdir(name, 0o755); !errors.Is(err, beneath.ErrEscapes) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := r.Mkdir(strings.Repeat("x", 256), 0o755); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("a name that is too long: %v", err)
	}
}

func TestMkdirChangesNothingThroughALink(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	must(t, os.Chmod(outside, 0o700))
	must(t, os.Symlink(outside, root+"/link"))
	// It exists, so it is left; what it leads to is left too.
	must(t, openRoot(t, root).Mkdir("link", 0o777))
	if e := stat(t, outside); e.mode != 0o700 {
		t.Errorf("the folder outside is %v now", e)
	}
}

func TestALinkPutInThePlaceOfAFolderJustMadeChangesNothingOutside(t *testing.T) {
	outside := t.TempDir()
	must(t, os.Chmod(outside, 0o700))
	before := stat(t, outside)
	for what, make := range map[string]func(*beneath.Dir) error{
		"Mkdir":  func(r *beneath.Dir) error { return r.Mkdir("alice", 0o777) },
		"Create": func(r *beneath.Dir) error { _, err := r.Create("alice", user); return err },
	} {
		s := &storage{swapFor: outside}
		root := s.mount(t)
		if err := make(openRoot(t, root)); !errors.Is(err, beneath.ErrEscapes) {
			t.Errorf("%s: %v", what, err)
		}
		if to, err := os.Readlink(root + "/alice"); err != nil || to != outside {
			t.Errorf("%s: the link leads to %q, %v: this was no attack", what, to, err)
		}
		if after := stat(t, outside); after != before {
			t.Errorf("%s: the folder outside was %v and is %v", what, before, after)
		}
	}
}

func TestRmdirTakesAnEmptyDirectoryAndNothingElse(t *testing.T) {
	root := t.TempDir()
	r := openRoot(t, root)
	must(t, os.MkdirAll(root+"/full/sub", 0o755))
	must(t, os.Mkdir(root+"/empty", 0o755))
	must(t, os.WriteFile(root+"/file", nil, 0o644))
	must(t, os.Symlink("empty", root+"/link"))
	for name, want := range map[string]error{"full": unix.ENOTEMPTY, "file": unix.ENOTDIR, "link": unix.ENOTDIR, "full/sub": beneath.ErrEscapes, "..": beneath.ErrEscapes} {
		if err := r.Rmdir(name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	for range 2 { // the second time it is gone already
		must(t, r.Rmdir("empty"))
	}
	gone(t, root+"/empty")
	for _, left := range []string{"full/sub", "file", "link"} {
		if _, err := os.Lstat(filepath.Join(root, left)); err != nil {
			t.Error(err)
		}
	}
}
