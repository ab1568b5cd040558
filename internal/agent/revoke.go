package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
)

// revokeAll takes the mounts at targets away, in parallel, and records which of
// them a process of the Pod still has. What could not be taken away stays in
// the journal and is returned as an error. Whether the journal can be written does not
// matter: see note.
func (a *Agent) revokeAll(ctx context.Context, s *podState, p plan.Pod, targets []string) error {
	if len(targets) == 0 {
		return nil
	}
	for _, t := range targets {
		s.j.Find(t).State = journal.Revoking
		delete(s.dead, t)
	}
	// Nothing is written yet: revokeFrom does before it changes anything.
	tree, err := a.pods.Open(s.j.UID)
	if errors.Is(err, fs.ErrNotExist) {
		// No tree: nothing can stand in it.
		s.j.Mounts = slices.DeleteFunc(s.j.Mounts, func(e journal.Entry) bool { return slices.Contains(targets, e.Target) })
		a.note(s)
		return nil
	}
	if err != nil {
		return err
	}
	defer tree.Close()
	return a.revokeFrom(ctx, s, p, tree, targets)
}

// revokeFrom undoes the mounts, then looks for who still has them: success of
// umount is no proof that nobody does. All are undone before anybody is looked
// for, or two of one source would be taken for copies of each other.
func (a *Agent) revokeFrom(ctx context.Context, s *podState, p plan.Pod, tree *beneath.Dir, targets []string) error {
	taken := a.recognise(ctx, searchOf(s, p), a.records(ctx, s, tree, targets))
	for i := range taken {
		for _, h := range s.j.Held {
			remember(&taken[i], h)
		}
	}
	// Before the mounts go, in the journal: an agent that is killed in between
	// would not know any more what to look for. Where the journal takes no record they
	// go all the same: a full disk must not leave a sandbox a folder that it has no
	// right to any more, nor keep kubelet from the Pod that it evicts to free the disk.
	before := slices.DeleteFunc(s.j.Held, func(h journal.Held) bool {
		return slices.ContainsFunc(taken, func(t journal.Held) bool { return t.Target == h.Target && t.Record == h.Record })
	})
	s.j.Held = slices.Concat(before, taken)
	a.note(s)
	of := s.deliveries()
	errs := a.undoAll(ctx, s, p, tree, targets, taken)
	taken = slices.DeleteFunc(taken, func(h journal.Held) bool { return s.j.Find(h.Target) != nil })
	s.j.Held = before
	taken = a.severed(s, taken, of)
	for i, f := range a.holders(ctx, searchOf(s, p), taken) {
		taken[i].Busy = taken[i].Busy && !f.who
		if taken[i].Why = f.why; f.why == "" {
			a.Metrics.Revoked()
			a.Log.Info("revoked", "pod", s.j.Ref(), "target", taken[i].Target)
			continue
		}
		s.j.Held = append(s.j.Held, taken[i])
		a.Metrics.Leaked()
		a.Events.Event(p, true, ReasonHeld, fmt.Sprintf("%s was revoked, but %s", taken[i].Target, f.why))
		a.Log.Error("mount is held", "pod", s.j.Ref(), "target", taken[i].Target, "why", f.why)
	}
	a.note(s)
	return errors.Join(errs...)
}

// severed counts the mounts that were severed as revoked, and returns the others.
// Nobody is looked for who has them: no call into one is answered.
func (a *Agent) severed(s *podState, taken []journal.Held, of map[string]grant.Delivery) []journal.Held {
	return slices.DeleteFunc(taken, func(h journal.Held) bool {
		if _, ok := a.by[of[h.Target]].(delivery.Severer); !ok {
			return false
		}
		a.Metrics.Revoked()
		a.Log.Info("revoked", "pod", s.j.Ref(), "target", h.Target)
		return true
	})
}

// targets are those of all the Pod's mounts.
func (s *podState) targets() []string {
	out := make([]string, len(s.j.Mounts))
	for i, e := range s.j.Mounts {
		out[i] = e.Target
	}
	return out
}

// deliveries are those of the Pod's mounts, by target.
func (s *podState) deliveries() map[string]grant.Delivery {
	out := make(map[string]grant.Delivery, len(s.j.Mounts))
	for _, e := range s.j.Mounts {
		out[e.Target] = e.Delivery()
	}
	return out
}

