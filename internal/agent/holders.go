package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

// look is what looking for the holders of mounts needs to know of the Pod. It is
// a copy: a look that hangs outlives its pass.
type look struct {
	uid    string
	pod    plan.Pod
	mounts []journal.Entry
	held   []journal.Held
}

func lookAt(s *podState, p plan.Pod) look {
	return look{uid: s.j.UID, pod: p, mounts: slices.Clone(s.j.Mounts), held: slices.Clone(s.j.Held)}
}

func (l look) key() deadline.Key { return deadline.Key{Name: "holders:" + l.uid, Limit: 2} }

// around is what one look at the Pod's processes finds.
type around struct {
	ps []procs.Process
	// copies are the mounts of the devices asked for, in every mount namespace
	// that a process of the Pod is in.
	copies []procs.Copy
	// tables are what the processes see, by mount namespace.
	tables map[uint64][]mnt.Mount
	// err: not everything could be looked at.
	err error
}

func (a *Agent) lookAround(l look, held []journal.Held) around {
	ps, err := a.Processes.Of(l.uid)
	out := around{ps: ps, tables: make(map[uint64][]mnt.Mount)}
	errs := []error{err}
	for _, p := range ps {
		if _, known := out.tables[p.MountNS]; known {
			continue
		}
		ms, err := a.Processes.Mounts(p)
		switch {
		case errors.Is(err, procs.ErrGone):
		case err != nil:
			errs = append(errs, err)
		default:
			out.tables[p.MountNS] = ms
		}
	}
	asked := make(map[mnt.Dev]bool)
	for _, h := range held {
		for _, rec := range h.Records() {
			if len(ps) == 0 || asked[rec.Dev] {
				continue
			}
			asked[rec.Dev] = true
			found, err := a.Processes.Copies(ps, rec.Dev, "/")
			out.copies = append(out.copies, found...)
			errs = append(errs, err)
		}
	}
	out.err = errors.Join(errs...)
	return out
}

// recognise completes the records of mounts, while they stand, by what their
// holders are found by afterwards. An open file names its mount by an id that
// nothing else shows once the mount has gone, and taking a mount from its folder
// detaches every copy on that folder, also those that no unmount reaches: the
// ids are needed even where the kernel did not call it busy.
func (a *Agent) recognise(ctx context.Context, l look, held []journal.Held) []journal.Held {
	seen, err := deadline.Do(ctx, a.Budget, localBound, func() ([]journal.Held, error) {
		there := a.lookAround(l, held)
		seen := make([]journal.Held, len(held))
		for i, h := range held {
			seen[i] = a.identify(l, there, h)
		}
		return seen, there.err
	}, nil, l.key())
	if err == nil {
		return seen
	}
	a.Log.Warn("looking at mounts before they are taken away", "uid", l.uid, "error", err)
	if seen == nil {
		seen = slices.Clone(held)
	}
	for i := range seen {
		seen[i].Blind = true
	}
	return seen
}

// identify adds the ids of h's copies and of the mounts beneath them: who has a
// file open in one of those holds the source as well.
func (a *Agent) identify(l look, there around, h journal.Held) journal.Held {
	h.IDs = make(map[uint64][]int)
	for _, c := range a.copiesOf(l, there, h) {
		ns := c.Process.MountNS
		h.IDs[ns] = append(h.IDs[ns], c.Mount.ID)
		for _, m := range below(there.tables[ns], c.Mount.ID) {
			h.IDs[ns] = append(h.IDs[ns], m.ID)
			rec := mnt.Record{Dev: m.Dev, Root: m.Root}
			// What the tenant mounted there itself has other flags.
			if m.Flags&grantFlags == grantFlags && !slices.Contains(h.Nested, rec) {
				h.Nested = append(h.Nested, rec)
			}
		}
	}
	return h
}

// grantFlags are what every grant and every mount beneath it has.
const grantFlags = mnt.NoSUID | mnt.NoDev

// below are the mounts that stand, at whatever depth, on the mount with this id.
func below(table []mnt.Mount, id int) []mnt.Mount {
	var out []mnt.Mount
	for _, m := range table {
		if m.Parent == id && m.ID != id {
			out = append(append(out, m), below(table, m.ID)...)
		}
	}
	return out
}

