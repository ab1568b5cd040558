package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

const (
	// patience is how long kubelet may take to make the volume and start a
	// container before the Pod is told that it has not.
	patience = time.Minute
	// Pauses while waiting for kubelet.
	firstLook = 50 * time.Millisecond
	lastLook  = time.Second
	// grantsAtOnce is how many grants of one Pod are made in parallel: as many as it
	// may have, so that those which hang, each on another storage, take as long as one.
	grantsAtOnce = DefaultMaxPerPod
)

// notYetError says what kubelet has not done yet. It is no failure.
type notYetError string

func (e notYetError) Error() string { return string(e) }

func notYet(format string, args ...any) error {
	return notYetError(fmt.Sprintf(format, args...))
}

func isNotYet(err error) bool {
	_, ok := errors.AsType[notYetError](err)
	return ok
}

// serve brings the Pod to what its annotation asks for, and answers once.
func (a *Agent) serve(ctx context.Context, s *podState, p plan.Pod) (time.Duration, error) {
	s.heed(p, a.Clock.Now())
	pl := plan.Build(grant.Decode(*p.Grant), a.Policy)
	s.forgetFailures(pl.Mounts)
	a.abandon(s, pl.Mounts)
	if p.Ready == nil {
		s.retryNow()
	}
	if err := a.rebuild(ctx, s, p); err != nil {
		return 0, err
	}
	steps := plan.Diff(s.j.Standing(), pl)
	// Always, and before anything that could end the pass.
	stuck := a.revokeAll(ctx, s, p, steps.Revoke)
	again, err := a.provide(ctx, s, p, pl, steps)
	return again, errors.Join(stuck, err)
}

// rebuild takes down a tree that is not as this agent makes it, with all that
// stands in it: no grant in it could be trusted to arrive.
func (a *Agent) rebuild(ctx context.Context, s *podState, p plan.Pod) error {
	if s.j.Tree == nil || !s.j.Tree.Unsound {
		return nil
	}
	a.Log.Warn("the Pod's tree is not sound: it is made anew", "pod", s.j.Ref())
	if err := a.revokeAll(ctx, s, p, s.targets()); err != nil {
		return err
	}
	return a.removeBase(ctx, s)
}

// provide makes what is missing, proves it, and answers.
func (a *Agent) provide(ctx context.Context, s *podState, p plan.Pod, pl plan.Plan, steps plan.Steps) (time.Duration, error) {
	failed := outcome{}
	if refusal := a.refuseWhole(s, p, pl, steps); refusal != nil {
		failed.add(grant.WholeSet, refusal.Code, refusal.Message)
		steps.Grant = nil
	}
	for _, r := range pl.Refused {
		failed.add(r.Key, r.Code, r.Message)
	}
	if len(steps.Grant)+len(steps.Keep)+len(s.j.Mounts) == 0 {
		return a.conclude(ctx, s, p, pl.Hash, failed, nil)
	}
	tree, err := a.base(ctx, s)
	switch {
	case isNotYet(err):
		return a.waitFor(ctx, s, p, pl.Hash, failed, err)
	case errors.Is(err, errTreeLost):
		a.Log.Warn("preparing the Pod's tree", "pod", s.j.Ref(), "error", err)
		return firstLook, nil
	case failed.unwritten(err):
		return a.conclude(ctx, s, p, pl.Hash, failed, nil)
	case err != nil:
		code, message := delivery.Explain(err)
		failed.add(grant.WholeSet, code, message)
		a.Log.Warn("preparing the Pod's tree", "pod", s.j.Ref(), "error", err)
		again, rerr := a.conclude(ctx, s, p, pl.Hash, failed, nil)
		return again, errors.Join(err, rerr)
	}
	defer tree.Close()
	if a.awaitsKeeper(s, steps.Grant) {
		return a.waitFor(ctx, s, p, pl.Hash, failed, notYet("%s", delivery.ErrNotRecovered))
	}
	a.rereadSecrets(ctx, s)
	if err := a.grantAll(ctx, s, tree, steps.Grant); err != nil && !failed.unwritten(err) {
		return 0, err
	}
	if !s.storageAsked {
		s.storageAsked = true
		a.askStorage(ctx, s)
	}
	err = a.tendProcesses(ctx, s, tree, pl)
	if isNotYet(err) {
		return a.waitFor(ctx, s, p, pl.Hash, failed, err)
	}
	if err != nil {
		return 0, err
	}
	if err := a.renew(ctx, s, p, tree, pl); err != nil && !failed.unwritten(err) {
		return 0, err
	}
	a.tellUnderway(s, p)
	hidden, err := a.prove(ctx, s, p, tree, failed)
	if isNotYet(err) {
		return a.waitFor(ctx, s, p, pl.Hash, failed, err)
	}
	if err != nil {
		return 0, err
	}
	if pause := a.awaitContent(s, p, pl.Hash, failed); pause > 0 {
		a.show(s, phaseWaiting, nil)
		return pause, nil
	}
	return a.conclude(ctx, s, p, pl.Hash, failed, hidden)
}

