package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
)

const (
	// userspaceBound is how long a filesystem's process may take for its first answer:
	// it starts, and asks a server that may be far away.
	userspaceBound = 15 * time.Second
	// keeperPatience is how long the start of an agent waits for a keeper.
	keeperPatience = 2 * time.Second
	// keeperPause is how long the agent waits before it asks a keeper again that did
	// not answer when the agent started.
	keeperPause = 500 * time.Millisecond
)

func (a *Agent) userspaceOf(claim Claim) *delivery.Process {
	return &delivery.Process{
		Table: a.Table, Keeper: a.Keeper, Runners: a.Runners, Bound: userspaceBound, Hung: cmp.Or(claim.Bound, DefaultBound),
		Budget: a.Budget, Clock: a.Clock, Log: a.Log, Life: a.life, News: func(uid string) { a.API.Enqueue(uid) },
	}
}

// userspace tells whether a mount's filesystem is a process.
func userspace(e journal.Entry) bool { return e.Delivery() == grant.DeliveryProcess }

// hearOut has the Pod told where the process of a mount that is taken away ends without
// having stored what was written.
func (a *Agent) hearOut(p plan.Pod, e journal.Entry) {
	if !userspace(e) || e.Identity.Mode == grant.ReadOnly {
		return
	}
	a.userspace.OnLoss(p.UID, e.Target, func(why string) {
		a.Log.Error("content is lost", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "target", e.Target, "why", why)
		a.Events.Event(p, true, ReasonLost, fmt.Sprintf("%s was revoked, and not all that was written there is stored: %s", e.Target, why))
	})
}

// recoverUserspace takes over the processes that an earlier agent started. Where the
// keeper does not answer, or one of them could not be taken over, it goes on trying: the
// Pods whose mounts are processes wait for it, and no others.
func (a *Agent) recoverUserspace(ctx context.Context) {
	if a.Keeper == nil {
		return
	}
	first, cancel := context.WithTimeout(ctx, keeperPatience)
	defer cancel()
	err := a.userspace.Recover(first, a.standingUserspace)
	if err == nil {
		return
	}
	a.Log.Warn("filesystem processes wait to be taken over", "error", err)
	go func() {
		pause := keeperPause
		for err != nil {
			select {
			case <-a.life.Done():
				return
			case <-a.Clock.After(pause):
			}
			err = bug.Guard(a.Log, func() error { return a.userspace.Recover(a.life, a.standingUserspace) })
			if pause = min(2*pause, lastRetry); errors.Is(err, delivery.ErrNoKeeper) {
				pause = keeperPause // one that is replaced is away for a second or two
			}
		}
		for _, s := range a.standingUserspace() {
			a.API.Enqueue(s.UID)
		}
	}()
}

func (a *Agent) standingUserspace() []delivery.Standing {
	var standing []delivery.Standing
	for uid, s := range a.states() {
		s.mu.Lock()
		for _, e := range s.j.Mounts {
			if userspace(e) && e.State == journal.Mounted && e.Record != nil {
				standing = append(standing, delivery.Standing{
					UID: uid, Target: e.Target, Kind: e.Identity.Kind, Dev: e.Record.Dev, Secret: secretOf(&s.j, e.Identity),
				})
			}
		}
		s.mu.Unlock()
	}
	return standing
}

// tendUserspace ends processes that serve nothing.
func (a *Agent) tendUserspace() {
	if a.Keeper != nil {
		go func() { _ = bug.Guard(a.Log, func() error { a.userspace.Tend(a.life); return nil }) }()
	}
}