// copiesOf are the mounts of what h records, or of a folder in it, without those
// that the Pod has in its own right.
func (a *Agent) copiesOf(l look, there around, h journal.Held) []procs.Copy {
	containers := containerNamespaces(there.ps)
	var out []procs.Copy
	for _, c := range there.copies {
		if slices.ContainsFunc(h.Records(), func(rec mnt.Record) bool { return rec.Covers(c.Mount) }) &&
			!l.isVolume(c, containers) && !a.isGrant(l, h.Target, c.Mount) {
			out = append(out, c)
		}
	}
	return out
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
func (l look) isVolume(c procs.Copy, containers map[uint64]bool) bool {
	return slices.Contains(l.pod.OtherPaths, c.Mount.Point) &&
		(containers[c.Process.MountNS] || c.Mount.Flags&grantFlags != grantFlags)
}

// isGrant tells whether a mount is another grant, or came with one from its
// source: then the tree has the same at the same place. What a tenant mounts on
// or in a grant, the tree does not have.
func (a *Agent) isGrant(l look, held string, m mnt.Mount) bool {
	for _, u := range l.pod.Uses {
		for _, e := range l.mounts {
			if e.Record == nil || e.State != journal.Mounted && e.Target == held ||
				!mnt.Within(path.Join(u.Path, e.Target), m.Point) || m.Flags&e.Record.Flags != e.Record.Flags {
				continue
			}
			if a.treeHas(l.uid, strings.TrimPrefix(m.Point, path.Clean(u.Path)+"/"), m, e) {
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

// holders says of each mount that was taken away who in the Pod still has it, ""
// where nobody has. Not being able to look is an answer too, and never a no.
func (a *Agent) holders(ctx context.Context, l look, held []journal.Held) []string {
	whys, err := deadline.Do(ctx, a.Budget, localBound, func() ([]string, error) { return a.whoHolds(l, held), nil }, nil, l.key())
	if err != nil {
		whys = make([]string, len(held))
		for i := range whys {
			whys[i] = a.cannotTell(err)
		}
	}
	return whys
}

func (a *Agent) cannotTell(err error) string {
	return "it cannot be told whether a process still has it: " + strings.NewReplacer(a.Root, "", "\n", "; ").Replace(err.Error())
}

func (a *Agent) whoHolds(l look, held []journal.Held) []string {
	whys := make([]string, len(held))
	there := a.lookAround(l, held)
	all := make(map[uint64][]int)
	for i, h := range held {
		for ns, ids := range h.IDs {
			all[ns] = append(all[ns], ids...)
		}
		if copies := a.copiesOf(l, there, h); len(copies) > 0 {
			c := copies[0]
			whys[i] = fmt.Sprintf("process %d has a copy of the mount at %q", c.Process.PID, c.Mount.Point)
		}
	}
	if len(there.ps) == 0 && there.err == nil {
		return whys
	}
	// One look at every open file for all of them: mostly there is nothing.
	holding, err := a.Processes.Holding(there.ps, there.detached(all))
	none := len(holding) == 0 && err == nil && there.err == nil
	loose := make(map[mnt.Dev]string)
	for i, h := range held {
		if whys[i] == "" && !none {
			whys[i] = a.whoHasOpen(there, h)
		}
		if whys[i] == "" {
			whys[i] = a.whoHasLoose(there, h, slices.Concat(l.held, held), loose)
		}
		if whys[i] == "" && h.Blind {
			whys[i] = "it could not be looked at before it was taken away, so it cannot be told whether a process has a file open in it"
		}
	}
	return whys
}

func (a *Agent) whoHasOpen(there around, h journal.Held) string {
	holding, err := a.Processes.Holding(there.ps, there.detached(h.IDs))
	if len(holding) > 0 {
		return fmt.Sprintf("process %d still has it (%s)", holding[0].PID, holding[0].What)
	}
	if err := errors.Join(there.err, err); err != nil {
		return a.cannotTell(err)
	}
	return ""
}

// whoHasLoose looks for files of the mount's filesystem that are open through a
// mount that no table shows and none of those known is. Which one it was cannot
// be told any more: it may have been this. asked has the answers by device.
func (a *Agent) whoHasLoose(there around, h journal.Held, known []journal.Held, asked map[mnt.Dev]string) string {
	dev := h.Record.Dev
	if why, done := asked[dev]; done {
		return why
	}
	ids := there.shown()
	for _, k := range known { // whoever has one of these is reported for it
		for _, list := range k.IDs {
			for _, id := range list {
				ids[id] = true
			}
		}
	}
	holding, err := a.Processes.Loose(there.ps, dev, ids)
	switch {
	case len(holding) > 0:
		asked[dev] = fmt.Sprintf("process %d has something of the same filesystem (%s), and no mount table shows how: it may have this", holding[0].PID, holding[0].What)
	case err != nil:
		asked[dev] = a.cannotTell(err)
	default:
		asked[dev] = ""
	}
	return asked[dev]
}

// shown are the ids of all mounts that some table shows.
func (there around) shown() map[int]bool {
	shown := make(map[int]bool)
	for _, c := range there.copies {
		shown[c.Mount.ID] = true
	}
	for _, table := range there.tables {
		for _, m := range table {
			shown[m.ID] = true
		}
	}
	return shown
}

// detached leaves out the ids that a mount table shows: the kernel has given
// them to other mounts since.
func (there around) detached(ids map[uint64][]int) map[uint64]map[int]bool {
	shown := there.shown()
	out := make(map[uint64]map[int]bool, len(ids))
	for ns, list := range ids {
		out[ns] = make(map[int]bool, len(list))
		for _, id := range list {
			if !shown[id] {
				out[ns][id] = true
			}
		}
	}
	return out
}
