package agent

import (
	"cmp"
	"path"
	"slices"

	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// places are where a Pod's mounts stand on this node.
type places struct {
	tree, volume string
}

// sameRoot tells whether the mount at target still has the directory that the
// record names, although its name has changed. It is asked only then.
type sameRoot func(target string, rec mnt.Record) (root string, ok bool)

// reconciled compares a Pod's record with the mount table and returns the record
// as the table proves it. What matches what the journal recorded when it was
// mounted is adopted; anything else that stands becomes an entry to revoke, and
// what does not stand is dropped. It decides only; nothing is mounted or
// unmounted here.
func reconciled(j journal.Pod, mounts []mnt.Mount, at places, bootID string, renamed sameRoot) journal.Pod {
	if j.BootID != bootID {
		// Mounts do not survive a reboot. Whatever stands is not from this record.
		j = journal.Pod{UID: j.UID, Namespace: j.Namespace, Name: j.Name}
	}
	j.BootID = bootID
	j.Mounts, j.Held = slices.Clone(j.Mounts), slices.Clone(j.Held)
	tree, stands := treeMount(mounts, at.tree)
	if !stands {
		j.Tree, j.Publication, j.Mounts = nil, nil, nil
		j.Stale = ours(mounts, at.volume)
		return j
	}
	if j.Tree == nil || j.Tree.Record == nil || !j.Tree.Record.Matches(tree) || tree.Peer == 0 {
		// A tree that the journal does not know, or not completely, or that
		// nothing propagates from. It is known well enough to be taken down: by
		// its place.
		j.Tree = &journal.Base{Record: &mnt.Record{Dev: tree.Dev, Root: tree.Root, Flags: tree.Flags}, Unsound: true}
		revokeAllOf(j.Mounts)
	}
	j.Mounts = entries(j.Mounts, mounts, tree, renamed)
	j.Publication, j.Stale = publication(j.Publication, mounts, tree, at.volume), nil
	if j.Publication == nil {
		j.Stale = ours(mounts, at.volume)
	}
	if slices.Contains(j.Stale, tree.Dev) {
		// Whatever was made of this tree has the grants in it, and can be taken
		// away once they have gone.
		revokeAllOf(j.Mounts)
	}
	return j
}

func revokeAllOf(entries []journal.Entry) {
	for i := range entries {
		entries[i].State = journal.Revoking
	}
}

// treeMount finds the tree at its place. The topmost one counts.
func treeMount(mounts []mnt.Mount, point string) (mnt.Mount, bool) {
	m, ok := mnt.Covering(mounts, point)
	return m, ok && m.Point == path.Clean(point)
}

// publication recognises the tree's publication by device, root, flags and the
// peer group it is a slave of. The topmost mount of the volume counts: what is
// beneath it nobody sees.
func publication(known *journal.Base, mounts []mnt.Mount, tree mnt.Mount, volume string) *journal.Base {
	m, ok := mnt.Covering(mounts, volume)
	if !ok || m.Point != volume || m.Dev != tree.Dev || m.Root != tree.Root || m.Master != tree.Peer ||
		m.Flags&mnt.PublicationFlags != mnt.PublicationFlags {
		return nil
	}
	if known != nil && known.Record != nil && known.Record.Matches(m) {
		return known
	}
	return &journal.Base{Record: &mnt.Record{Dev: m.Dev, Root: m.Root, Flags: m.Flags}}
}

// ours are the filesystems on the volume that some agent made for a tree.
func ours(mounts []mnt.Mount, volume string) []mnt.Dev {
	var devs []mnt.Dev
	for _, m := range mounts {
		if m.Point == volume && m.Source == mnt.TreeSource && !slices.Contains(devs, m.Dev) {
			devs = append(devs, m.Dev)
		}
	}
	return devs
}

// entries are the grants that stand in the tree or may have left something in it,
// with what is to become of them.
func entries(known []journal.Entry, mounts []mnt.Mount, tree mnt.Mount, renamed sameRoot) []journal.Entry {
	var out []journal.Entry
	for _, m := range mounts {
		if m.Parent != tree.ID || path.Dir(m.Point) != tree.Point {
			continue
		}
		target := path.Base(m.Point)
		if slices.ContainsFunc(out, func(e journal.Entry) bool { return e.Target == target }) {
			continue
		}
		i := slices.IndexFunc(known, func(e journal.Entry) bool { return e.Target == target })
		e := journal.Entry{Target: target}
		if i >= 0 {
			e = known[i]
		}
		out = append(out, proven(e, m, renamed))
		if slices.ContainsFunc(mounts, func(on mnt.Mount) bool { return on.Parent == m.ID && on.Point == m.Point }) {
			out[len(out)-1].State = journal.Revoking // something else stands on it
		}
	}
	for _, e := range known {
		if !slices.ContainsFunc(out, func(o journal.Entry) bool { return o.Target == e.Target }) {
			// It does not stand, but its empty folder may.
			e.State = journal.Revoking
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(x, y journal.Entry) int { return cmp.Compare(position(known, x), position(known, y)) })
	return out
}

// proven adopts the entry, or turns it into one that is to be revoked.
func proven(e journal.Entry, m mnt.Mount, renamed sameRoot) journal.Entry {
	if e.State == journal.Mounted && e.Record != nil {
		if e.Record.Matches(m) {
			return e
		}
		if root, ok := renamed(e.Target, *e.Record); ok {
			rec := *e.Record
			rec.Root = root
			e.Record = &rec
			if rec.Matches(m) {
				return e
			}
		}
	}
	e.State = journal.Revoking
	e.Record = &mnt.Record{Dev: m.Dev, Root: m.Root, Flags: m.Flags}
	return e
}

// position keeps the journal's order; what it does not know comes last.
func position(known []journal.Entry, e journal.Entry) int {
	if i := slices.IndexFunc(known, func(k journal.Entry) bool { return k.Target == e.Target }); i >= 0 {
		return i
	}
	return len(known)
}
