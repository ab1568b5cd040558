package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

// search is what looking for the holders of mounts needs to know of the Pod. It is
// a copy: a search that hangs outlives its pass.
type search struct {
	uid    string
	pod    plan.Pod
	mounts []journal.Entry
	held   []journal.Held
}

func searchOf(s *podState, p plan.Pod) search {
	return search{uid: s.j.UID, pod: p, mounts: slices.Clone(s.j.Mounts), held: slices.Clone(s.j.Held)}
}

func (q search) key() deadline.Key { return deadline.Key{Name: "holders:" + q.uid, Limit: 2} }

// searchBound is how long a search may take that nothing hangs. It ends by itself
// then, with what it has found; localBound is for one that hangs.
const searchBound = localBound * 4 / 5

// searching makes a search, and has it end when nobody waits for it any more.
func searching[T any](ctx context.Context, a *Agent, q search, call func(ctx context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, searchBound)
	defer cancel()
	return deadline.Do(ctx, a.Budget, localBound, func() (T, error) { return call(bounded) }, nil, q.key())
}

// recognise completes the records of mounts, while they stand, by what their
// holders are found by afterwards. An open file names its mount by an id that
// nothing else shows once the mount has gone, and taking a mount from its folder
// detaches every copy on that folder, also those that no unmount reaches: the
// ids are needed even where the kernel did not call it busy.
func (a *Agent) recognise(ctx context.Context, q search, held []journal.Held) []journal.Held {
	seen, err := searching(ctx, a, q, func(ctx context.Context) ([]journal.Held, error) {
		there := a.survey(ctx, q.uid)
		seen := make([]journal.Held, len(held))
		errs := []error{there.err}
		for i, h := range held {
			var err error
			seen[i], err = a.identify(ctx, q, there, h)
			errs = append(errs, err)
		}
		err := errors.Join(errs...)
		for i := range seen {
			if seen[i].Blind = err != nil; err != nil {
				seen[i].Unseen = there.unseen()
			}
		}
		return seen, err
	})
	if err == nil {
		return seen
	}
	a.Log.Warn("looking at mounts before they are taken away", "uid", q.uid, "error", err)
	if seen == nil {
		seen = slices.Clone(held)
		for i := range seen {
			seen[i].Blind = true
		}
	}
	return seen
}

// maxNested bounds how many different mounts beneath one grant are looked for. A
// tenant can make any number, with the flags of a grant, in a namespace of its own.
const maxNested = 64

// identify adds the ids of h's copies and of the mounts beneath them: who has a
// file open in one of those holds the source as well.
func (a *Agent) identify(ctx context.Context, q search, there *around, h journal.Held) (journal.Held, error) {
	h.IDs = make(map[uint64][]int)
	done := make(map[uint64]map[int]bool)
	nested := make(map[mnt.Record]bool)
	err := a.eachCopy(ctx, q, there, h, func(t *table, copied mnt.Mount) bool {
		ns := t.MountNS
		if done[ns] == nil {
			done[ns] = make(map[int]bool)
		}
		t.beneath(copied, done[ns], func(m mnt.Mount) {
			h.IDs[ns] = append(h.IDs[ns], m.ID)
			// What the tenant mounted there itself has other flags.
			if m.ID != copied.ID && m.Flags&grantFlags == grantFlags {
				nested[mnt.Record{Dev: m.Dev, Root: m.Root}] = true
			}
		})
		return true
	})
	for rec := range nested {
		if len(h.Nested) == maxNested {
			return h, errors.Join(err, procs.ErrTooLarge)
		}
		h.Nested = append(h.Nested, rec)
	}
	slices.SortFunc(h.Nested, func(a, b mnt.Record) int {
		return strings.Compare(a.Dev.String()+a.Root, b.Dev.String()+b.Root)
	})
	return h, err
}

// explained says of each mount that the kernel calls busy whether it can be told
// why: a process has it open; another filesystem is mounted beneath it in the tree,
// with which the kernel calls it busy whoever uses it; or a call of the agent's own
// hangs in it.
func (a *Agent) explained(ctx context.Context, q search, busy []journal.Held) []bool {
	out := make([]bool, len(busy))
	table, err := a.Table.List()
	if err != nil {
		a.Log.Warn("looking for mounts beneath grants", "uid", q.uid, "error", err)
	}
	open, err := searching(ctx, a, q, func(ctx context.Context) (map[int]bool, error) {
		ps, err := a.Processes.Of(q.uid)
		holding, unread := a.Processes.Holding(ctx, ps, idsOf(busy, nil))
		open := make(map[int]bool)
		for _, h := range holding {
			open[h.ID] = true
		}
		return open, errors.Join(err, unread)
	})
	if err != nil {
		a.Log.Warn("looking for who keeps mounts busy", "uid", q.uid, "error", err)
	}
	for i, h := range busy {
		at := path.Join(a.treePath(q.uid), h.Target)
		nested := slices.ContainsFunc(table, func(m mnt.Mount) bool { return m.Point != at && mnt.Within(at, m.Point) })
		_, who := hasAny(h, open)
		out[i] = nested || who || a.Budget.LostTo("mount:"+at) > 0
	}
	return out
}

