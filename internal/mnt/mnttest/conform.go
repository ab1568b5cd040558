package mnttest

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

type conformCase struct {
	name string
	run  func(t *testing.T, p *pod)
}

// Conform holds a mount table to what the agent builds on. open makes a new
// bench for each case.
func Conform(t *testing.T, open func(t *testing.T) Bench) {
	for _, c := range slices.Concat(treeCases(), grantCases(), filesystemCases(), publishCases(), unmountCases()) {
		t.Run(c.name, func(t *testing.T) { c.run(t, newPod(t, open(t))) })
	}
}

func treeCases() []conformCase {
	return []conformCase{
		{"a tree is a memory filesystem in a peer group of its own", treeHasItsOwnGroup},
		{"a tree is shared although what it stands on is private", treeOnPrivate},
		{"At tells a plain directory, a volume, a tree and a grant apart", atTellsApart},
		{"Children are what stands on a mount, and not what stands on that", childrenStand},
		{"a mount made on the volume never reaches the tree", treeReceivesNothing},
	}
}

func treeHasItsOwnGroup(t *testing.T, p *pod) {
	mounts := p.list(t)
	tree := one(t, mounts, p.inTree(""))
	equal(t, "filesystem", tree.FSType, "tmpfs")
	equal(t, "flags", tree.Flags, treeFlags)
	equal(t, "master", tree.Master, 0)
	if tree.Peer == 0 {
		t.Fatal("the tree is private: no grant would leave it")
	}
	for _, m := range mounts {
		if m.ID != tree.ID && m.Peer == tree.Peer {
			t.Errorf("%s is in the tree's peer group: every grant would appear there too", m.Point)
		}
	}
	matches(t, p.record, tree)
}

func treeOnPrivate(t *testing.T, p *pod) {
	p.source(t, "private/tree")
	private := path.Join(p.Claim(), "private")
	p.Mount(t, private)
	p.MakePrivate(t, private)
	noErr(t, os.MkdirAll(path.Join(private, "tree"), 0o755)) // in the filesystem just mounted
	_, err := p.table.NewTree(openRoot(t, path.Join(private, "tree")))
	noErr(t, err)
	mounts := p.list(t)
	equal(t, "peer group beneath", one(t, mounts, private).Peer, 0)
	if one(t, mounts, path.Join(private, "tree")).Peer == 0 {
		t.Error("the tree is private: no grant would leave it")
	}
}

