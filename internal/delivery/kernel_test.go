package delivery_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// The user that folders are made for.
const userID, groupID = 1000, 100

// bench is a claim and a Pod's tree. The claim is a folder of a filesystem that
// has others beside it, as an NFS export may be: device numbers alone do not tell
// what is outside.
type bench struct {
	fs    string // where all of the filesystem is mounted
	claim string // where the claim is mounted: the folder "shared" of fs
	at    string // where the tree is mounted
	tree  *beneath.Dir
	table *mnt.Kernel
	bind  *delivery.Bind
}

func newBench(t *testing.T) *bench {
	t.Helper()
	node, err := simnode.New(simnode.Options{})
	must(t, err)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bench{fs: node.Claim, claim: filepath.Join(node.Dir, "shared"), at: filepath.Join(node.Root, "pod"), table: &mnt.Kernel{}}
	for _, dir := range []string{filepath.Join(b.fs, "shared"), filepath.Join(b.fs, "outside"), b.claim, b.at} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, unix.Mount(filepath.Join(b.fs, "shared"), b.claim, "", unix.MS_BIND, ""))
	on, err := beneath.OpenRoot(b.at)
	must(t, err)
	_, err = b.table.NewTree(on)
	on.Close()
	must(t, err)
	b.tree, err = beneath.OpenRoot(b.at)
	must(t, err)
	t.Cleanup(b.tree.Close)
	budget := &deadline.Budget{}
	const bound = 5 * time.Second
	b.bind = &delivery.Bind{
		Table: b.table, Proof: &proof.Storage{Table: b.table, Budget: budget, Bound: bound, PerMount: 1},
		Claim: b.claim, Owner: beneath.Owner{UID: userID, GID: groupID}, Bound: bound,
		Keys: func(string) []deadline.Key { return nil }, Budget: budget,
	}
	return b
}

// home is made on first use; folder must exist.
func home(t testing.TB, source string) plan.Mount   { return planned(t, grant.KindFiles, source) }
func folder(t testing.TB, source string) plan.Mount { return planned(t, "", source) }

// planned is a writable grant of the source at "target", as the agent plans it.
func planned(t testing.TB, kind grant.Kind, source string) plan.Mount {
	t.Helper()
	set := grant.Set{Mounts: []grant.Mount{{Kind: kind, Source: source, Target: "target", Mode: grant.ReadWrite}}}
	p := plan.Build(set, plan.Policy{Serves: map[grant.Kind]bool{kind: true}})
	if len(p.Mounts) != 1 {
		t.Fatalf("no plan: %+v", p)
	}
	return p.Mounts[0]
}

// inTree are the names in the tree.
func (b *bench) inTree(t testing.TB) []string {
	t.Helper()
	return namesIn(t, b.at)
}

func namesIn(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// place is what stands at the target.
func (b *bench) place(t testing.TB) mnt.Place {
	t.Helper()
	dir, err := b.tree.Open("target")
	must(t, err)
	defer dir.Close()
	p, err := b.table.At(dir)
	must(t, err)
	return p
}

// mounted are the mounts that stand in the tree.
func (b *bench) mounted(t testing.TB) []mnt.Mount {
	t.Helper()
	all, err := b.table.List()
	must(t, err)
	var in []mnt.Mount
	for _, m := range all {
		if filepath.Dir(m.Point) == b.at {
			in = append(in, m)
		}
	}
	return in
}

func TestAHomeFolderIsMadeForItsUserAndBound(t *testing.T) {
	b := newBench(t)
	rec, err := b.bind.Deliver(t.Context(), b.tree, home(t, "users/ada"), delivery.Credential{})
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(b.fs, "shared/users/ada"), &st))
	if st.Uid != userID || st.Gid != groupID || rec.Root != "/shared/users/ada" || rec.Inode != st.Ino {
		t.Errorf("of %d:%d, recorded as %+v", st.Uid, st.Gid, rec)
	}
	if ms := b.mounted(t); len(ms) != 1 || !rec.Matches(ms[0]) || ms[0].Flags != mnt.NoSUID|mnt.NoDev|mnt.NoExec || ms[0].Master != 0 {
		t.Errorf("mounted: %+v", ms)
	}
	must(t, b.bind.Alive(t.Context(), b.tree, "target"))
	must(t, os.Remove(filepath.Join(b.fs, "shared/users/ada")))
	wants(t, "a folder that was deleted", b.bind.Alive(t.Context(), b.tree, "target"), proof.ErrDeleted)
	must(t, b.bind.Undo(t.Context(), b.tree, "target", false))
	wants(t, "a mount that was undone", b.bind.Alive(t.Context(), b.tree, "target"), unix.ENOENT)
}

