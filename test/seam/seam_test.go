// Package seam_test holds what writes grants against what reads them. The reader
// drops what it cannot use, so that one bad entry costs nobody the others; and so a
// field that only one side knows would be missing from a sandbox without an error
// anywhere. These tests give the writer's own output to the agent's own reader.
package seam_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/operator"
)

const commit = "3f2a9c0d5b7e41868d0c1f2b3a4d5e6f708192a3"

// owner is the Pod that the cases are for.
func owner() operator.Pod { return operator.Pod{Namespace: "default", Name: "sandbox", UID: "uid-1"} }

// crossing is a grant as a program writes it, and what the agent has to make of it.
// What is wanted is spelled out: derived from the grant, it would change with it.
type crossing struct {
	written grant.Mount
	target  string
	want    plan.Identity
}

// crossings are the cases of every kind. A kind that is new has none, and fails.
func crossings(t *testing.T) map[grant.Kind][]crossing {
	t.Helper()
	bound := func(kind grant.Kind) []crossing {
		return []crossing{
			{
				grant.Mount{UID: "u-" + string(kind), Kind: kind, Source: "home/users/01H-eric", Target: "eric", Mode: grant.ReadWrite, AllowExec: true},
				"eric",
				plan.Identity{Kind: kind, Source: "home/users/01H-eric", Mode: "rw", AllowExec: true},
			},
			{
				grant.Mount{Kind: kind, Source: "home/équipe/データ/𝄞/<&>\"'\u2028\x7f\n.", Target: "team", Mode: grant.ReadOnly},
				"team",
				plan.Identity{Kind: kind, Source: "home/équipe/データ/𝄞/<&>\"'\u2028\x7f\n.", Mode: "ro"},
			},
			{
				// The last white space is part of the folder's name.
				grant.Mount{Kind: kind, Source: "/home/u /", Target: "spaced", Mode: grant.ReadOnly, AllowExec: true},
				"spaced",
				plan.Identity{Kind: kind, Source: "home/u ", Mode: "ro", AllowExec: true},
			},
			{
				grant.Mount{Kind: kind, Source: "a", Target: "revised", Mode: grant.ReadOnly, Revision: "v1", Secret: "some.secret-1"},
				"revised",
				plan.Identity{Kind: kind, Source: "a", Mode: "ro", Revision: "v1", Secret: "some.secret-1"},
			},
		}
	}
	return map[grant.Kind][]crossing{
		grant.KindPlain:        bound(grant.KindPlain),
		grant.KindFiles:        bound(grant.KindFiles),
		grant.KindSharedFolder: append(bound(grant.KindSharedFolder), datasets(t)...),
		grant.KindNFS:          exports(t),
		grant.KindGit:          repositories(t),
		grant.KindCloudStorage: buckets(t),
		grant.KindLocalBridge: {{
			grant.Mount{UID: "ponté", Kind: grant.KindLocalBridge, Source: "01HBRIDGE", Target: "laptop", Mode: grant.ReadWrite, Secret: "bridge-01hbridge"},
			"laptop",
			plan.Identity{Kind: grant.KindLocalBridge, Source: "01HBRIDGE", Mode: "rw", Secret: "bridge-01hbridge"},
		}},
	}
}

// content is what a content comes to, on a deployment that serves everything.
func content(t *testing.T, c operator.Content, target string, want plan.Identity) crossing {
	t.Helper()
	l := operator.Launch{Pod: owner(), Credentials: true}
	for _, k := range grant.Kinds() {
		l.Serves = append(l.Serves, k.Kind)
	}
	got, err := operator.Contents([]operator.Content{c}, l)
	if err != nil || len(got.Mounts) != 1 {
		t.Fatalf("%+v came to %+v, %v", c, got, err)
	}
	return crossing{got.Mounts[0], target, want}
}