// refuseWhole says why nothing new can be mounted in the Pod, nil when it can.
func (a *Agent) refuseWhole(s *podState, p plan.Pod, pl plan.Plan, steps plan.Steps) *grant.Refusal {
	refuse := func(code grant.Code, message string) *grant.Refusal {
		return &grant.Refusal{Key: grant.WholeSet, Code: code, Message: message}
	}
	others := a.reserve(s, len(s.j.Mounts)+len(steps.Grant))
	if reason := p.Unsupported(a.Policy); reason != "" {
		a.reserve(s, len(s.j.Mounts))
		return refuse(grant.CodePodUnsupported, reason)
	}
	if pl.Whole != nil {
		return pl.Whole
	}
	if r := pl.Cap(steps, others, a.Policy); r != nil {
		a.reserve(s, len(s.j.Mounts))
		return r
	}
	if fault := a.refuses(); fault != "" && len(steps.Grant) > 0 {
		a.reserve(s, len(s.j.Mounts))
		return refuse(grant.CodeMountFailed, fault)
	}
	return nil
}

// waitFor looks again soon, and after patience tells the Pod what it waits for.
// Until then nothing is written: the answer is either what was asked or a
// reason, not a progress report. Only an answer that is no longer true is
// replaced at once.
func (a *Agent) waitFor(ctx context.Context, s *podState, p plan.Pod, hash string, failed outcome, why error) (time.Duration, error) {
	waited := a.Clock.Since(s.since)
	if waited < patience && !overstates(p.Ready, hash, &s.j) {
		a.show(s, phaseWaiting, nil)
		return min(max(firstLook, waited/4), lastLook), nil
	}
	failed.add(grant.WholeSet, grant.CodeNotReady, why.Error())
	again, err := a.conclude(ctx, s, p, hash, failed, nil)
	if again == 0 || again > lastLook {
		again = lastLook
	}
	return again, err
}

// overstates tells whether the answer that the Pod has calls something mounted
// that does not stand: after a reboot, until kubelet has started the Pod again.
func overstates(ready *string, hash string, j *journal.Pod) bool {
	if ready == nil {
		return false
	}
	st, err := grant.DecodeStatus(*ready)
	return err == nil && st.Hash == hash && slices.ContainsFunc(st.Mounted, func(target string) bool {
		e := j.Find(target)
		return e == nil || e.State != journal.Mounted
	})
}

// conclude answers, and says when to look again: when the next failed grant is
// due.
func (a *Agent) conclude(ctx context.Context, s *podState, p plan.Pod, hash string, failed outcome, hidden map[string]bool) (time.Duration, error) {
	for target, f := range s.failures {
		failed.add(target, f.code, f.message)
	}
	for target, why := range s.dead {
		failed.add(target, grant.CodeMountDead, why)
	}
	a.addUnderway(failed, s)
	addHeld(failed, s)
	if err := a.reply(ctx, s, p, status(hash, &s.j, failed, hidden)); err != nil {
		return 0, err
	}
	var again time.Duration
	now := a.Clock.Now()
	for _, f := range s.failures {
		if d := max(f.next().Sub(now), firstLook); again == 0 || d < again {
			again = d
		}
	}
	if d := a.restoreIn(s); d > 0 && (again == 0 || d < again) {
		again = d
	}
	if len(hidden) > 0 && (again == 0 || again > lastLook) {
		again = lastLook
	}
	if _, whole := failed[grant.WholeSet]; whole && again == 0 {
		again = lastRetry
	}
	return again, nil
}

