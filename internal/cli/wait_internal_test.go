package cli

import (
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
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

func keysOf(flaws []flaw) string {
	var keys []string
	for _, f := range flaws {
		keys = append(keys, f.key+"="+f.what)
	}
	return strings.Join(keys, " ")
}

func TestAnAnswerIsJudgedByWhatTheCommandAskedFor(t *testing.T) {
	ada := grant.Mount{Kind: grant.KindFiles, Source: "home/ada", Target: "ada"}
	data := grant.Mount{Source: "d", Target: "data"}
	both, alone, nothing := set(t, ada, data), set(t, ada), set(t)
	held, dead, full := grant.CodeHeld, grant.CodeMountDead, grant.CodeTooManyMounts
	type failed = map[string]grant.Code
	for name, c := range map[string]struct {
		set           string
		mounted, gone []string
		st            grant.Status
		want          string
	}{
		"all of it stands":                       {both, nil, nil, grant.Status{Mounted: []string{"ada", "data"}}, ""},
		"ready is said of what does not stand":   {both, nil, nil, grant.Status{State: grant.StateReady, Mounted: []string{"ada"}}, "data=not among what is mounted"},
		"ready is said beside a failure":         {alone, nil, nil, grant.Status{State: grant.StateReady, Mounted: []string{"ada"}, Failed: failed{"ada": dead}}, "ada=" + string(dead)},
		"ready is said of nothing":               {both, []string{"ada"}, nil, grant.Status{State: grant.StateReady}, "ada=not among what is mounted"},
		"ready is said of what was taken":        {nothing, nil, nil, grant.Status{State: grant.StateReady, Mounted: []string{"ada"}}, "ada=still mounted"},
		"ready is said of one that was taken":    {alone, nil, []string{"data"}, grant.Status{State: grant.StateReady, Mounted: []string{"ada", "data"}}, "data=still mounted"},
		"an answer without room for all":         {both, nil, nil, grant.Status{State: grant.StateReady, Messages: map[string]string{grant.WholeSet: "too long"}}, ""},
		"an entry that has no name":              {`[{"source":"x"}]`, nil, nil, grant.Status{Failed: failed{"#0": grant.CodeInvalidTarget}}, "#0=" + string(grant.CodeInvalidTarget)},
		"another's failure beside a grant":       {both, []string{"ada"}, nil, grant.Status{Mounted: []string{"ada"}, Failed: failed{"data": dead, "old": held}}, ""},
		"another's failure beside a revocation":  {alone, nil, []string{"data"}, grant.Status{Failed: failed{"ada": dead, "old": held}}, ""},
		"another's failure where all was wanted": {alone, nil, nil, grant.Status{Mounted: []string{"ada"}, Failed: failed{"old": held}}, "old=" + string(held)},
		"what was revoked is held":               {alone, nil, []string{"data"}, grant.Status{Mounted: []string{"ada"}, Failed: failed{"data": held}}, "data=" + string(held)},
		"granted again while the last is held":   {alone, []string{"ada"}, nil, grant.Status{Mounted: []string{"ada"}, Failed: failed{"ada": held}}, ""},
		"granted again and only held":            {alone, []string{"ada"}, nil, grant.Status{Failed: failed{"ada": held}}, "ada=" + string(held)},
		"it has died":                            {alone, []string{"ada"}, nil, grant.Status{Mounted: []string{"ada"}, Failed: failed{"ada": dead}}, "ada=" + string(dead)},
		"the whole set is refused":               {alone, nil, []string{"data"}, grant.Status{Failed: failed{grant.WholeSet: full}}, "*=" + string(full)},
	} {
		w := wanted{asked: operator.Asked{Annotation: c.set}, mounted: c.mounted, gone: c.gone}
		if got := keysOf(w.flaws(c.st)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
