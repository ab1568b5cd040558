package agent

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/procs"
)

// around is what survey finds at the Pod's processes. A tenant has a say in the
// size of all of it: everything is indexed once, and nothing is looked through
// more than once for a mount.
type around struct {
	ps []procs.Process
	// tables are the mount namespaces of the processes.
	tables []*table
	// containers are the mount namespaces that containers started in.
	containers map[uint64]bool
	// shown are the ids of all mounts that some table shows.
	shown map[int]bool
	// stands remembers what the tree was found to have.
	stands map[standing]bool
	// err: not everything could be looked at.
	err error
}

// table is a mount namespace's, with the mounts (by their index) on each mount.
type table struct {
	procs.Table
	on map[int][]int
}

// standing is a question to the tree: is this mount there as well?
type standing struct {
	rel, root, target string
	dev               mnt.Dev
}

// survey looks at the Pod's processes and their mounts, as they are now.
func (a *Agent) survey(ctx context.Context, uid string) *around {
	ps, err := a.Processes.Of(uid)
	out := &around{ps: ps, containers: containerNamespaces(ps), shown: make(map[int]bool), stands: make(map[standing]bool)}
	tables, unread := a.Processes.Tables(ctx, ps)
	out.err = errors.Join(err, unread)
	if err != nil { // there are processes that are not among ps
		tables = append(tables, procs.Table{Err: err})
	}
	for _, t := range tables {
		indexed := &table{Table: t, on: make(map[int][]int)}
		for i, m := range t.Mounts {
			out.shown[m.ID] = true
			if m.Parent != m.ID {
				indexed.on[m.Parent] = append(indexed.on[m.Parent], i)
			}
		}
		out.tables = append(out.tables, indexed)
	}
	return out
}

// unseen are the processes that could not be looked into; nil stands for all of
// the Pod's.
func (there *around) unseen() []journal.Process {
	var out []journal.Process
	for _, t := range there.tables {
		if t.Err == nil {
			continue
		}
		if t.PID == 0 || len(out) == maxUnseen {
			return nil
		}
		out = append(out, journal.Process{PID: t.PID, Start: t.Start})
	}
	return out
}

// maxUnseen bounds what the journal keeps of processes.
const maxUnseen = 64

// anyOf tells whether one of the processes still runs.
func (there *around) anyOf(ps []journal.Process) bool {
	return ps == nil || slices.ContainsFunc(there.ps, func(p procs.Process) bool {
		return slices.Contains(ps, journal.Process{PID: p.PID, Start: p.Start})
	})
}

// beneath calls yield with the mount and all that stand on it, at whatever depth,
// except those in done, and puts them there.
func (t *table) beneath(m mnt.Mount, done map[int]bool, yield func(m mnt.Mount)) {
	for left := []mnt.Mount{m}; len(left) > 0; {
		m := left[len(left)-1]
		left = left[:len(left)-1]
		if done[m.ID] {
			continue
		}
		done[m.ID] = true
		yield(m)
		for _, i := range t.on[m.ID] {
			left = append(left, t.Mounts[i])
		}
	}
}

// grantFlags are what every grant and every mount beneath it has.
const grantFlags = mnt.NoSUID | mnt.NoDev

// eachCopy calls yield with every mount of what h records, or of a folder in it,
// without those that the Pod has in its own right, until it answers false.
func (a *Agent) eachCopy(ctx context.Context, q search, there *around, h journal.Held, yield func(t *table, m mnt.Mount) bool) error {
	recs := h.Records()
	for _, t := range there.tables {
		for _, m := range t.Mounts {
			if err := ctx.Err(); err != nil {
				return err
			}
			if slices.ContainsFunc(recs, func(rec mnt.Record) bool { return rec.Covers(m) }) &&
				!q.isVolume(there, t, m) && !a.isGrant(q, there, h.Target, m) && !yield(t, m) {
				return nil
			}
		}
	}
	return nil
}

// containerNamespaces are the mount namespaces that containers started in. ps
// are in the order of their start.
func containerNamespaces(ps []procs.Process) map[uint64]bool {
	started := make(map[string]bool)
	out := make(map[uint64]bool)
	for _, p := range ps {
		if !started[p.Container] {
			started[p.Container] = true
			out[p.MountNS] = true
		}
	}
	return out
}

// isVolume tells whether a mount is one of the Pod's other volumes, which may be
// on the same claim. In a namespace of the tenant's own that place may have been
// given to the grant instead; its flags are locked there, and tell.
func (q search) isVolume(there *around, t *table, m mnt.Mount) bool {
	return slices.Contains(q.pod.OtherPaths, m.Point) &&
		(there.containers[t.MountNS] || m.Flags&grantFlags != grantFlags)
}

// isGrant tells whether a mount is another grant, or came with one from its
// source: then the tree has the same at the same place. What a tenant mounts on
// or in a grant, the tree does not have.
func (a *Agent) isGrant(q search, there *around, held string, m mnt.Mount) bool {
	for _, u := range q.pod.Uses {
		for _, e := range q.mounts {
			if e.Record == nil || e.State != journal.Mounted && e.Target == held ||
				!mnt.Within(path.Join(u.Path, e.Target), m.Point) || m.Flags&e.Record.Flags != e.Record.Flags {
				continue
			}
			asked := standing{rel: strings.TrimPrefix(m.Point, path.Clean(u.Path)+"/"), root: m.Root, target: e.Target, dev: m.Dev}
			has, known := there.stands[asked]
			if !known {
				has = a.treeHas(q.uid, asked.rel, m, e)
				there.stands[asked] = has
			}
			if has {
				return true
			}
		}
	}
	return false
}

func (a *Agent) treeHas(uid, rel string, m mnt.Mount, e journal.Entry) bool {
	tree, err := a.pods.Open(uid)
	if err != nil {
		return false
	}
	defer tree.Close()
	dir, err := tree.Open(rel)
	if err != nil {
		return false
	}
	defer dir.Close()
	place, err := a.Table.At(dir)
	if err != nil || !place.MountRoot || place.Dev != m.Dev {
		return false
	}
	if place.Root == "" && rel == e.Target { // before Linux 6.8
		return e.Record.Root == m.Root
	}
	return place.Root == m.Root
}