func childrenStand(t *testing.T, p *pod) {
	children := func(dir string) []mnt.Mount {
		t.Helper()
		got, err := p.table.Children(openRoot(t, dir))
		noErr(t, err)
		return got
	}
	equal(t, "mounts in an empty tree", len(children(p.inTree(""))), 0)
	p.publish(t)
	p.source(t, "deep")
	p.source(t, "deep/nested")
	p.Mount(t, path.Join(p.Claim(), "deep/nested"))
	p.grant(t, "deep", "bob", rw)
	p.grant(t, sourceDir, "alice", rw|mnt.ReadOnly)
	mounts := p.list(t)
	same := func(what string, got []mnt.Mount, points ...string) {
		t.Helper()
		var want []mnt.Mount
		for _, point := range points {
			m := one(t, mounts, point)
			m.FSType, m.Source = "", ""
			want = append(want, m)
		}
		byPoint := func(x, y mnt.Mount) int { return strings.Compare(x.Point, y.Point) }
		slices.SortFunc(got, byPoint)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	same("in the tree", children(p.inTree("")), p.inTree("alice"), p.inTree("bob"))
	same("in a grant with another mount", children(p.inTree("bob")), p.inTree("bob/nested"))
	equal(t, "mounts in a plain grant", len(children(p.inTree("alice"))), 0)
	same("in the publication", children(p.Volume()), p.inVolume("alice"), p.inVolume("bob"))
}

func atTellsApart(t *testing.T, p *pod) {
	plain, volume := openRoot(t, p.Root()), openRoot(t, p.Volume())
	rec := p.grant(t, sourceDir, "alice", rw)
	source, err := p.claim.Open(sourceDir)
	noErr(t, err)
	t.Cleanup(source.Close)
	granted, err := p.tree.Open("alice")
	noErr(t, err)
	t.Cleanup(granted.Close)

	place := func(d *beneath.Dir) mnt.Place {
		got, err := p.table.At(d)
		noErr(t, err)
		return got
	}
	for _, c := range []struct {
		what      string
		dir       *beneath.Dir
		mountRoot bool
	}{{"plain", plain, false}, {"source", source, false}, {"volume", volume, true}, {"tree", p.tree, true}, {"grant", granted, true}} {
		equal(t, c.what+" is a mount's root", place(c.dir).MountRoot, c.mountRoot)
	}
	for _, d := range []*beneath.Dir{volume, p.tree} {
		memory, err := p.table.InMemory(d)
		noErr(t, err)
		equal(t, d.Path()+" is in memory", memory, true)
	}
	equal(t, "id of the tree", place(p.tree).ID, p.record.ID)
	equal(t, "id of the grant", place(granted).ID, rec.ID)
	equal(t, "device of the grant", place(granted).Dev, place(source).Dev)
	if root := place(granted).Root; root != "" { // Linux 6.8
		equal(t, "root of the grant", root, rec.Root)
	}
	equal(t, "inode of the grant", place(granted).Inode, place(source).Inode)
	if place(source).ID == place(granted).ID && rec.ID != 0 {
		t.Error("the grant has the id of the mount it was copied from")
	}
}

func treeReceivesNothing(t *testing.T, p *pod) {
	// One grant is there before the publication and is copied with it, the other
	// arrives in it.
	p.source(t, "home/before/sub")
	p.grant(t, "home/before", "before", rw)
	p.publish(t)
	p.source(t, "home/after/sub")
	p.grant(t, "home/after", "after", rw)
	for _, name := range []string{"before", "after"} {
		sub := path.Join(name, "sub")
		if _, err := os.Stat(p.inVolume(sub)); err != nil {
			noErr(t, os.MkdirAll(p.inVolume(sub), 0o755)) // where mounts are in memory
		}
		p.Mount(t, p.inVolume(sub))
		mounts := p.list(t)
		one(t, mounts, p.inVolume(sub))
		equal(t, "mounts that reached the tree", len(at(mounts, p.inTree(sub))), 0)
		equal(t, "mounts that reached the claim", len(at(mounts, path.Join(p.Claim(), "home", sub))), 0)
	}
}

func grantCases() []conformCase {
	return []conformCase{
		{"a grant appears once in the tree, once in the volume and once in a running container", grantAppearsOnce},
		{"a container started before the grant gets it with its flags, nested mounts too", flagsAtBirth},
		{"a grant never loses a flag that its source has", flagsAreOnlySet},
		{"what is mounted beneath the source later stays out of the grant", sourceIsCutOff},
		{"a second mount on a taken target is refused", takenTarget},
		{"a record names the mount that the table lists, whatever its name", recordsMatch},
		{"a grant is known by its source's inode after the source was renamed", renamedSource},
		{"ten grants stand beside each other", manyGrants},
		{"grants are made and revoked side by side", sideBySide},
	}
}

func grantAppearsOnce(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	rec := p.grant(t, sourceDir, "alice", rw)
	p.counts(t, c, "alice", 1, 1, 1)
	matches(t, rec, one(t, p.list(t), p.inTree("alice")))
	matches(t, rec, one(t, p.list(t), p.inVolume("alice")))
	matches(t, rec, one(t, c.Mounts(t), p.inside("alice")))
}

func flagsAtBirth(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	p.Mount(t, p.source(t, sourceDir+"/nested"))
	const all = rw | mnt.ReadOnly | mnt.NoExec
	for _, g := range []struct {
		target string
		flags  mnt.Flags
		want   mnt.Flags
	}{{"none", 0, rw}, {"ro", mnt.ReadOnly, rw | mnt.ReadOnly}, {"noexec", mnt.NoExec, rw | mnt.NoExec}, {"all", all, all}} {
		rec := p.grant(t, sourceDir, g.target, g.flags)
		equal(t, "flags in the record", rec.Flags, g.want)
		for _, point := range []string{p.inside(g.target), p.inside(g.target + "/nested")} {
			equal(t, "flags of "+point, one(t, c.Mounts(t), point).Flags, g.want)
		}
		equal(t, "flags in the tree", one(t, p.list(t), p.inTree(g.target)).Flags, g.want)
	}
}

func flagsAreOnlySet(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	// A grant as a source is a mount with flags already.
	p.grant(t, sourceDir, "first", mnt.ReadOnly|mnt.NoExec)
	src, err := p.tree.Open("first")
	noErr(t, err)
	defer src.Close()
	noErr(t, p.tree.Mkdir("second", 0o755))
	on, err := p.tree.OpenTarget("second")
	noErr(t, err)
	defer on.Close()
	_, err = p.table.Bind(src, on, 0)
	noErr(t, err)
	equal(t, "flags", one(t, c.Mounts(t), p.inside("second")).Flags, rw|mnt.ReadOnly|mnt.NoExec)
}

func sourceIsCutOff(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	sub := p.source(t, sourceDir+"/sub")
	p.grant(t, sourceDir, "alice", mnt.ReadOnly)
	p.Mount(t, sub)
	one(t, p.list(t), sub)
	p.counts(t, c, "alice/sub", 0, 0, 0)
}

func takenTarget(t *testing.T, p *pod) {
	p.grant(t, sourceDir, "alice", rw)
	_, err := p.tryGrant(t, sourceDir, "alice", mnt.ReadOnly)
	isErr(t, err, beneath.ErrMounted)
	one(t, p.list(t), p.inTree("alice"))
}

func recordsMatch(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	names := []string{
		"plain", "sp ace", "tab\tbed", "new\nline", `back\slash`, `lit\040eral`, "hash#", "-", "ünï-日本-🗻",
		"\xff\xfe not text", `quo"te'`, strings.Repeat("x", 255), strings.Repeat("\n", 255),
	}
	for _, name := range names {
		rec := p.grant(t, "odd/"+name, "target", mnt.NoExec)
		m := one(t, p.list(t), p.inTree("target"))
		matches(t, rec, m)
		matches(t, rec, one(t, c.Mounts(t), p.inside("target")))
		equal(t, "device", rec.Dev, m.Dev)
		equal(t, "root", rec.Root, m.Root)
		equal(t, "last name of root", path.Base(rec.Root), name)
		noErr(t, p.table.Unmount(p.tree, "target", false))
	}
}

func renamedSource(t *testing.T, p *pod) {
	rec := p.grant(t, sourceDir, "alice", rw)
	other := p.grant(t, "home/bob", "bob", rw)
	full := path.Join(p.Claim(), sourceDir)
	noErr(t, os.Rename(full, full+".old"))
	granted, err := p.tree.Open("alice")
	noErr(t, err)
	defer granted.Close()
	place, err := p.table.At(granted)
	noErr(t, err)
	if !rec.SameAs(place) || other.SameAs(place) {
		t.Errorf("%+v is at %+v, and not %+v", rec, place, other)
	}
	plain, err := p.claim.Open("home")
	noErr(t, err)
	defer plain.Close()
	place, err = p.table.At(plain)
	noErr(t, err)
	if rec.SameAs(place) {
		t.Errorf("a plain directory %+v is taken for the grant", place)
	}
}

func manyGrants(t *testing.T, p *pod) {
	c := p.Container(t)
	p.publish(t)
	names := strings.Fields("a b c d e f g h i j")
	for _, n := range names {
		p.grant(t, "home/"+n, n, rw)
	}
	noErr(t, p.table.Unmount(p.tree, "e", false))
	for _, n := range names {
		want := 1
		if n == "e" {
			want = 0
		}
		p.counts(t, c, n, want, want, want)
	}
}

func sideBySide(t *testing.T, p *pod) {
	const workers, rounds = 8, 20
	c := p.Container(t)
	p.publish(t)
	before := len(p.list(t))
	names := strings.Fields("a b c d e f g h")[:workers]
	for _, name := range names {
		p.source(t, "home/"+name)
		noErr(t, p.tree.Mkdir(name, 0o755))
	}
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i, name := range names {
		wg.Go(func() {
			for range rounds {
				if errs[i] == nil {
					errs[i] = p.grantAndRevoke("home/"+name, name)
				}
			}
		})
	}
	wg.Wait()
	noErr(t, errors.Join(errs...))
	equal(t, "mounts", len(p.list(t)), before)
	for _, name := range names {
		p.counts(t, c, name, 0, 0, 0)
	}
}

// grantAndRevoke makes a grant, fails unless it is the one that stands there,
// and takes it away again.
func (p *pod) grantAndRevoke(rel, target string) error {
	src, err := p.claim.Open(rel)
	if err != nil {
		return err
	}
	defer src.Close()
	on, err := p.tree.OpenTarget(target)
	if err != nil {
		return err
	}
	rec, err := p.table.Bind(src, on, 0)
	on.Close()
	if err != nil {
		return err
	}
	granted, err := p.tree.Open(target)
	if err != nil {
		return err
	}
	place, err := p.table.At(granted)
	granted.Close()
	if err != nil {
		return err
	}
	if !rec.SameAs(place) || place.ID != rec.ID {
		return fmt.Errorf("%+v stands at %s, not %+v", place, target, rec)
	}
	return p.table.Unmount(p.tree, target, false)
}

// matches fails unless the record recognises the mount, and no mount that
// differs in one thing.
func matches(t *testing.T, rec mnt.Record, m mnt.Mount) {
	t.Helper()
	if !rec.Matches(m) {
		t.Fatalf("record %+v does not match %+v", rec, m)
	}
	other := m
	other.Root += "x"
	weaker := m
	weaker.Flags &^= mnt.NoSUID
	elsewhere := m
	elsewhere.Dev.Minor++
	for _, wrong := range []mnt.Mount{other, weaker, elsewhere} {
		if rec.Matches(wrong) {
			t.Fatalf("record %+v matches %+v", rec, wrong)
		}
	}
}
