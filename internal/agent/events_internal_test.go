package agent

import (
	"slices"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/plan"
)

type told []string

func (t *told) Event(_ plan.Pod, warning bool, reason, message string) {
	kind := "normal "
	if warning {
		kind = "warning "
	}
	*t = append(*t, kind+reason+": "+message)
}

func TestAnAnswerIsToldInWordsThatNameEveryTarget(t *testing.T) {
	var events told
	a := &Agent{Config: Config{Events: &events}}
	for _, st := range []grant.Status{
		{State: grant.StateReady},
		{State: grant.StateReady, Mounted: []string{"ada", "mnist"}},
		{
			State: grant.StateDegraded, Mounted: []string{"ada"}, Failed: map[string]grant.Code{"b": "C2", "a": "C1"},
			Messages: map[string]string{"a": "why a", "b": "why b"},
		},
		{State: grant.StateFailed, Failed: map[string]grant.Code{"*": "C"}, Messages: map[string]string{"*": "why"}},
	} {
		a.tell(plan.Pod{}, st)
	}
	want := []string{
		"normal NodeMountsReady: nothing is mounted",
		"normal NodeMountsReady: mounted: ada, mnist",
		"warning NodeMountsDegraded: a: why a (C1); b: why b (C2); mounted: ada",
		"warning NodeMountsFailed: the set: why (C); nothing is mounted",
	}
	if !slices.Equal(events, want) {
		t.Errorf("told %q\nwant %q", []string(events), want)
	}
}
