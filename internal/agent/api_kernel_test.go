package agent_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/plan"
)

// undisturbed fails the test unless both grants of granted are exactly as they
// were when before was taken.
func undisturbed(t testing.TB, n *agenttest.Node, p *agenttest.Pod, before map[string]string) {
	t.Helper()
	now := ids(t, n, p)
	for target, id := range before {
		if now[target] != id {
			t.Errorf("%s is %s, was %s", target, now[target], id)
		}
	}
}

func TestAWatchThatIsBehindReleasesNothing(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	before := ids(t, n, p)
	n.API.Hide(p.UID, true)
	if again := p.Pass(); again <= 0 {
		t.Error("nobody looks again")
	}
	// The same, and nobody can be asked.
	away := errors.New("the API is away")
	n.API.Down(away)
	for range 3 {
		if _, err := n.Agent.Reconcile(t.Context(), p.UID); !errors.Is(err, away) {
			t.Errorf("the pass: %v", err)
		}
	}
	// An agent that starts in that state, too.
	n.Restart()
	if _, err := n.Agent.Reconcile(t.Context(), p.UID); !errors.Is(err, away) {
		t.Errorf("the pass: %v", err)
	}
	must(t, n.Agent.Sweep(t.Context()))
	undisturbed(t, n, p, before)
	n.API.Down(nil)
	n.API.Hide(p.UID, false)
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	undisturbed(t, n, p, before)
}

// Absent from the watch, and elsewhere for the API server itself: what stands here
// is nobody's any more.
func TestAPodThatTheAPIHasOnAnotherNodeIsReleasedHere(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	n.API.Hide(p.UID, true)
	if p.Pass(); len(n.Left()) == 0 {
		t.Fatal("it was released while the API had it here")
	}
	n.API.Change(p.UID, func(p *plan.Pod) { p.Node = "node-b" })
	must(t, p.Ctr.Stop())
	p.Pass()
	clean(t, n, p)
	if answered := n.API.Answers(); answered != 1 {
		t.Errorf("%d answers: it is another agent's to answer", answered)
	}
}

func TestAnAnswerThatCouldNotBeWrittenIsWrittenOnceTheAPIIsBack(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/u1", "u1"))
	away := errors.New("the API is away")
	n.API.Down(away)
	for range 3 {
		if _, err := n.Agent.Reconcile(t.Context(), p.UID); !errors.Is(err, away) {
			t.Errorf("the pass: %v", err)
		}
		// What can be done without it is done.
		must(t, p.Ctr.AsUser(userID, groupID).WriteFile(in+"u1/f", nil, 0o644))
	}
	n.API.Down(nil)
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	p.Pass()
	if n.API.Answers() != 1 || n.Metric("granted_total") != 1 {
		t.Errorf("%d answers, %v granted", n.API.Answers(), n.Metric("granted_total"))
	}
}

func TestASetThatWasReplacedMeanwhileNeverGetsTheOldAnswer(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/u1", "u1"))
	n.API.Meanwhile(func(string) { p.Grant(home("h/u2", "u2")) })
	if again := p.Pass(); again <= 0 || p.Status() != nil {
		t.Fatalf("a pass again after %s, answered %+v", again, p.Status())
	}
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	if n.API.Answers() != 1 {
		t.Errorf("%d answers", n.API.Answers())
	}
}

func TestAPodThatWasCreatedAgainNeverGetsTheOldAnswer(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p, q := n.RunningPod("pod"), n.RunningPod("again")
	n.API.Change(q.UID, func(q *plan.Pod) { q.Name = "pod" })
	p.Grant(home("h/u1", "u1"))
	n.API.Meanwhile(func(uid string) { n.API.Delete(uid) })
	p.Pass()
	q.Pass()
	if st := q.Status(); st != nil || n.API.Answers() != 0 {
		t.Errorf("answered %+v", st)
	}
	q.Grant(home("h/u2", "u2"))
	q.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	must(t, p.Ctr.Stop())
	p.Pass()
	absent(t, treeOf(n, p))
	if seen := seenBy(t, q.Ctr); len(seen) != 1 {
		t.Errorf("the new Pod sees %v", seen)
	}
}

