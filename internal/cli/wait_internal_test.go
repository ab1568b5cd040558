package cli

import (
	"testing"

	"github.com/datalayer/node-mounts/grant"
)

func set(t *testing.T, mounts ...grant.Mount) string {
	t.Helper()
	text, err := grant.Encode(mounts)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Eight people grant at once: each waits for the folder that is theirs.
func TestALaterSetIsFollowedWhileItAsksForTheSame(t *testing.T) {
	mine := grant.Mount{Kind: grant.KindFiles, Source: "home/ada", Target: "ada", Mode: grant.ReadWrite, AllowExec: true}
	other := grant.Mount{Source: "d", Target: "data", Mode: grant.ReadOnly}
	changed := mine
	changed.Mode = grant.ReadOnly
	was := set(t, mine)
	for name, c := range map[string]struct {
		now  string
		want bool
	}{
		"another's beside it": {set(t, mine, other), true},
		"changed":             {set(t, changed, other), false},
		"gone":                {set(t, other), false},
		"unreadable":          {"{", false},
	} {
		if got := sameAt(was, c.now, []string{"ada"}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestOnlyWhatConcernsTheTargetsIsJudged(t *testing.T) {
	st := grant.Status{
		State: grant.StateDegraded, Mounted: []string{"ada"},
		Failed: map[string]grant.Code{"old": grant.CodeHeld, "data": grant.CodeMountFailed},
	}
	if got := only(st, []string{"ada"}); got.State != grant.StateReady || len(got.Failed) != 0 {
		t.Errorf("ada is mounted: %+v", got)
	}
	if got := only(st, []string{"ada", "data"}); got.State != grant.StateDegraded || len(got.Failed) != 1 {
		t.Errorf("data failed: %+v", got)
	}
	st.Failed[grant.WholeSet] = grant.CodeTooManyMounts
	if got := only(st, []string{"ada"}); len(got.Failed) != 1 || got.State == grant.StateReady {
		t.Errorf("the whole set was refused: %+v", got)
	}
	if len(st.Failed) != 3 {
		t.Error("the answer itself was changed")
	}
}
