package mnt_test

import (
	"testing"

	"github.com/datalayer/node-mounts/internal/mnt"
)

func TestCoveringWalksOverTheMountsAsTheKernelDoes(t *testing.T) {
	mounts := []mnt.Mount{
		{ID: 1, Parent: 0, Point: "/"},
		{ID: 2, Parent: 1, Point: "/a/b"}, // hidden by 5
		{ID: 3, Parent: 2, Point: "/a/b/c"},
		{ID: 5, Parent: 1, Point: "/a"},
		{ID: 6, Parent: 5, Point: "/a/b"}, // on the new /a
		// 8 came by propagation and went beneath 7, which was there first.
		{ID: 7, Parent: 8, Point: "/v"},
		{ID: 8, Parent: 1, Point: "/v"},
		{ID: 9, Parent: 8, Point: "/v/x"}, // covered with its parent
	}
	for p, want := range map[string]int{
		"/": 1, "/other": 1, "/ab": 1, "/a": 5, "/a/": 5, "/a/x": 5, "/a/b": 6, "/a/b/c": 6, "/a/b/c/d": 6,
		"/v": 7, "/v/x": 7, "/v/x/y": 7, "/vx": 1,
	} {
		if m, ok := mnt.Covering(mounts, p); !ok || m.ID != want {
			t.Errorf("%s lies on %d (found: %v), want %d", p, m.ID, ok, want)
		}
	}
}

func TestBeneathIsEnoughToFindWhatCoversAPathThere(t *testing.T) {
	mounts := []mnt.Mount{
		{ID: 1, Parent: 1, Point: "/"},
		{ID: 2, Parent: 1, Point: "/mnt/shared"},
		{ID: 3, Parent: 2, Point: "/mnt/shared/a"}, // hidden by 6
		{ID: 4, Parent: 2, Point: "/mnt/shared/b"},
		{ID: 5, Parent: 4, Point: "/mnt/shared/b/c"},
		{ID: 6, Parent: 3, Point: "/mnt/shared/a"},
		{ID: 7, Parent: 1, Point: "/mnt/sharedtoo"},
		{ID: 8, Parent: 1, Point: "/var"},
		{ID: 9, Parent: 8, Point: "/mnt/shared/b"}, // nonsense, not on the claim
	}
	part := mnt.Beneath(mounts, "/mnt/shared")
	if len(part) != 5 {
		t.Errorf("%d mounts: %+v", len(part), part)
	}
	for _, p := range []string{"/mnt/shared", "/mnt/shared/x", "/mnt/shared/a/x", "/mnt/shared/b", "/mnt/shared/b/c/d"} {
		want, _ := mnt.Covering(mounts, p)
		if m, ok := mnt.Covering(part, p); !ok || m.ID != want.ID {
			t.Errorf("%s lies on %d (found: %v), want %d", p, m.ID, ok, want.ID)
		}
	}
	if part := mnt.Beneath(mounts, "/srv"); len(part) != 1 || part[0].ID != 1 {
		t.Errorf("a folder of the root: %+v", part)
	}
	if part := mnt.Beneath(nil, "/srv"); part != nil {
		t.Errorf("of nothing: %+v", part)
	}
}

func TestCoveringOfATableWithoutARoot(t *testing.T) {
	mounts := []mnt.Mount{
		{ID: 10, Parent: 3, Point: "/var/lib/kubelet", Peer: 4},
		{ID: 11, Parent: 10, Point: "/var/lib/kubelet/pods/u/v"},
	}
	if m, ok := mnt.Covering(mounts, "/var/lib/kubelet/pods/u/v/x"); !ok || m.ID != 11 {
		t.Errorf("found %+v, %v", m, ok)
	}
	if m, ok := mnt.Covering(mounts, "/elsewhere"); ok {
		t.Errorf("found %+v for a path on none of them", m)
	}
	if _, ok := mnt.Covering(nil, "/"); ok {
		t.Error("an empty table covers something")
	}
}