func datasets(t *testing.T) []crossing {
	t.Helper()
	return []crossing{
		content(t, operator.Content{Name: "Palmer penguins", Type: operator.ContentNFS, SubPath: "datasets/manchots/été"},
			"Palmer-penguins", plan.Identity{Kind: grant.KindSharedFolder, Source: "datasets/manchots/été", Mode: "ro"}),
		content(t, operator.Content{Target: "scratch", Type: operator.ContentNFS, SubPath: "scratch", Mode: grant.ReadWrite},
			"scratch", plan.Identity{Kind: grant.KindSharedFolder, Source: "scratch", Mode: "rw"}),
	}
}

func exports(t *testing.T) []crossing {
	t.Helper()
	return []crossing{
		content(t, operator.Content{Target: "climate", Type: operator.ContentNFS, Server: "filer.example.org", Path: "/srv/données"},
			"climate", plan.Identity{Kind: grant.KindNFS, Source: "filer.example.org:/srv/données", Mode: "ro"}),
		content(t, operator.Content{Target: "six", Type: operator.ContentNFS, Server: "2001:db8::7", Path: "/a", Mode: grant.ReadWrite},
			"six", plan.Identity{Kind: grant.KindNFS, Source: "[2001:db8::7]:/a", Mode: "rw"}),
		{
			grant.Mount{Kind: grant.KindNFS, Source: "10.0.0.7:/", Target: "bin", Mode: grant.ReadOnly, AllowExec: true},
			"bin",
			plan.Identity{Kind: grant.KindNFS, Source: "10.0.0.7:/", Mode: "ro", AllowExec: true},
		},
	}
}

func repositories(t *testing.T) []crossing {
	t.Helper()
	return []crossing{
		content(t, operator.Content{Target: "tutorial", Type: operator.ContentGit, URL: "https://git.example.org/o/r.git", Revision: commit},
			"tutorial", plan.Identity{Kind: grant.KindGit, Source: "https://git.example.org/o/r.git", Mode: "ro", AllowExec: true, Revision: commit}),
		content(t, operator.Content{Target: "private", Type: operator.ContentGit, URL: "ssh://git@git.example.org:2222/o/r", Revision: commit, Private: true, NoExec: true},
			"private", plan.Identity{Kind: grant.KindGit, Source: "ssh://git@git.example.org:2222/o/r", Mode: "ro", Revision: commit, Secret: operator.SecretName(owner(), "private")}),
		{
			grant.Mount{Kind: grant.KindGit, Source: "git@git.example.org:o/r", Target: "short", Mode: grant.ReadWrite, AllowExec: true, Revision: commit},
			"short",
			plan.Identity{Kind: grant.KindGit, Source: "git@git.example.org:o/r", Mode: "rw", AllowExec: true, Revision: commit},
		},
	}
}

func buckets(t *testing.T) []crossing {
	t.Helper()
	return []crossing{
		content(t, operator.Content{Target: "taxi", Type: operator.ContentS3, Bucket: "my-bucket", Prefix: "/year=2020/été/"},
			"taxi", plan.Identity{Kind: grant.KindCloudStorage, Source: "my-bucket/year=2020/été", Mode: "ro", Secret: operator.SecretName(owner(), "taxi")}),
		content(t, operator.Content{Target: "all", Type: operator.ContentS3, Bucket: "my-bucket", Mode: grant.ReadWrite},
			"all", plan.Identity{Kind: grant.KindCloudStorage, Source: "my-bucket", Mode: "rw", Secret: operator.SecretName(owner(), "all")}),
		content(t, operator.Content{Target: "spaced", Type: operator.ContentS3, Bucket: "b", Prefix: "a /"},
			"spaced", plan.Identity{Kind: grant.KindCloudStorage, Source: "b/a ", Mode: "ro", Secret: operator.SecretName(owner(), "spaced")}),
		{
			grant.Mount{Kind: grant.KindCloudStorage, Source: "b/p", Target: "tools", Mode: grant.ReadOnly, AllowExec: true, Secret: "s3-session.abc"},
			"tools",
			plan.Identity{Kind: grant.KindCloudStorage, Source: "b/p", Mode: "ro", AllowExec: true, Secret: "s3-session.abc"},
		},
	}
}

