package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
)

// contentPatience is how long the answer to a set waits for what is being made, where
// there is something else to answer: most repositories and buckets are there by then,
// and whoever waits for a home folder of the same set does not wait longer.
const contentPatience = 5 * time.Second

// backgroundOf is the delivery of a kind that may be under way.
func (a *Agent) backgroundOf(kind grant.Kind) delivery.Background {
	info, _ := kind.Info()
	d, _ := a.by[info.Delivery].(delivery.Background)
	return d
}

// making tells whether what m mounts is being made.
func (a *Agent) making(uid string, m plan.Mount) bool {
	d := a.backgroundOf(m.Kind())
	return d != nil && d.Making(uid, m)
}

// underway is a grant of which is being made what it mounts.
type underway struct {
	identity plan.Identity
	since    time.Time
	told     bool    // an event says so
	failed   failure // the last try before this one, where there was one
}

func (a *Agent) materialize(claim Claim) *delivery.Materialize {
	return &delivery.Materialize{
		Table: a.Table,
		Proof: &proof.Storage{Table: a.Table, Budget: a.Budget, Bound: claim.Bound, PerMount: 1},
		Life:  a.life,
		Ended: func(uid string) { a.API.Enqueue(uid) },
	}
}

// setAside takes a result out of the way that is none yet: nothing was made in the
// tree. Of one that is, the time counts from when the making began.
func (a *Agent) setAside(s *podState, r *delivered) bool {
	target := r.mount.Target()
	before, was := s.underway[target]
	if !errors.Is(r.err, delivery.ErrUnderway) {
		if was {
			r.took = a.Clock.Since(before.since)
			delete(s.underway, target)
			if before.failed.count > 0 {
				// The pauses go on growing: a try that takes long is no first one.
				s.failures[target] = before.failed
			}
		}
		return false
	}
	if !was || before.identity != r.mount.Identity() {
		s.underway[target] = underway{identity: r.mount.Identity(), since: a.Clock.Now(), failed: s.failures[target]}
	}
	delete(s.failures, target)
	s.j.Drop(target)
	return true
}

// abandon ends the making of what is not asked for any more.
func (a *Agent) abandon(s *podState, asked []plan.Mount) {
	for target, u := range s.underway {
		if slices.ContainsFunc(asked, func(m plan.Mount) bool { return m.Target() == target && m.Identity() == u.identity }) {
			continue
		}
		delete(s.underway, target)
		a.backgroundOf(u.identity.Kind).Abandon(s.j.UID, target)
		a.Log.Info("what was being made is not asked for any more", "pod", s.j.Ref(), "target", target, "kind", u.identity.Kind)
	}
}

// tellUnderway makes an event of each content that has begun to be made. The answer
// is the event of its end.
func (a *Agent) tellUnderway(s *podState, p plan.Pod) {
	for target, u := range s.underway {
		if u.told || !fetched(u.identity) {
			continue
		}
		u.told = true
		s.underway[target] = u
		a.Events.Event(p, false, ReasonFetching, fmt.Sprintf("%s: fetching %s at %s", target, u.identity.Source, u.identity.Revision))
		a.Log.Info("fetching", "pod", s.j.Ref(), "target", target, "source", u.identity.Source, "revision", u.identity.Revision)
	}
}

// awaitContent says how long the answer waits for what is being made, 0 when it is to be
// given now. A set of which nothing else is to be told waits for it to the end, which has
// a limit of its own: an answer that says "not yet" would only be taken for one that says
// no.
func (a *Agent) awaitContent(s *podState, p plan.Pod, hash string, failed outcome) time.Duration {
	if _, answered := answerTo(p.Ready, hash); answered || len(s.underway) == 0 || overstates(p.Ready, hash, &s.j) {
		return 0
	}
	if len(s.j.Mounts)+len(s.j.Held)+len(failed)+len(s.failures)+len(s.dead) == 0 {
		return lastRetry
	}
	return max(0, contentPatience-a.Clock.Since(s.since))
}

// addUnderway reports what is not there yet. It says no numbers: each would be another
// answer.
func (a *Agent) addUnderway(failed outcome, s *podState) {
	for target, u := range s.underway {
		what := a.backgroundOf(u.identity.Kind).Underway()
		failed.add(target, grant.CodeNotReady, what+": the agent goes on, and answers again when it is there")
	}
}

// fetching are the grants that are being made, as others see them.
func (s *podState) fetching() []nodeview.Mount {
	var out []nodeview.Mount
	for target, u := range s.underway {
		if !fetched(u.identity) {
			out = append(out, viewed(journal.Entry{Target: target, Identity: u.identity, State: journal.Granting}))
			continue
		}
		m := viewed(journal.Entry{Target: target, Identity: u.identity, State: nodeview.StateFetching})
		m.Progress = &nodeview.Progress{Since: u.since}
		out = append(out, m)
	}
	return out
}

// withProgress adds how far the contents have come by now.
func (a *Agent) withProgress(uid string, mounts []nodeview.Mount) []nodeview.Mount {
	out := append([]nodeview.Mount{}, mounts...)
	for i, m := range out {
		if m.Progress == nil {
			continue
		}
		now := nodeview.Progress{Since: m.Progress.Since}
		if p := a.contents.Progress(uid, m.Target); p != nil {
			now.Phase, now.Bytes = p.Phase, p.Bytes
		}
		out[i].Progress = &now
	}
	return out
}

// openCheckouts opens the store of checkouts and tells it which of them are in use.
// Where that fails, grants that need it say why, and the next sweep tries again.
func (a *Agent) openCheckouts(ctx context.Context) {
	if a.Checkouts == nil || !a.opening.TryLock() {
		return
	}
	defer a.opening.Unlock()
	if a.contents.Serving() || ctx.Err() != nil {
		return
	}
	store, err := a.Checkouts(ctx)
	if err != nil {
		store = nil
		a.Log.Error("opening the checkouts", "error", err)
	}
	uses := make(map[string]mnt.Record)
	for uid, s := range a.states() {
		s.mu.Lock()
		for _, e := range s.j.Mounts {
			if e.Record != nil && e.Delivery() == grant.DeliveryMaterialize {
				uses[a.contents.Use(uid, e.Target)] = *e.Record
			}
		}
		s.mu.Unlock()
	}
	if missing := a.contents.Serve(store, err, uses); len(missing) > 0 {
		a.Log.Warn("checkouts of standing mounts have gone from the disk", "uses", missing)
	}
}

// tendCheckouts does what takes longer than a sweep may.
func (a *Agent) tendCheckouts() {
	if a.Checkouts == nil {
		return
	}
	go func() {
		_ = bug.Guard(a.Log, func() error {
			a.openCheckouts(a.life)
			a.contents.Collect(a.life)
			return nil
		})
	}()
}

// fetched tells whether what a grant mounts is fetched to the node.
func fetched(g plan.Identity) bool {
	info, _ := g.Kind.Info()
	return info.Delivery == grant.DeliveryMaterialize
}

// giveBack tells deliveries what others have unmounted.
func (a *Agent) giveBack(was, is journal.Pod) {
	for _, e := range was.Mounts {
		if d, ok := a.by[e.Delivery()].(delivery.Releaser); ok && is.Find(e.Target) == nil {
			a.hearOut(plan.Pod{UID: was.UID, Namespace: was.Namespace, Name: was.Name}, e)
			d.Unused(was.UID, e.Target)
		}
	}
}