func TestAnAnswerThatWasDeletedOrForgedIsWrittenAgainAndChangesNothing(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	before := ids(t, n, p)
	right := *p.Status()
	forged := grant.Status{Hash: right.Hash, State: grant.StateReady, Mounted: []string{"u1", "u2", "etc"}}.Encode()
	nonsense := "nonsense"
	for i, ready := range []*string{nil, &forged, &nonsense} {
		n.API.Change(p.UID, func(p *plan.Pod) { p.Ready = ready })
		st := p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
		if st.Hash != right.Hash || n.API.Answers() != 2+i {
			t.Errorf("answered %+v, %d answers", st, n.API.Answers())
		}
	}
	// Also after a restart: it is no input.
	n.API.Change(p.UID, func(p *plan.Pod) { p.Ready = &forged })
	n.Restart()
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	undisturbed(t, n, p, before)
	// The same set again, by a writer who removes the old answer.
	p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	undisturbed(t, n, p, before)
	answers := n.API.Answers()
	for range 3 {
		p.Pass()
		must(t, n.Agent.Sweep(t.Context()))
	}
	if n.API.Answers() != answers {
		t.Error("what had not changed was answered again")
	}
}

func TestAPodWithoutAGrantIsNeverTouched(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	forged := "somebody else's"
	n.API.Change(p.UID, func(p *plan.Pod) { p.Ready = &forged })
	for range 3 {
		p.Pass()
		must(t, n.Agent.Sweep(t.Context()))
	}
	n.Restart()
	p.Pass()
	if n.API.Answers() != 0 || len(standing(t, p.VolumePath())) != 1 {
		t.Errorf("%d answers, on the volume %+v", n.API.Answers(), standing(t, p.VolumePath()))
	}
	absent(t, treeOf(n, p))
	if n.API.Queued(p.UID) {
		t.Error("passes are made over it")
	}
}

func TestAPodOfAnotherNodeIsNoneOfOurs(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	n.API.Change(p.UID, func(p *plan.Pod) { p.Node = "node-b" })
	p.Grant(home("h/u1", "u1"))
	p.Pass()
	if n.API.Answers() != 0 || len(standing(t, p.VolumePath())) != 1 {
		t.Errorf("%d answers, on the volume %+v", n.API.Answers(), standing(t, p.VolumePath()))
	}
}

func TestAnUnreadableAnnotationKeepsWhatStands(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	before := ids(t, n, p)
	for _, text := range []string{"", "{", "null", `"text"`, `{"hash":"x"}`, `{"mounts":{}}`, "[" /* deep */ + "[[[[[[[["} {
		p.Annotate(&text)
		st := p.MustAnswer(grant.StateFailed, []string{"u1", "u2"}, codes("*", "INVALID_GRANT"))
		if st.Hash != "" {
			t.Errorf("%q: hash %q", text, st.Hash)
		}
	}
	undisturbed(t, n, p, before)
	// An agent that comes back to it keeps it, too, and takes what is wrong.
	n.Restart()
	p.MustAnswer(grant.StateFailed, []string{"u1", "u2"}, codes("*", "INVALID_GRANT"))
	undisturbed(t, n, p, before)
	must(t, unix.Unmount(treeOf(n, p)+"/u1", 0))
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateFailed, []string{"u2"}, codes("*", "INVALID_GRANT"))
	p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	p.Grant()
	p.MustAnswer(grant.StateReady, nil, nil)
	// One that was never served is told the same, and nothing is made for it.
	q := n.RunningPod("other")
	text := "{"
	q.Annotate(&text)
	q.MustAnswer(grant.StateFailed, nil, codes("*", "INVALID_GRANT"))
	absent(t, treeOf(n, q))
}

// A bare list has no hash of its own: the answer carries the one that is
// computed.
func TestABareListOfMountsIsServed(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Home("h/u1", 0o777, "f")
	p := n.RunningPod("pod")
	text := `[{"kind":"files","source":"h/u1","target":"u1","mode":"rw"},{"source":"h/u1","target":"plain","mode":"RO","allow_exec":false}]`
	p.Annotate(&text)
	st := p.MustAnswer(grant.StateReady, []string{"plain", "u1"}, nil)
	if st.Hash != grant.Decode(text).Hash || st.Hash == "" {
		t.Errorf("hash %q", st.Hash)
	}
	wants(t, "a write into plain", p.Ctr.WriteFile(in+"plain/f", nil, 0o644), unix.EROFS)
}
