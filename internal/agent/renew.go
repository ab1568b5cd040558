package agent

import (
	"context"
	"sync"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/plan"
)

// renew replaces dead mounts whose storage is back. A server of FUSE that ends
// takes every copy of its mount with it for ever; the claim that is mounted after
// it is another filesystem, and no mount of the first one ever answers again. A
// mount that answers stays, whatever became of the claim.
func (a *Agent) renew(ctx context.Context, s *podState, p plan.Pod, tree *beneath.Dir, pl plan.Plan) error {
	if len(s.dead) == 0 || pl.Whole != nil || a.refuses() != "" {
		return nil
	}
	renewed := a.renewed(ctx, s, pl.Mounts)
	if len(renewed) == 0 {
		return nil
	}
	var targets []string
	for _, m := range renewed {
		targets = append(targets, m.Target())
	}
	if a.save(s) != nil {
		return nil // they could be taken away, and not made: one that is dead says why
	}
	a.Log.Info("the storage of dead mounts is back: they are made anew", "pod", s.j.Ref(), "targets", targets)
	if err := a.revokeAll(ctx, s, p, targets); err != nil {
		return err
	}
	return a.grantAll(ctx, s, tree, renewed)
}

// renewed are the dead mounts that can be made anew. All are asked at once: what
// hangs costs each the whole bound.
func (a *Agent) renewed(ctx context.Context, s *podState, mounts []plan.Mount) []plan.Mount {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var out []plan.Mount
	for _, m := range mounts {
		d, can := a.by[m.Delivery()].(delivery.Renewer)
		e := s.j.Find(m.Target())
		if _, dead := s.dead[m.Target()]; !dead || !can || e == nil || e.State != journal.Mounted || e.Record == nil || e.Identity != m.Identity() {
			continue
		}
		rec := *e.Record
		wg.Go(func() {
			again := false
			_ = bug.Guard(a.Log, func() error { again = d.Renewed(ctx, m, rec); return nil }, "pod", s.j.Ref(), "target", m.Target())
			if again {
				mu.Lock()
				out = append(out, m)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return out
}
