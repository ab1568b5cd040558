package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// outcome gathers what a pass found, by target or "*".
type outcome map[string]grant.Refusal

func (o outcome) add(key string, code grant.Code, message string) {
	if _, taken := o[key]; !taken {
		o[key] = grant.Refusal{Key: key, Code: code, Message: message}
	}
}

// status is the answer to a set: what stands and what failed. hidden are
// standing targets that the Pod does not see.
func status(hash string, j *journal.Pod, failed outcome, hidden map[string]bool) grant.Status {
	st := grant.Status{Hash: hash, Mounted: []string{}, Failed: map[string]grant.Code{}, Messages: map[string]string{}}
	for _, e := range j.Mounts {
		if e.State == journal.Mounted && !hidden[e.Target] {
			st.Mounted = append(st.Mounted, e.Target)
		}
	}
	slices.Sort(st.Mounted)
	made := len(st.Mounted) > 0
	for key, r := range failed {
		st.Failed[key] = r.Code
		st.Messages[key] = r.Message
		// A mount that was made and then revoked is no failure to mount.
		made = made || r.Code == grant.CodeHeld
	}
	_, whole := st.Failed[grant.WholeSet]
	switch {
	case len(st.Failed) == 0:
		st.State = grant.StateReady
	case whole || !made:
		st.State = grant.StateFailed
	default:
		st.State = grant.StateDegraded
	}
	return st
}

// reply writes the answer where it differs from the one the Pod has.
func (a *Agent) reply(ctx context.Context, s *podState, p plan.Pod, st grant.Status) error {
	value := st.Encode()
	a.show(s, phaseServed, &st)
	if p.Ready != nil && *p.Ready == value {
		return nil
	}
	err := a.API.Answer(ctx, p, &value)
	switch {
	case errors.Is(err, ErrGone):
		// The next event says so too; there is nobody left to answer.
		return nil
	case err != nil:
		return err
	}
	s.answeredIn = p.ResourceVersion
	a.tell(p, st)
	for target, code := range st.Failed {
		// A target that is not ready is under way; a whole set that is not waits for kubelet
		// longer than it should.
		if code != grant.CodeNotReady || target == grant.WholeSet {
			a.Metrics.Failed(code)
		}
	}
	if st.State == grant.StateReady && !s.counted {
		a.Metrics.Ready(a.Clock.Since(s.since))
	}
	a.Log.Info("answered", "pod", s.j.Ref(), "hash", st.Hash, "state", st.State, "mounted", len(st.Mounted), "failed", st.Failed)
	return nil
}

// heed notes since when the Pod asks for what it does. A set is asked for anew by
// whoever changes it, and by whoever removes the answer to it or puts that of another
// in its place. An answer that is not there yet is not asked for again by each of the
// Pod's versions that lack it, nor is one that the watch has not brought back.
func (s *podState) heed(p plan.Pod, now time.Time) {
	state, answered := answerTo(p.Ready, grant.Decode(*p.Grant).Hash)
	again := !answered && s.answeredIn != "" && s.answeredIn != p.ResourceVersion
	if s.since.IsZero() || s.asked != *p.Grant || again {
		// Nobody knows any more since when an answer was waited for that is there.
		s.asked, s.since, s.answeredIn, s.counted = *p.Grant, now, "", answered
	}
	if answered {
		s.answeredIn, s.counted = p.ResourceVersion, s.counted || state == grant.StateReady
	}
}

// answerTo is the state that the Pod's answer to this set has, where it has one.
func answerTo(ready *string, hash string) (state grant.State, ok bool) {
	if ready == nil {
		return "", false
	}
	st, err := grant.DecodeStatus(*ready)
	return st.State, err == nil && st.Hash == hash
}

// retract removes the answer of a Pod that no longer has mounts.
func (a *Agent) retract(ctx context.Context, p plan.Pod) error {
	if p.Ready == nil {
		return nil
	}
	if err := a.API.Answer(ctx, p, nil); err != nil && !errors.Is(err, ErrGone) {
		return err
	}
	return nil
}

// What /gateway calls the state of a Pod.
const (
	phaseServed      = "served"
	phaseWaiting     = "waiting"
	phaseTerminating = "terminating"
	phaseReleasing   = "releasing"
)

// failure is a grant that failed, and when it is tried again.
type failure struct {
	identity plan.Identity
	code     grant.Code
	message  string
	count    int
	retryAt  time.Time
	// tried is the Secret that was refused, and rereadAt when it is read again to see
	// whether it is still that one; zero where a Secret was not the reason.
	tried    secret.Data
	rereadAt time.Time
}

// Backoff of one failing grant. Events do not shorten it: each answer that is
// written causes one.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// fail remembers that a grant failed, and returns the failure.
func (a *Agent) fail(s *podState, m plan.Mount, code grant.Code, message string) failure {
	f := failure{identity: m.Identity(), code: code, message: message, count: 1}
	if old, ok := s.failures[m.Target()]; ok && old.identity == f.identity {
		f.count = old.count + 1
	}
	pause := min(firstRetry<<min(f.count-1, 10), lastRetry)
	f.retryAt = a.Clock.Now().Add(pause)
	s.failures[m.Target()] = f
	return f
}
