package grant_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
)

func files(source, target string) grant.Mount {
	return grant.Mount{Kind: grant.KindFiles, Source: source, Target: target, Mode: grant.ReadWrite, AllowExec: true}
}

func mustMerge(t *testing.T, annotation string, add []grant.Mount, remove ...string) string {
	t.Helper()
	out, err := grant.Merge(annotation, add, remove...)
	if err != nil {
		t.Fatal(err)
	}
	set := grant.Decode(out)
	if set.Whole != nil || set.Hash != grant.Hash(set.Mounts) {
		t.Fatalf("the result does not read back: %+v", set)
	}
	return out
}

func TestMergeAddsReplacesAndRemovesByTarget(t *testing.T) {
	one := mustMerge(t, "", []grant.Mount{files("home/a", "a")})
	want, err := grant.Encode([]grant.Mount{files("home/a", "a")})
	if err != nil || one != want {
		t.Errorf("from nothing: %s, want %s (%v)", one, want, err)
	}
	two := mustMerge(t, one, []grant.Mount{files("home/b", "b")})
	if set := grant.Decode(two); len(set.Mounts) != 2 {
		t.Errorf("added: %s", two)
	}
	replaced := mustMerge(t, two, []grant.Mount{files("home/c", " a ")})
	if set := grant.Decode(replaced); len(set.Mounts) != 2 || set.Mounts[0].Source != "home/c" {
		t.Errorf("replaced: %s", replaced)
	}
	left := mustMerge(t, replaced, nil, "a", "absent")
	if set := grant.Decode(left); len(set.Mounts) != 1 || set.Mounts[0].Target != "b" {
		t.Errorf("removed: %s", left)
	}
	if none := mustMerge(t, left, nil, "b"); len(grant.Decode(none).Mounts) != 0 {
		t.Errorf("emptied: %s", none)
	}
}

func TestMergeKeepsEntriesThatItWouldRefuse(t *testing.T) {
	const theirs = `{"kind":"later","source":"x:y","target":"later","extra":[1,  2]}`
	out := mustMerge(t, `{"hash":"theirs","mounts":[`+theirs+`,7]}`, []grant.Mount{files("home/a", "a")})
	if !strings.Contains(out, `{"kind":"later","source":"x:y","target":"later","extra":[1,2]}`) || !strings.Contains(out, ",7,") {
		t.Errorf("lost: %s", out)
	}
	if set := grant.Decode(out); len(set.Mounts) != 1 || len(set.Refused) != 2 {
		t.Errorf("%+v", set)
	}
	if gone := mustMerge(t, out, nil, "later"); strings.Contains(gone, "later") {
		t.Errorf("a refused entry cannot be removed: %s", gone)
	}
}

func TestMergeKeepsWhiteSpaceThatBelongsToASource(t *testing.T) {
	spaced, err := grant.Encode([]grant.Mount{files("/home/u /", "u"), files("/ v/", "v")})
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{
		mustMerge(t, spaced, []grant.Mount{files("home/a", "a")}),
		mustMerge(t, "", []grant.Mount{files("home/a", "a"), files("/home/u /", "u"), files("/ v/", "v")}),
	} {
		set := grant.Decode(mustMerge(t, out, nil, "a"))
		if len(set.Mounts) != 2 || set.Mounts[0].Source != "home/u " || set.Mounts[1].Source != " v" {
			t.Errorf("%+v", set.Mounts)
		}
	}
}

func TestMergeRefusesWhatItCannotReadOrWrite(t *testing.T) {
	many := make([]string, grant.MaxEntries)
	for i := range many {
		many[i] = "1"
	}
	for name, c := range map[string]struct {
		annotation string
		add        []grant.Mount
		code       grant.Code
	}{
		"unreadable": {"{", nil, grant.CodeInvalidGrant},
		"bad mount":  {"", []grant.Mount{files("../x", "a")}, grant.CodeInvalidSource},
		"too many":   {"[" + strings.Join(many, ",") + "]", []grant.Mount{files("a", "a")}, grant.CodeTooManyMounts},
		"too large":  {`["` + strings.Repeat("x", grant.MaxAnnotationBytes-10) + `"]`, []grant.Mount{files("a", "a")}, grant.CodeInvalidGrant},
	} {
		_, err := grant.Merge(c.annotation, c.add)
		var refusal *grant.Refusal
		if !errors.As(err, &refusal) || refusal.Code != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
}

func TestTheTargetsOfASetAreThoseOfAllItsEntries(t *testing.T) {
	set := grant.Decode(`[{"source":"b","target":" b "},{"source":"../x","target":"bad"},{"source":"a","target":"a"},
		{"source":"again","target":"b"},{"source":"x","target":"c/d"},7]`)
	if got := strings.Join(set.Targets(), " "); got != "a b bad" {
		t.Errorf("targets %q", got)
	}
	if got := grant.Decode("{").Targets(); len(got) != 0 {
		t.Errorf("of what cannot be read: %q", got)
	}
}
