package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/plan"
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
	if errors.Is(err, fs.ErrNotExist) {
		// No tree: nothing can stand in it.
		s.j.Mounts = slices.DeleteFunc(s.j.Mounts, func(e journal.Entry) bool { return slices.Contains(targets, e.Target) })
		return a.save(s)
	}
	if err != nil {
		return err
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
	info, _ := e.Identity.Kind.Info()
	d, ok := a.by[info.Delivery]
	if !ok {
		return revoked{err: fmt.Errorf("no delivery takes away a mount of the kind %q", e.Identity.Kind)}
	}
	l := lookAt(s, p)
	held := a.recognise(ctx, l, tree, e)
	_, err := deadline.Do(ctx, a.Budget, undoBound, func() (struct{}, error) { return struct{}{}, d.Undo(ctx, tree, e.Target) }, nil,
		deadline.Key{Name: "undo:" + tree.Path() + "/" + e.Target, Limit: 1})
	if err != nil {
		return revoked{err: fmt.Errorf("revoking %s: %w", e.Target, err)}
	}
	if held == nil {
		return revoked{}
	}
	if held.Why = a.holder(ctx, l, *held); held.Why == "" {
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
	l := lookAt(s, p)
	for _, h := range s.j.Held {
		if h.Why = a.holder(ctx, l, h); h.Why != "" {
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