// tendProcesses brings what the processes of the Pod's mounts are to what the answer
// will say of them, and starts those anew that have ended. That one has ended is
// answered first: whoever saw an error finds the reason. Nothing is said before it is
// known which of them run.
func (a *Agent) tendProcesses(ctx context.Context, s *podState, tree *beneath.Dir, pl plan.Plan) error {
	told := maps.Clone(s.dead)
	for _, e := range s.j.Mounts {
		if !userspace(e) || e.State != journal.Mounted {
			continue
		}
		err := a.userspace.Fault(s.j.UID, e.Target)
		unknown := errors.Is(err, delivery.ErrNotRecovered) || errors.Is(err, delivery.ErrNotAdopted)
		if unknown && a.Clock.Since(s.since) < patience {
			return notYet("%s", err)
		}
		s.noteDead(e.Target, err)
	}
	if pl.Whole != nil || a.refuses() != "" {
		return nil
	}
	ended := slices.DeleteFunc(a.endedOf(s, pl.Mounts), func(m plan.Mount) bool {
		_, known := told[m.Target()]
		return !known
	})
	return a.restore(ctx, s, tree, ended)
}

// awaitsKeeper tells whether a mount that is to be made waits for what the keeper has
// to say first.
func (a *Agent) awaitsKeeper(s *podState, mounts []plan.Mount) bool {
	return a.userspace.Recovering() && a.Clock.Since(s.since) < patience &&
		slices.ContainsFunc(mounts, func(m plan.Mount) bool { return m.Delivery() == grant.DeliveryProcess })
}

// noteDead records what is wrong with a standing mount, nil where nothing is.
func (s *podState) noteDead(target string, err error) {
	delete(s.dead, target)
	if err != nil {
		_, s.dead[target] = delivery.Explain(err)
	}
}

// endedOf are the asked mounts whose process has ended and is due to be started anew.
func (a *Agent) endedOf(s *podState, asked []plan.Mount) []plan.Mount {
	var out []plan.Mount
	for _, m := range asked {
		e := s.j.Find(m.Target())
		if e == nil || e.State != journal.Mounted || e.Identity != m.Identity() || !userspace(*e) {
			continue
		}
		if at, ended := a.userspace.Restorable(s.j.UID, m.Target()); ended && !a.Clock.Now().Before(at) {
			out = append(out, m)
		}
	}
	return out
}

// restore puts a filesystem that serves in the place of each whose process has ended. The
// pass waits for none that is not there yet: another one is asked for then.
func (a *Agent) restore(ctx context.Context, s *podState, tree *beneath.Dir, mounts []plan.Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	records := make([]*mnt.Record, len(mounts))
	var wg sync.WaitGroup
	for i, m := range mounts {
		wg.Go(func() {
			var c delivery.Credential
			err := bug.Guard(a.Log, func() (err error) {
				c, err = a.credentialOf(ctx, s, m)
				return err
			}, "pod", s.j.Ref(), "target", m.Target())
			if err == nil {
				var rec mnt.Record
				err = bug.Guard(a.Log, func() (err error) {
					rec, err = a.userspace.Restore(tree, m, c)
					return err
				}, "pod", s.j.Ref(), "target", m.Target())
				records[i] = &rec
			} else {
				a.userspace.NotRestored(s.j.UID, m.Target(), err)
			}
			if err != nil {
				records[i] = nil
			}
			if err != nil && !errors.Is(err, delivery.ErrUnderway) {
				a.Log.Warn("a filesystem's process is not started anew", "pod", s.j.Ref(), "target", m.Target(), "error", err)
			}
		})
	}
	wg.Wait()
	for i, m := range mounts {
		if records[i] != nil {
			s.j.Find(m.Target()).Record = records[i]
			for _, seen := range s.seen {
				delete(seen, m.Target())
			}
			a.Log.Info("restored", "pod", s.j.Ref(), "target", m.Target())
		}
		s.noteDead(m.Target(), a.userspace.Fault(s.j.UID, m.Target()))
	}
	a.note(s)
	return nil
}

// restoreIn is how long until a process of the Pod is due to be started anew, 0 where
// none is.
func (a *Agent) restoreIn(s *podState) time.Duration {
	var soonest time.Duration
	for _, e := range s.j.Mounts {
		if !userspace(e) {
			continue
		}
		if at, ended := a.userspace.Restorable(s.j.UID, e.Target); ended {
			if d := max(at.Sub(a.Clock.Now()), firstLook); soonest == 0 || d < soonest {
				soonest = d
			}
		}
	}
	return soonest
}