// found says why a mount cannot be called revoked, "" where it can.
type found struct {
	why string
	// who: a process was seen to have it.
	who bool
}

// holders says of each mount that was taken away who in the Pod still has it. Not
// being able to look is an answer too, and never a no.
func (a *Agent) holders(ctx context.Context, q search, held []journal.Held) []found {
	out, err := searching(ctx, a, q, func(ctx context.Context) ([]found, error) { return a.whoHolds(ctx, q, held), nil })
	if err != nil {
		out = make([]found, len(held))
		for i := range out {
			out[i].why = a.cannotTell(err)
		}
	}
	return out
}

func (a *Agent) cannotTell(err error) string {
	why := strings.NewReplacer(a.Root, "", "\n", "; ").Replace(err.Error())
	switch {
	case errors.Is(err, procs.ErrTooLarge):
		why = procs.ErrTooLarge.Error()
	case errors.Is(err, context.DeadlineExceeded):
		why = "looking through the Pod's processes took longer than " + searchBound.String()
	}
	return "it cannot be told whether a process still has it: " + why
}

func (a *Agent) whoHolds(ctx context.Context, q search, held []journal.Held) []found {
	out := make([]found, len(held))
	there := a.survey(ctx, q.uid)
	errs := []error{there.err}
	for i, h := range held {
		errs = append(errs, a.eachCopy(ctx, q, there, h, func(t *table, m mnt.Mount) bool {
			out[i] = found{fmt.Sprintf("process %d has a copy of the mount at %q", t.PID, m.Point), true}
			return false
		}))
	}
	if len(there.ps) == 0 && there.err == nil {
		return out
	}
	outside, err := a.stillOutside(ctx, held)
	errs = append(errs, err)
	// One look at every open file for all of them: mostly there is nothing.
	holding, err := a.Processes.Holding(ctx, there.ps, idsOf(held, there.shown))
	errs = append(errs, err)
	open := make(map[int]procs.Holding)
	for _, o := range slices.Backward(holding) {
		open[o.ID] = o
	}
	for i, h := range held {
		if o, has := hasAny(h, open); has && out[i].why == "" {
			out[i] = found{fmt.Sprintf("process %d still has it (%s)", o.PID, o.What), true}
		}
		if outside[i] != "" && out[i].why == "" {
			out[i] = found{outside[i], true}
		}
	}
	if err := errors.Join(errs...); err != nil {
		for i := range out {
			if out[i].why == "" {
				out[i].why = a.cannotTell(err)
			}
		}
		return out
	}
	a.whoMayHold(ctx, q, there, held, out)
	return out
}

// whoMayHold adds what cannot be told. Files of a mount's filesystem that are open
// through a mount which no table shows, and which none of those known is, may be
// the mount's; and some things may lead anywhere.
func (a *Agent) whoMayHold(ctx context.Context, q search, there *around, held []journal.Held, out []found) {
	devs := make(map[mnt.Dev]bool)
	for i, h := range held {
		for _, rec := range h.Records() {
			devs[rec.Dev] = devs[rec.Dev] || out[i].why == ""
		}
	}
	shown := there.shown
	// Whoever has one of these is reported for it.
	for id := range idsOf(slices.Concat(q.held, held), nil) {
		shown[id] = true
	}
	var loose []procs.Holding
	var err error
	if slices.Contains(slices.Collect(maps.Values(devs)), true) {
		loose, err = a.Processes.Loose(ctx, there.ps, devs, shown)
	}
	for i, h := range held {
		if out[i].why == "" {
			out[i] = found{why: doubt(there, h, loose)}
		}
		if out[i].why == "" && err != nil {
			out[i].why = a.cannotTell(err)
		}
	}
}

func doubt(there *around, h journal.Held, loose []procs.Holding) string {
	for _, o := range loose {
		switch {
		case slices.ContainsFunc(h.Records(), func(rec mnt.Record) bool { return rec.Dev == o.Dev }):
			return fmt.Sprintf("process %d has something of the same filesystem (%s), and no mount table shows how: it may have this", o.PID, o.What)
		case o.Dev == mnt.Dev{}:
			return fmt.Sprintf("process %d may have it, and it cannot be told: it has a %s", o.PID, o.What)
		}
	}
	switch {
	case h.Blind && there.anyOf(h.Unseen):
		return "it could not be looked at before it was taken away, so it cannot be told whether a process has a file open in it"
	case h.Busy:
		return "the kernel called it busy, and neither a process of the Pod nor another one of the node was seen to have it"
	}
	return ""
}

// idsOf are the ids of all of them, but not of mounts that a table shows: the
// kernel has given those ids to other mounts since.
func idsOf(held []journal.Held, shown map[int]bool) map[int]bool {
	out := make(map[int]bool)
	for _, h := range held {
		for _, list := range h.IDs {
			for _, id := range list {
				if !shown[id] {
					out[id] = true
				}
			}
		}
	}
	return out
}

// hasAny finds one of h's ids in open.
func hasAny[T any](h journal.Held, open map[int]T) (o T, has bool) {
	for _, list := range h.IDs {
		for _, id := range list {
			if o, has = open[id]; has {
				return o, true
			}
		}
	}
	return o, false
}