// records are what the mounts are known by: what the journal has, under the name
// that the folder has now, or else what stands there.
func (a *Agent) records(ctx context.Context, s *podState, tree *beneath.Dir, targets []string) []journal.Held {
	records := make([]journal.Held, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		records[i].Target = t
		e := *s.j.Find(t)
		known := e.Record
		wg.Go(func() {
			var place mnt.Place
			err := bug.Guard(a.Log, func() (err error) {
				place, err = a.placeOf(ctx, tree, e)
				return err
			}, "pod", s.j.Ref(), "target", t)
			switch {
			case known != nil:
				records[i].Record = known.Now(place)
			case err == nil && place.MountRoot:
				records[i].Record = mnt.Record{Dev: place.Dev, Root: place.Root, Inode: place.Inode}
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(records, func(h journal.Held) bool { return h.Record == mnt.Record{} })
}

// remember adds what the journal knows of the same mount from before a restart:
// the mount may have gone already, and with it what could be seen of it now.
func remember(h *journal.Held, before journal.Held) {
	if h.Target != before.Target || h.Record != before.Record {
		return
	}
	for ns, ids := range before.IDs {
		for _, id := range ids {
			if !slices.Contains(h.IDs[ns], id) {
				if h.IDs == nil {
					h.IDs = make(map[uint64][]int)
				}
				h.IDs[ns] = append(h.IDs[ns], id)
			}
		}
	}
	for _, rec := range before.Nested {
		if !slices.Contains(h.Nested, rec) {
			h.Nested = append(h.Nested, rec)
		}
	}
	h.Busy = h.Busy || before.Busy
	for _, p := range before.Outsiders {
		if !slices.Contains(h.Outsiders, p) {
			h.Outsiders = append(h.Outsiders, p)
		}
	}
	if before.Blind {
		h.Blind, h.Unseen = true, before.Unseen
	}
}

// undoAll undoes the mounts and drops those that went from the journal. taken, the
// records of them, learn which were busy without anybody to be seen.
func (a *Agent) undoAll(ctx context.Context, s *podState, p plan.Pod, tree *beneath.Dir, targets []string, taken []journal.Held) []error {
	errs := make([]error, len(targets))
	for _, t := range targets {
		// p is nobody's where the Pod is gone from the API.
		a.hearOut(plan.Pod{UID: s.j.UID, Namespace: s.j.Namespace, Name: s.j.Name}, *s.j.Find(t))
	}
	a.undoEach(ctx, s, tree, targets, errs, always)
	if slices.ContainsFunc(errs, isBusy) {
		// Before they go: it is never as plain again who has them.
		a.judgeBusy(ctx, s, p, tree, targets, errs, taken)
		a.undoEach(ctx, s, tree, targets, errs, detach)
	}
	for i, t := range targets {
		if errs[i] != nil {
			if !s.stuck[t] { // each mount once, however often it is tried
				s.stuck[t] = true
				a.Metrics.Leaked()
				a.Events.Event(p, true, ReasonHeld, fmt.Sprintf("%s was revoked, but the kernel did not take it away: the agent goes on trying", t))
			}
			a.Log.Error("mount would not go", "pod", s.j.Ref(), "target", t, "error", errs[i])
			continue
		}
		s.j.Drop(t)
		delete(s.stuck, t)
		for _, seen := range s.seen {
			delete(seen, t)
		}
	}
	return errs
}

func isBusy(err error) bool { return errors.Is(err, mnt.ErrBusy) }

// attempt says which mounts an attempt is for, and how.
type attempt int

const (
	always   attempt = iota // all of them
	onceMore                // those that were busy
	detach                  // those that were busy, whoever has them
)

// undoEach undoes mounts in parallel.
func (a *Agent) undoEach(ctx context.Context, s *podState, tree *beneath.Dir, targets []string, errs []error, how attempt) {
	var wg sync.WaitGroup
	for i, t := range targets {
		if how != always && !isBusy(errs[i]) {
			continue
		}
		e := *s.j.Find(t)
		wg.Go(func() {
			errs[i] = bug.Guard(a.Log, func() error { return a.undo(ctx, tree, e, how == detach) }, "pod", s.j.Ref(), "target", t)
		})
	}
	wg.Wait()
}

// judgeBusy records who has the busy mounts, or that nobody is seen to have one. In
// the journal before they go, too: no later look can tell.
func (a *Agent) judgeBusy(ctx context.Context, s *podState, p plan.Pod, tree *beneath.Dir, targets []string, errs []error, taken []journal.Held) {
	var of []int
	var busy []journal.Held
	for i, h := range taken {
		if isBusy(errs[slices.Index(targets, h.Target)]) {
			of, busy = append(of, i), append(busy, h)
		}
	}
	explained := a.explained(ctx, searchOf(s, p), busy)
	if slices.Contains(explained, false) {
		busy = a.outsiders(ctx, searchOf(s, p), busy)
		again := false
		for n := range busy {
			explained[n] = explained[n] || len(busy[n].Outsiders) > 0
			again = again || !explained[n]
		}
		if again {
			// Whoever passed through may have left since.
			a.undoEach(ctx, s, tree, targets, errs, onceMore)
		}
	}
	for n, i := range of {
		busy[n].Busy = busy[n].Busy || !explained[n] && isBusy(errs[slices.Index(targets, busy[n].Target)])
		taken[i] = busy[n]
		for n := range s.j.Held {
			if s.j.Held[n].Target == taken[i].Target && s.j.Held[n].Record == taken[i].Record {
				s.j.Held[n] = taken[i]
			}
		}
	}
	a.note(s)
}

// undoBound is how long a delivery may take to undo a mount.
const undoBound = 2 * localBound

func (a *Agent) undo(ctx context.Context, tree *beneath.Dir, e journal.Entry, detach bool) error {
	d, ok := a.by[e.Delivery()]
	if !ok {
		return fmt.Errorf("no delivery takes away a mount of the kind %q", e.Identity.Kind)
	}
	_, err := deadline.On(ctx, a.Budget, undoBound, tree,
		func(tree *beneath.Dir) (struct{}, error) { return struct{}{}, d.Undo(ctx, tree, e.Target, detach) },
		deadline.Key{Name: "undo:" + tree.Path() + "/" + e.Target, Limit: 1})
	if err != nil {
		return fmt.Errorf("revoking %s: %w", e.Target, err)
	}
	return nil
}

// recheckHeld looks again at what was held. What nobody has any more is revoked
// at last.
func (a *Agent) recheckHeld(ctx context.Context, s *podState, p plan.Pod) {
	if len(s.j.Held) == 0 {
		return
	}
	a.takeCopies(ctx, s)
	var still []journal.Held
	began := a.Clock.Now()
	found := a.holders(ctx, searchOf(s, p), s.j.Held)
	s.searchTook = a.Clock.Since(began)
	for i, h := range s.j.Held {
		h.Busy = h.Busy && !found[i].who
		if h.Why = found[i].why; h.Why != "" {
			still = append(still, h)
			continue
		}
		a.Metrics.Revoked()
		a.Log.Info("no longer held", "pod", s.j.Ref(), "target", h.Target)
	}
	s.j.Held = still
	a.note(s)
}