func TestCoveringEndsWhateverTheTableSays(t *testing.T) {
	circle := []mnt.Mount{{ID: 1, Parent: 0, Point: "/"}, {ID: 2, Parent: 1, Point: "/a"}, {ID: 3, Parent: 2, Point: "/a"}, {ID: 2, Parent: 3, Point: "/a"}}
	if _, ok := mnt.Covering(circle, "/a/b"); !ok {
		t.Error("no mount found")
	}
	itself := []mnt.Mount{{ID: 1, Parent: 1, Point: "/"}}
	if m, ok := mnt.Covering(itself, "/a"); !ok || m.ID != 1 {
		t.Errorf("found %+v, %v where the root is its own parent", m, ok)
	}
}

func TestSharedIsAboutTheMountThatAPathLiesOn(t *testing.T) {
	mounts := []mnt.Mount{
		{ID: 1, Parent: 0, Point: "/", Peer: 1},
		{ID: 2, Parent: 1, Point: "/private"},
		{ID: 3, Parent: 1, Point: "/slave", Master: 7},
		{ID: 4, Parent: 2, Point: "/private/shared", Peer: 9},
	}
	for p, want := range map[string]bool{"/": true, "/x": true, "/private": false, "/private/x": false, "/slave/x": false, "/private/shared/x": true} {
		if got := mnt.Shared(mounts, p); got != want {
			t.Errorf("%s is shared: %v", p, got)
		}
	}
}

func TestWithinComparesWholeNames(t *testing.T) {
	for _, c := range []struct {
		dir, p string
		want   bool
	}{
		{"/", "/", true},
		{"/", "/a", true},
		{"/a", "/a", true},
		{"/a", "/a/b", true},
		{"/a", "/ab", false},
		{"/a/b", "/a", false},
		{"/a/", "/a/b/", true},
		{"/a", "/b/../a/c", true},
		{"/a", "/a/../b", false},
	} {
		if got := mnt.Within(c.dir, c.p); got != c.want {
			t.Errorf("%s within %s: %v", c.p, c.dir, got)
		}
	}
}

func TestFlagsAreWrittenAndReadAsMountOptions(t *testing.T) {
	for options, flags := range map[string]mnt.Flags{
		"rw":                     0,
		"rw,nosuid,nodev":        mnt.NoSUID | mnt.NoDev,
		"ro,nosuid,nodev,noexec": mnt.ReadOnly | mnt.NoSUID | mnt.NoDev | mnt.NoExec,
		"rw,noexec":              mnt.NoExec,
		"ro":                     mnt.ReadOnly,
	} {
		if got := flags.String(); got != options {
			t.Errorf("%d is written %q, want %q", flags, got, options)
		}
		if got := mnt.ParseFlags(options + ",relatime"); got != flags {
			t.Errorf("%q is read %v", options, got)
		}
	}
	if got := mnt.ParseFlags("errors=remount-ro,nosuidx,noatime"); got != 0 {
		t.Errorf("options that are no flags are read %v", got)
	}
}

func TestARecordMatchesAMountWithMoreFlagsAndNoOther(t *testing.T) {
	rec := mnt.Record{Dev: mnt.Dev{Major: 0, Minor: 5}, Root: "/home", Flags: mnt.NoSUID | mnt.NoDev}
	m := mnt.Mount{Dev: rec.Dev, Root: rec.Root, Flags: rec.Flags}
	for name, c := range map[string]struct {
		change func(*mnt.Mount)
		want   bool
	}{
		"the same":          {func(*mnt.Mount) {}, true},
		"one flag more":     {func(m *mnt.Mount) { m.Flags |= mnt.ReadOnly }, true},
		"one flag fewer":    {func(m *mnt.Mount) { m.Flags &^= mnt.NoDev }, false},
		"another directory": {func(m *mnt.Mount) { m.Root = "/home/x" }, false},
		"another device":    {func(m *mnt.Mount) { m.Dev.Major = 8 }, false},
		"a deleted source":  {func(m *mnt.Mount) { m.Root += "//deleted" }, false},
	} {
		other := m
		c.change(&other)
		if got := rec.Matches(other); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A record without a root is one that nothing is known of.
	if (mnt.Record{}).Matches(mnt.Mount{Root: "/"}) {
		t.Error("an empty record matches")
	}
}