// all are the cases of every kind, each with a target of its own, so that they fit
// into one set.
func all(t *testing.T) []crossing {
	t.Helper()
	var out []crossing
	cases := crossings(t)
	for i, k := range grant.Kinds() {
		if len(cases[k.Kind]) == 0 {
			t.Errorf("the kind %q has no case: say what of it has to arrive at the agent", k.Kind)
		}
		for j, c := range cases[k.Kind] {
			prefix := fmt.Sprintf("k%d-%d-", i, j)
			c.written.Target, c.target = prefix+c.written.Target, prefix+c.target
			out = append(out, c)
		}
	}
	return out
}

func written(cases []crossing) []grant.Mount {
	var mounts []grant.Mount
	for _, c := range cases {
		mounts = append(mounts, c.written)
	}
	return mounts
}

// serving is the policy of an agent that serves everything.
func serving() plan.Policy {
	pol := plan.Policy{Credentials: true, Serves: map[grant.Kind]bool{}}
	for _, k := range grant.Kinds() {
		pol.Serves[k.Kind] = true
	}
	return pol
}

// arrives tells what of the cases is not in what the agent reads of an annotation.
func arrives(t *testing.T, cases []crossing, annotation, hash string) {
	t.Helper()
	p := plan.Build(grant.Decode(annotation), serving())
	if p.Whole != nil || len(p.Refused) > 0 || p.Hash != hash || len(p.Mounts) != len(cases) {
		t.Errorf("%d of %d grants arrived under %q, want %q: whole %v, refused %v", len(p.Mounts), len(cases), p.Hash, hash, p.Whole, p.Refused)
	}
	for _, c := range cases {
		i := slices.IndexFunc(p.Mounts, func(m plan.Mount) bool { return m.Target() == c.target })
		if i < 0 {
			t.Errorf("%s: it did not arrive", c.target)
			continue
		}
		m := p.Mounts[i]
		info, _ := c.want.Kind.Info()
		if m.Identity() != c.want {
			t.Errorf("%s arrived as %#v, want %#v", c.target, m.Identity(), c.want)
		}
		if m.NoExec() == c.want.AllowExec || m.ReadOnly() != (info.ReadOnly || c.want.Mode == grant.ReadOnly) ||
			m.Delivery() != info.Delivery || m.Creates() != info.Creates || m.Source() != c.want.Source {
			t.Errorf("%s is mounted otherwise than it was granted", c.target)
		}
	}
}

func TestWhatAnOperatorWritesArrivesAtTheAgentWhole(t *testing.T) {
	cases := all(t)
	annotation, err := grant.Encode(written(cases))
	if err != nil {
		t.Fatal(err)
	}
	arrives(t, cases, annotation, grant.Decode(annotation).Hash)
	for _, c := range cases { // each alone: another cannot stand in for it
		annotation, err := grant.Encode([]grant.Mount{c.written})
		if err != nil {
			t.Fatal(err)
		}
		arrives(t, []crossing{c}, annotation, grant.Decode(annotation).Hash)
	}
}

// The table is of use for the fields that it fills in. One that is added to the
// grant has to be in it, and in the identity, or be named here as of no effect.
func TestEveryFieldOfAGrantIsInTheTableAndInTheIdentity(t *testing.T) {
	of := reflect.TypeFor[grant.Mount]()
	identity := reflect.TypeFor[plan.Identity]()
	cases := all(t)
	for i := range of.NumField() {
		field := of.Field(i)
		if !field.IsExported() {
			continue
		}
		values := map[any]bool{}
		for _, c := range cases {
			values[reflect.ValueOf(c.written).Field(i).Interface()] = true
		}
		if len(values) < 2 {
			t.Errorf("%s is the same in every case", field.Name)
		}
		_, known := identity.FieldByName(field.Name)
		if apart := []string{"UID", "Target"}; !known && !slices.Contains(apart, field.Name) {
			t.Errorf("%s is no part of what the agent goes by", field.Name)
		}
	}
}