func TestWhatIsRefusedLeavesNothingInTheTreeAndSaysWhy(t *testing.T) {
	b := newBench(t)
	shared := filepath.Join(b.fs, "shared")
	must(t, os.WriteFile(filepath.Join(shared, "file"), nil, 0o644))
	must(t, os.Symlink(filepath.Join(b.fs, "outside"), filepath.Join(shared, "link")))
	for source, want := range map[string]struct {
		err  error
		code grant.Code
	}{
		"missing":  {unix.ENOENT, grant.CodeMountFailed},
		"file":     {unix.ENOTDIR, grant.CodeInvalidSource},
		"link":     {beneath.ErrEscapes, grant.CodeInvalidSource},
		"link/sub": {beneath.ErrEscapes, grant.CodeInvalidSource},
	} {
		for _, m := range []plan.Mount{folder(t, source), home(t, source)} {
			if m.Creates() && source == "missing" {
				continue
			}
			_, err := b.bind.Deliver(t.Context(), b.tree, m, delivery.Credential{})
			if wants(t, source, err, want.err); err == nil {
				continue
			}
			if code, text := delivery.Explain(err); code != want.code || text == "" {
				t.Errorf("%s is explained as %s: %s", source, code, text)
			}
			if left := b.inTree(t); len(left) != 0 {
				t.Errorf("%s leaves %v in the tree", source, left)
			}
		}
	}
	if in := namesIn(t, filepath.Join(b.fs, "outside")); len(in) != 0 {
		t.Errorf("outside has %v", in)
	}
}

func TestNothingIsMadeWhereTheClaimIsNotMounted(t *testing.T) {
	b := newBench(t)
	must(t, unix.Unmount(b.claim, 0))
	wants(t, "a bare folder", b.bind.Usable(t.Context()), delivery.ErrClaimMissing)
	_, err := b.bind.Deliver(t.Context(), b.tree, home(t, "users/ada"), delivery.Credential{})
	wants(t, "a home on a bare folder", err, delivery.ErrClaimMissing)
	must(t, os.Remove(b.claim)) // it is empty
	wants(t, "no folder", b.bind.Usable(t.Context()), delivery.ErrClaimMissing)
	must(t, os.Mkdir(b.claim, 0o755))
	must(t, unix.Mount(filepath.Join(b.fs, "shared"), b.claim, "", unix.MS_BIND, ""))
	must(t, b.bind.Usable(t.Context()))
}

func TestWhatStandsAtTheTargetIsNeverMountedOn(t *testing.T) {
	b := newBench(t)
	must(t, os.Mkdir(filepath.Join(b.fs, "shared/a"), 0o755))
	at := filepath.Join(b.at, "target")
	for what, put := range map[string]func() error{
		"link": func() error { return os.Symlink(filepath.Join(b.fs, "outside"), at) },
		"file": func() error { return os.WriteFile(at, nil, 0o644) },
	} {
		must(t, put())
		_, err := b.bind.Deliver(t.Context(), b.tree, folder(t, "a"), delivery.Credential{})
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, beneath.ErrEscapes) {
			if code, _ := delivery.Explain(err); code != grant.CodeMountFailed {
				t.Errorf("a %s is explained as %s", what, code)
			}
		} else {
			t.Errorf("on a %s: %v", what, err)
		}
		must(t, os.Remove(at))
	}
	// A second mount is not stacked on the first.
	_, err := b.bind.Deliver(t.Context(), b.tree, folder(t, "a"), delivery.Credential{})
	must(t, err)
	_, err = b.bind.Deliver(t.Context(), b.tree, folder(t, "a"), delivery.Credential{})
	wants(t, "on a mount", err, beneath.ErrMounted)
	if ms := b.mounted(t); len(ms) != 1 || ms[0].Point != at {
		t.Errorf("mounted: %+v", ms)
	}
	must(t, b.bind.Undo(t.Context(), b.tree, "target", false))
}

func TestUndoIsRightForWhatWasNeverMadeIsHalfMadeOrInUse(t *testing.T) {
	b := newBench(t)
	must(t, os.Mkdir(filepath.Join(b.fs, "shared/a"), 0o755))
	at := filepath.Join(b.at, "target")
	for what, before := range map[string]func() error{
		"never made": func() error { return nil },
		"half made":  func() error { return os.Mkdir(at, 0o555) },
		"made": func() error {
			_, err := b.bind.Deliver(t.Context(), b.tree, folder(t, "a"), delivery.Credential{})
			return err
		},
		"in use": func() error {
			_, err := b.bind.Deliver(t.Context(), b.tree, folder(t, "a"), delivery.Credential{})
			if err != nil {
				return err
			}
			f, err := os.Open(at)
			t.Cleanup(func() { f.Close() })
			return err
		},
	} {
		must(t, before())
		err := b.bind.Undo(t.Context(), b.tree, "target", false)
		if busy := errors.Is(err, mnt.ErrBusy); busy != (what == "in use") || err != nil && !busy {
			t.Errorf("%s: %v", what, err)
		}
		if ms := b.mounted(t); what == "in use" && len(ms) != 1 {
			t.Errorf("%s: it stands %d times after it was busy", what, len(ms))
		}
		for range 2 {
			if err := b.bind.Undo(t.Context(), b.tree, "target", true); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if left, ms := b.inTree(t), b.mounted(t); len(left)+len(ms) != 0 {
			t.Errorf("%s: left %v, %+v", what, left, ms)
		}
	}
}
