package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

// revokeAll takes the mounts at targets away, in parallel, and records which of
// them a process of the Pod still has. What could not be taken away stays in
// the journal and is returned as an error.
func (a *Agent) revokeAll(ctx context.Context, s *podState, p plan.Pod, targets []string) error {
	if len(targets) == 0 {
		return nil
	}
	for _, t := range targets {
		s.j.Find(t).State = journal.Revoking
		delete(s.dead, t)
	}
	if err := a.save(s); err != nil {
		return err
	}
	tree, err := a.pods.Open(s.j.UID)
	if err != nil {
		// No tree: nothing can stand in it.
		s.j.Mounts = slices.DeleteFunc(s.j.Mounts, func(e journal.Entry) bool { return slices.Contains(targets, e.Target) })
		return a.save(s)
	}
	defer tree.Close()
	results := make([]revoked, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { results[i] = a.revoke(ctx, s, p, tree, *s.j.Find(t)) })
	}
	wg.Wait()
	var errs []error
	for i, r := range results {
		errs = append(errs, a.settleRevoked(s, targets[i], r))
	}
	return errors.Join(append(errs, a.save(s))...)
}

// revoked is what came of one revocation.
type revoked struct {
	held *journal.Held
	err  error
}

// revoke undoes one mount, then looks for who still has it: success of umount is
// no proof that nobody does. Passes read s only; nothing in it changes here.
func (a *Agent) revoke(ctx context.Context, s *podState, p plan.Pod, tree *beneath.Dir, e journal.Entry) revoked {
	var held *journal.Held
	if e.Record != nil {
		held = &journal.Held{Target: e.Target, Record: a.current(ctx, tree, e.Target, *e.Record)}
		held.IDs = a.idsOf(s, p, held)
	}
	info, _ := e.Identity.Kind.Info()
	d, ok := a.by[info.Delivery]
	if !ok {
		return revoked{err: fmt.Errorf("no delivery takes away a mount of the kind %q", e.Identity.Kind)}
	}
	undone, err := deadline.Do(ctx, a.Budget, undoBound, func() (delivery.Undone, error) { return d.Undo(ctx, tree, e.Target) }, nil,
		deadline.Key{Name: "undo:" + tree.Path() + "/" + e.Target, Limit: 1})
	if err != nil {
		return revoked{err: fmt.Errorf("revoking %s: %w", e.Target, err)}
	}
	if held == nil {
		return revoked{}
	}
	if !undone.Lazily {
		held.IDs = nil // not busy: nobody has a file open in it
	}
	if held.Why = a.holder(ctx, s, p, held); held.Why == "" {
		return revoked{}
	}
	return revoked{held: held}
}

// undoBound is how long a delivery may take to undo a mount.
const undoBound = 2 * localBound

func (a *Agent) settleRevoked(s *podState, target string, r revoked) error {
	if r.err != nil {
		a.Metrics.Leaked()
		a.Log.Error("mount would not go", "pod", s.j.Ref(), "target", target, "error", r.err)
		return r.err
	}
	s.j.Drop(target)
	for _, seen := range s.seen {
		delete(seen, target)
	}
	if r.held == nil {
		a.Metrics.Revoked()
		a.Log.Info("revoked", "pod", s.j.Ref(), "target", target)
		return nil
	}
	s.j.Held = append(s.j.Held, *r.held)
	a.Metrics.Leaked()
	a.Log.Error("mount is held", "pod", s.j.Ref(), "target", target, "why", r.held.Why)
	return nil
}

// recheckHeld looks again at what was held. What nobody has any more is revoked
// at last.
func (a *Agent) recheckHeld(ctx context.Context, s *podState, p plan.Pod) {
	if len(s.j.Held) == 0 {
		return
	}
	var still []journal.Held
	for _, h := range s.j.Held {
		if h.Why = a.holder(ctx, s, p, &h); h.Why != "" {
			still = append(still, h)
			continue
		}
		a.Metrics.Revoked()
		a.Log.Info("no longer held", "pod", s.j.Ref(), "target", h.Target)
	}
	s.j.Held = still
	if err := a.save(s); err != nil {
		a.Log.Error("saving the journal", "pod", s.j.Ref(), "error", err)
	}
}

// idsOf finds the mount's copies in the Pod's mount namespaces before it goes:
// afterwards an open file still names its mount by that id.
func (a *Agent) idsOf(s *podState, p plan.Pod, h *journal.Held) map[uint64][]int {
	_, copies, err := a.copies(s, p, h)
	if err != nil {
		return nil
	}
	ids := make(map[uint64][]int)
	for _, c := range copies {
		ids[c.Process.MountNS] = append(ids[c.Process.MountNS], c.Mount.ID)
	}
	return ids
}

// copies are the mounts of the record in the Pod's mount namespaces, without
// those that the Pod has in its own right.
func (a *Agent) copies(s *podState, p plan.Pod, h *journal.Held) ([]procs.Process, []procs.Copy, error) {
	ps, err := a.Processes.Of(s.j.UID)
	if err != nil || len(ps) == 0 {
		return nil, nil, err
	}
	copies, err := a.Processes.Copies(ps, h.Record.Dev, h.Record.Root)
	return ps, slices.DeleteFunc(copies, func(c procs.Copy) bool { return own(s, p, c.Mount) }), err
}

// own tells whether a mount in a container is there for another reason than the
// revoked grant: as one of the Pod's other volumes (they may be on the same
// claim), or as another grant that stands.
func own(s *podState, p plan.Pod, m mnt.Mount) bool {
	if slices.Contains(p.OtherPaths, m.Point) {
		return true
	}
	for _, u := range p.Uses {
		for _, e := range s.j.Mounts {
			if e.State == journal.Mounted && mnt.Within(path.Join(u.Path, e.Target), m.Point) {
				return true
			}
		}
	}
	return false
}

// holder says who in the Pod still has a mount that was taken away, "" when
// nobody has. Not being able to look is an answer too, and never a no.
func (a *Agent) holder(ctx context.Context, s *podState, p plan.Pod, h *journal.Held) string {
	why, err := deadline.Do(ctx, a.Budget, localBound, func() (string, error) {
		ps, copies, err := a.copies(s, p, h)
		if err != nil || len(ps) == 0 {
			return "", err
		}
		if len(copies) > 0 {
			c := copies[0]
			return fmt.Sprintf("process %d has a copy of the mount at %s", c.Process.PID, c.Mount.Point), nil
		}
		holding, err := a.Processes.Holding(ps, idSet(h.IDs))
		if err != nil || len(holding) == 0 {
			return "", err
		}
		return fmt.Sprintf("process %d still has it (%s)", holding[0].PID, holding[0].What), nil
	}, nil, deadline.Key{Name: "holders:" + s.j.UID, Limit: 2})
	if err != nil {
		return "it cannot be told whether a process still has it: " + strings.ReplaceAll(err.Error(), a.Root, "")
	}
	return why
}

func idSet(ids map[uint64][]int) map[uint64]map[int]bool {
	out := make(map[uint64]map[int]bool, len(ids))
	for ns, list := range ids {
		out[ns] = make(map[int]bool, len(list))
		for _, id := range list {
			out[ns][id] = true
		}
	}
	return out
}