// A member that the reader does not know would be passed over. So each that is
// written is spoilt: the reader has to notice. The uid is the writer's own.
func TestTheAgentReadsEveryMemberThatAnOperatorWrites(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range all(t) {
		text, err := grant.Encode([]grant.Mount{c.written})
		if err != nil {
			t.Fatal(err)
		}
		var annotation struct {
			Hash   string           `json:"hash"`
			Mounts []map[string]any `json:"mounts"`
		}
		strict := json.NewDecoder(strings.NewReader(text))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&annotation); err != nil {
			t.Fatalf("the annotation has more than a hash and mounts: %v", err)
		}
		for member, value := range annotation.Mounts[0] {
			seen[member] = true
			annotation.Mounts[0][member] = 7
			spoilt, err := json.Marshal(annotation)
			if err != nil {
				t.Fatal(err)
			}
			annotation.Mounts[0][member] = value
			refused := len(plan.Build(grant.Decode(string(spoilt)), serving()).Refused) == 1
			if refused == (member == "uid") {
				t.Errorf("%s: %q spoilt: refused %v", c.target, member, refused)
			}
		}
	}
	if want := reflect.TypeFor[plan.Identity]().NumField() + 2; len(seen) != want {
		t.Errorf("the cases write %d different members, want %d: %v", len(seen), want, seen)
	}
}

// A launch decides by this whether it needs a Pod of its own, before any agent is
// asked: it has to be what the agent would say.
func TestAnOperatorAndAnAgentRefuseTheSameContentsWithTheSameCodes(t *testing.T) {
	contents := []operator.Content{
		{Target: "git", Type: operator.ContentGit, URL: "https://h/r", Revision: commit},
		{Target: "private", Type: operator.ContentGit, URL: "https://h/r", Revision: commit, Private: true},
		{Target: "folder", Type: operator.ContentNFS, SubPath: "a"},
		{Target: "export", Type: operator.ContentNFS, Server: "h", Path: "/a"},
		{Target: "bucket", Type: operator.ContentS3, Bucket: "b"},
	}
	everything := operator.Launch{Pod: owner(), Credentials: true}
	for _, k := range grant.Kinds() {
		everything.Serves = append(everything.Serves, k.Kind)
	}
	whole, err := operator.Contents(contents, everything)
	if err != nil {
		t.Fatal(err)
	}
	for bits := range 1 << (len(everything.Serves) + 1) {
		l, pol := operator.Launch{Pod: owner()}, plan.Policy{Serves: map[grant.Kind]bool{}}
		for i, k := range everything.Serves {
			if bits&(1<<i) != 0 {
				l.Serves = append(l.Serves, k)
				pol.Serves[k] = true
			}
		}
		l.Credentials = bits>>len(everything.Serves) != 0
		pol.Credentials = l.Credentials
		got, err := operator.Contents(contents, l)
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]grant.Code{}
		for _, u := range got.Unserved {
			said[u.Refusal.Key] = u.Refusal.Code
		}
		p := plan.Build(grant.Set{Mounts: whole.Mounts}, pol)
		if len(p.Refused) != len(said) || len(p.Mounts) != len(got.Mounts) {
			t.Errorf("serving %q, Secrets %v: the operator refuses %v, the agent %v", l.Serves, l.Credentials, said, p.Refused)
		}
		for _, r := range p.Refused {
			if said[r.Key] != r.Code {
				t.Errorf("serving %q, Secrets %v: %s is %q for the operator and %q for the agent", l.Serves, l.Credentials, r.Key, said[r.Key], r.Code)
			}
		}
	}
}