// grantAll makes the mounts that are due. All are in the journal before the
// first is made. A grant that fails is remembered in s.failures and costs the
// others nothing; the error is the journal's, and then none was tried.
func (a *Agent) grantAll(ctx context.Context, s *podState, tree *beneath.Dir, mounts []plan.Mount) error {
	due := a.due(s, mounts)
	if len(due) == 0 {
		return nil
	}
	before := len(s.j.Mounts)
	for _, m := range due {
		s.j.Mounts = append(s.j.Mounts, journal.Entry{Target: m.Target(), Identity: m.Identity(), State: journal.Granting})
	}
	if err := a.save(s); err != nil {
		s.j.Mounts = s.j.Mounts[:before]
		a.reserve(s, before)
		return err
	}
	results := make(chan delivered, len(due))
	slots := make(chan struct{}, grantsAtOnce)
	for _, m := range due {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			began, r := a.Clock.Now(), delivered{mount: m}
			r.err = bug.Guard(a.Log, func() (err error) {
				r.record, r.with, err = a.deliver(ctx, s, tree, m)
				return err
			}, "pod", s.j.Ref(), "target", m.Target())
			r.took = a.Clock.Since(began)
			results <- r
		}()
	}
	for range due { // all of them: they use the tree, which the caller closes
		r := <-results
		a.settle(ctx, s, tree, r)
		if len(results) == 0 { // else more have come: one writing serves them all
			a.note(s)
		}
	}
	return ctx.Err()
}

// delivered is what came of one grant.
type delivered struct {
	mount  plan.Mount
	record mnt.Record
	with   secret.Data // of the Secret that the grant names
	err    error
	took   time.Duration
}

// forgetFailures drops the failures of grants that are no longer asked.
func (s *podState) forgetFailures(asked []plan.Mount) {
	for target, f := range s.failures {
		if !slices.ContainsFunc(asked, func(m plan.Mount) bool { return m.Target() == target && m.Identity() == f.identity }) {
			delete(s.failures, target)
		}
	}
}

// retryNow makes every failed grant due: what was wrong may have been put right. A Pod
// without an answer was asked for anew, perhaps for the same set, and the answer to that
// is not the last attempt's.
func (s *podState) retryNow() {
	for target, f := range s.failures {
		f.retryAt = time.Time{}
		s.failures[target] = f
	}
}

// due leaves out the grants that failed and are not to be tried again yet, and
// those whose place is still taken by a mount that would not go.
func (a *Agent) due(s *podState, mounts []plan.Mount) []plan.Mount {
	now := a.Clock.Now()
	return slices.DeleteFunc(slices.Clone(mounts), func(m plan.Mount) bool {
		f, failed := s.failures[m.Target()]
		return failed && now.Before(f.retryAt) || s.j.Find(m.Target()) != nil || a.making(s.j.UID, m)
	})
}

// settle records the end of one grant.
func (a *Agent) settle(ctx context.Context, s *podState, tree *beneath.Dir, r delivered) {
	target := r.mount.Target()
	if a.setAside(s, &r) {
		return
	}
	if r.err == nil {
		e := s.j.Find(target)
		e.State, e.Record = journal.Mounted, &r.record
		delete(s.failures, target)
		delete(s.dead, target)
		a.Metrics.Granted(r.mount.Kind(), r.took)
		a.Log.Info("granted", "pod", s.j.Ref(), "target", target, "kind", r.mount.Kind(), "flags", r.record.Flags.String(), "took", r.took)
		return
	}
	code, message := delivery.Explain(r.err)
	f := a.fail(s, r.mount, code, message)
	if pause := delivery.Pause(r.err, f.count); pause > 0 {
		f.retryAt = a.Clock.Now().Add(pause)
	}
	f.remember(r.with, a.Clock.Now())
	s.failures[target] = f
	a.Log.Warn("grant failed", "pod", s.j.Ref(), "target", target, "kind", r.mount.Kind(), "code", code, "try", f.count, "error", r.err)
	// Should this fail, the entry stays, and the next pass revokes it.
	if err := a.by[r.mount.Delivery()].Undo(ctx, tree, target, false); err != nil {
		s.j.Find(target).State = journal.Revoking
		a.Log.Error("undoing a failed grant", "pod", s.j.Ref(), "target", target, "error", err)
		return
	}
	s.j.Drop(target)
}
