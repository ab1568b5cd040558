package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
)

const (
	// releaseGrace is how long a terminating Pod keeps its mounts beyond its grace
	// period although processes of it are still there.
	releaseGrace = 30 * time.Second
	// afterConflict is the pause after an answer that met a changed Pod. The change
	// itself arrives as an event, usually sooner.
	afterConflict = 100 * time.Millisecond
	// Who holds a mount is searched for again after firstRecheck, or later where that
	// takes long: the more a tenant has mounted, the more it costs, and searches may
	// take a twentieth of the time.
	firstRecheck = 5 * time.Second
	lastRecheck  = time.Minute
	searchShare  = 20
)

// Reconcile makes one pass over the Pod. It asks to be called again after the
// duration it returns, when that is not zero, and with exponential backoff when
// it returns an error. Passes over one Pod never overlap.
func (a *Agent) Reconcile(ctx context.Context, uid string) (time.Duration, error) {
	p, found := a.API.Pod(uid)
	s := a.state(uid, found && p.Grant != nil && journal.ValidUID(uid))
	if s == nil {
		// Nothing asked, nothing there: such a Pod is never touched.
		return 0, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.pass(s)
	defer a.pass(s)
	if found {
		s.j.Namespace, s.j.Name = p.Namespace, p.Name
	}
	if s.unsaved {
		a.note(s)
	}
	again, err := a.phase(ctx, s, p, found)
	if errors.Is(err, ErrConflict) {
		return afterConflict, nil
	}
	if len(s.j.Held) > 0 {
		if pause := min(max(firstRecheck, searchShare*s.searchTook), lastRecheck); again == 0 || again > pause {
			again = pause
		}
	}
	return again, err
}

// pass counts the begin and the end of a pass.
func (a *Agent) pass(s *podState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.passes++
}

func (a *Agent) phase(ctx context.Context, s *podState, p plan.Pod, found bool) (time.Duration, error) {
	a.recheckHeld(ctx, s, p)
	switch {
	case !found || p.Node != a.Policy.Node:
		return a.vanished(ctx, s)
	case p.Finished, p.Terminating:
		return a.ending(ctx, s, p)
	case p.Grant == nil:
		return a.release(ctx, s, p, true)
	}
	return a.serve(ctx, s, p)
}

// ending is for a Pod whose containers have ended for good, or are about to.
func (a *Agent) ending(ctx context.Context, s *podState, p plan.Pod) (time.Duration, error) {
	if p.Finished {
		return a.release(ctx, s, p, !p.Terminating)
	}
	return a.terminating(ctx, s, p)
}

// vanished releases a Pod that the watch no longer has, once the API server
// itself has said that it does not exist on this node.
func (a *Agent) vanished(ctx context.Context, s *podState) (time.Duration, error) {
	p, found, err := a.API.Confirm(ctx, s.j.Ref())
	if err != nil {
		return 0, fmt.Errorf("confirming that the Pod is gone: %w", err)
	}
	if !found || p.Node != a.Policy.Node {
		return a.release(ctx, s, p, false)
	}
	// The watch is behind, and its event will come; or it is of another namespace now, and
	// none will. What the API server says of the Pod's end is true either way, and kubelet
	// cannot end it while its mounts stand.
	const askAgain = time.Second
	if !p.Finished && !p.Terminating {
		return askAgain, nil
	}
	again, err := a.ending(ctx, s, p)
	if err == nil && (again == 0 || again > askAgain) && a.state(s.j.UID, false) != nil {
		again = askAgain
	}
	return again, err
}

// terminating grants nothing new and keeps what stands until the Pod's
// processes have ended: a notebook saves into its home on SIGTERM.
func (a *Agent) terminating(ctx context.Context, s *podState, p plan.Pod) (time.Duration, error) {
	a.abandon(s, nil)
	a.show(s, phaseTerminating, nil)
	if p.Grant != nil {
		steps := plan.Diff(s.j.Standing(), plan.Build(grant.Decode(*p.Grant), a.Policy))
		if err := a.revokeAll(ctx, s, p, steps.Revoke); err != nil {
			a.Log.Error("revoking while the Pod terminates", "pod", s.j.Ref(), "error", err)
		}
	}
	if s.dying.IsZero() {
		s.dying = a.Clock.Now()
	}
	// From when this agent first saw it: the Pod's deadline is by another clock,
	// and one that is ahead must not take a home from a container that saves.
	left := p.Grace + releaseGrace - a.Clock.Since(s.dying)
	alive, err := a.Processes.Has(s.j.UID)
	if err != nil {
		a.Log.Warn("looking for the Pod's processes", "pod", s.j.Ref(), "error", err)
	}
	if left > 0 && (alive || err != nil) {
		a.watchEnd(s)
		return left, nil
	}
	return a.release(ctx, s, p, false)
}

// watchEnd asks for a pass when the Pod's processes have ended. kubelet's first
// unmount of the volume follows at once, and its back-off costs seconds.
func (a *Agent) watchEnd(s *podState) {
	if s.watched {
		return
	}
	s.watched = true
	uid := s.j.UID
	go func() {
		err := bug.Guard(a.Log, func() error { return a.Processes.WaitEnded(a.life, uid) }, "uid", uid)
		s.mu.Lock()
		s.watched = false
		s.mu.Unlock()
		switch {
		case a.life.Err() != nil:
		case err != nil:
			a.Log.Warn("waiting for the Pod's processes to end", "uid", uid, "error", err)
		default:
			a.API.Enqueue(uid)
		}
	}()
}

// release takes down everything of the Pod on this node, then forgets it. lives
// says that the Pod stays in the API and is not on its way out: then its answer
// is removed too, or says what would not go.
func (a *Agent) release(ctx context.Context, s *podState, p plan.Pod, lives bool) (time.Duration, error) {
	a.abandon(s, nil)
	a.show(s, phaseReleasing, nil)
	had := s.j.Tree != nil
	err := a.revokeAll(ctx, s, p, s.targets())
	a.reserve(s, len(s.j.Mounts))
	if err == nil {
		err = a.removeBase(ctx, s)
	}
	if had && s.j.Tree == nil {
		// Also with a mount that is held: nothing of the Pod is in kubelet's way.
		a.Metrics.Released()
		a.Log.Info("released", "pod", s.j.Ref(), "held", len(s.j.Held))
	}
	if errors.Is(err, mnt.ErrBusy) && lives && len(s.j.Mounts)+len(s.j.Held) == 0 {
		// A shell stands in the empty volume. It may: nothing is mounted there.
		return lastRetry, a.retract(ctx, p)
	}
	if err != nil || len(s.j.Held) > 0 {
		return 0, errors.Join(err, a.unreleased(ctx, s, p, lives))
	}
	if lives {
		if err := a.retract(ctx, p); err != nil {
			return 0, err
		}
	}
	if err := a.store.Remove(s.j.UID); err != nil {
		// A record of what is there no longer is in nobody's way.
		_ = a.unwritable(err)
		return lastRetry, nil
	}
	a.forget(s.j.UID)
	return 0, nil
}

// unreleased tells a Pod that lives what is left of its mounts, and everybody
// else by the log and the gauge.
func (a *Agent) unreleased(ctx context.Context, s *podState, p plan.Pod, lives bool) error {
	if !lives {
		a.show(s, phaseReleasing, nil)
		return nil
	}
	failed, hash := outcome{}, ""
	addHeld(failed, s)
	if len(failed) == 0 {
		failed.add(grant.WholeSet, grant.CodeHeld, "the Pod's volume is in use and cannot be released yet: the agent goes on trying")
	}
	if p.Grant != nil {
		hash = grant.Decode(*p.Grant).Hash
	}
	return a.reply(ctx, s, p, status(hash, &s.j, failed, nil))
}

// addHeld reports what was revoked and has not gone.
func addHeld(failed outcome, s *podState) {
	for _, h := range s.j.Held {
		failed.add(h.Target, grant.CodeHeld, "revoked, but "+h.Why)
	}
	for _, e := range s.j.Mounts {
		if e.State == journal.Revoking {
			failed.add(e.Target, grant.CodeHeld, "revoked, but the kernel did not take it away: the agent goes on trying")
		}
	}
}
