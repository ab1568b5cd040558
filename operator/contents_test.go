package operator_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
)

const commit = "3f2a9c0d5b7e41868d0c1f2b3a4d5e6f708192a3"

// everything is a launch on a deployment that serves every kind.
func everything() operator.Launch {
	l := operator.Launch{Pod: operator.Pod{Namespace: namespace, Name: "p", UID: "uid-1"}, Credentials: true}
	for _, k := range grant.Kinds() {
		l.Serves = append(l.Serves, k.Kind)
	}
	return l
}

func repository(target string) operator.Content {
	return operator.Content{Target: target, Type: operator.ContentGit, URL: "https://git.example.org/o/r.git", Revision: commit}
}

func dataset(target string) operator.Content {
	return operator.Content{Target: target, Type: operator.ContentNFS, SubPath: "datasets/" + target}
}

func export(target string) operator.Content {
	return operator.Content{Target: target, Type: operator.ContentNFS, Server: "filer.example.org", Path: "/srv/" + target}
}

func bucket(target string) operator.Content {
	return operator.Content{Target: target, Type: operator.ContentS3, Bucket: "b", Prefix: target}
}

func granted(t *testing.T, l operator.Launch, contents ...operator.Content) []grant.Mount {
	t.Helper()
	got, err := operator.Contents(contents, l)
	must(t, err)
	if len(got.Unserved) > 0 || len(got.Mounts) != len(contents) {
		t.Fatalf("%d contents came to %+v", len(contents), got)
	}
	return got.Mounts
}

func TestEveryTypeOfContentBecomesAGrantOfItsKind(t *testing.T) {
	l := everything()
	private := repository("private")
	private.Private = true
	got := granted(t, l, repository("tutorial"), private, dataset("penguins"), export("climate"), bucket("taxi"))
	for i, want := range []grant.Mount{
		{Kind: grant.KindGit, Source: "https://git.example.org/o/r.git", Target: "tutorial", AllowExec: true, Revision: commit},
		{Kind: grant.KindGit, Source: "https://git.example.org/o/r.git", Target: "private", AllowExec: true, Revision: commit, Secret: operator.SecretName(l.Pod, "private")},
		{Kind: grant.KindSharedFolder, Source: "datasets/penguins", Target: "penguins"},
		{Kind: grant.KindNFS, Source: "filer.example.org:/srv/climate", Target: "climate"},
		{Kind: grant.KindCloudStorage, Source: "b/taxi", Target: "taxi", Secret: operator.SecretName(l.Pod, "taxi")},
	} {
		want.Mode = grant.ReadOnly
		if got[i] != want {
			t.Errorf("%+v, want %+v", got[i], want)
		}
	}
}

func TestAPrefixIsJoinedOntoItsBucketAndKeepsTheWhiteSpaceInsideIt(t *testing.T) {
	for prefix, want := range map[string]string{
		"":            "b",
		"/":           "b",
		"p/q/":        "b/p/q",
		"/p//q":       "b/p/q",
		" p ":         "b/p",
		"été/データ":     "b/été/データ",
		"a b /":       "b/a b ",
		"x=1/y=2%20/": "b/x=1/y=2%20",
	} {
		c := bucket("t")
		c.Prefix = prefix
		if got := granted(t, everything(), c)[0].Source; got != want {
			t.Errorf("prefix %q: %q, want %q", prefix, got, want)
		}
	}
}

func TestAnExportIsThatOfTheServerThatIsNamed(t *testing.T) {
	for _, c := range []struct{ server, path, want string }{
		{"filer", "/", "filer:/"},
		{"10.0.0.7", "/srv//data/", "10.0.0.7:/srv/data"},
		{"2001:db8::7", "/a", "[2001:db8::7]:/a"},
		{"[2001:db8::7]", "/a", "[2001:db8::7]:/a"},
		{"filer", "/a:/b", "filer:/a:/b"},
		{"filer:/private", "/a", ""},
		{"filer/a", "/a", ""},
		{"fi ler", "/a", ""},
		{"filer", "a", ""},
		{"filer", "", ""},
		{"filer", "/a/../b", ""},
		{"filer", "/a,rw", ""},
	} {
		content := operator.Content{Target: "t", Type: operator.ContentNFS, Server: c.server, Path: c.path}
		got, err := operator.Contents([]operator.Content{content}, everything())
		switch {
		case c.want == "" && err == nil:
			t.Errorf("%q %q: granted as %q", c.server, c.path, got.Mounts[0].Source)
		case c.want != "" && (err != nil || got.Mounts[0].Source != c.want):
			t.Errorf("%q %q: %+v, %v, want %q", c.server, c.path, got.Mounts, err, c.want)
		}
	}
}

func TestPermissionsNarrowAndNeverWiden(t *testing.T) {
	for _, c := range []struct{ content, launch, want grant.Mode }{
		{"", "", "ro"},
		{"", "rw", "ro"},
		{"", "ro", "ro"},
		{"ro", "", "ro"},
		{"ro", "rw", "ro"},
		{"ro", "ro", "ro"},
		{"rw", "", "rw"},
		{"rw", "rw", "rw"},
		{"rw", "ro", "ro"},
		{" RW ", "", "rw"},
		{"rw", "RO", "ro"},
	} {
		l := everything()
		l.Mode = c.launch
		for _, content := range []operator.Content{dataset("t"), export("t"), bucket("t"), repository("t")} {
			content.Mode = c.content
			want := c.want
			if content.Type == operator.ContentGit {
				want = grant.ReadOnly
			}
			got := granted(t, l, content)[0]
			if got.Mode != want {
				t.Errorf("%s: content %q and launch %q: %q", content.Type, c.content, c.launch, got.Mode)
			}
			if got.AllowExec != (content.Type == operator.ContentGit) {
				t.Errorf("%s: allow_exec %v", content.Type, got.AllowExec)
			}
			content.NoExec = true
			if granted(t, l, content)[0].AllowExec {
				t.Errorf("%s: executable although the content forbids it", content.Type)
			}
		}
	}
}

// badFields are the fields that are refused, sorted.
func badFields(t *testing.T, err error) []string {
	t.Helper()
	var bad *operator.ContentError
	if !errors.As(err, &bad) {
		t.Fatalf("%v is no ContentError", err)
	}
	var fields []string
	for _, p := range bad.Problems {
		fields = append(fields, p.Field)
		if p.Message == "" || !slices.ContainsFunc(grant.Codes(), func(c grant.CodeInfo) bool { return c.Code == p.Code }) {
			t.Errorf("%+v", p)
		}
		if !strings.Contains(err.Error(), p.Field+": "+p.Message) {
			t.Errorf("%v does not tell of %s", err, p.Field)
		}
	}
	slices.Sort(fields)
	return fields
}

func TestBadContentsAreAllListedByTheirFields(t *testing.T) {
	for name, c := range map[string]struct {
		content operator.Content
		want    []string
	}{
		"nothing in it":               {operator.Content{}, []string{"name", "type"}},
		"an unknown type":             {operator.Content{Name: "a", Type: "smb"}, []string{"type"}},
		"a type in capitals":          {operator.Content{Name: "a", Type: "Git"}, []string{"type"}},
		"an empty repository":         {operator.Content{Name: "a", Type: "git"}, []string{"revision", "url"}},
		"a branch":                    {operator.Content{Name: "a", Type: "git", URL: "https://h/r", Revision: "main"}, []string{"revision"}},
		"a short commit":              {operator.Content{Name: "a", Type: "git", URL: "https://h/r", Revision: commit[:39]}, []string{"revision"}},
		"two fields wrong":            {operator.Content{Name: "a", Type: "git", URL: "file:///etc", Revision: "HEAD"}, []string{"revision", "url"}},
		"every field wrong":           {operator.Content{Target: "/", Type: "git", URL: "x", Revision: "x", Mode: "x"}, []string{"mode", "revision", "target", "url"}},
		"neither claim nor server":    {operator.Content{Name: "a", Type: "nfs"}, []string{"subPath"}},
		"a sub-path that leads out":   {operator.Content{Name: "a", Type: "nfs", SubPath: "data/../home"}, []string{"subPath"}},
		"a path of no server":         {operator.Content{Name: "a", Type: "nfs", Path: "/srv"}, []string{"server"}},
		"a claim and a server":        {operator.Content{Name: "a", Type: "nfs", Server: "h", Path: "/a", SubPath: "b"}, []string{"subPath"}},
		"a server and a path wrong":   {operator.Content{Name: "a", Type: "nfs", Server: "h h", Path: "a"}, []string{"path", "server"}},
		"a private export":            {operator.Content{Name: "a", Type: "nfs", Server: "h", Path: "/a", Private: true}, []string{"private"}},
		"no bucket":                   {operator.Content{Name: "a", Type: "s3", Prefix: "p"}, []string{"bucket"}},
		"a bucket with a prefix":      {operator.Content{Name: "a", Type: "s3", Bucket: "b/p"}, []string{"bucket"}},
		"a bucket and a prefix wrong": {operator.Content{Name: "a", Type: "s3", Bucket: "s3://b", Prefix: "../c"}, []string{"bucket", "prefix"}},
		"fields of another type": {
			operator.Content{Name: "a", Type: "s3", Bucket: "b", URL: "https://h/r", Revision: commit, Server: "h", Path: "/p", SubPath: "s"},
			[]string{"path", "revision", "server", "subPath", "url"},
		},
		"fields of a bucket": {operator.Content{Name: "a", Type: "git", URL: "https://h/r", Revision: commit, Bucket: "b", Prefix: "p"}, []string{"bucket", "prefix"}},
		"an unknown mode":    {operator.Content{Name: "a", Type: "nfs", SubPath: "s", Mode: "wr"}, []string{"mode"}},
	} {
		// The second of two, so that its number is in the field.
		got, err := operator.Contents([]operator.Content{dataset("good"), c.content}, everything())
		want := make([]string, len(c.want))
		for i, f := range c.want {
			want[i] = "contents[1]." + f
		}
		if fields := badFields(t, err); !slices.Equal(fields, want) {
			t.Errorf("%s: %v, want %v\n%v", name, fields, want, err)
		}
		if len(got.Mounts)+len(got.Secrets)+len(got.Unserved) != 0 {
			t.Errorf("%s: granted %+v", name, got)
		}
	}
	l := everything()
	l.Mode = "readwrite"
	_, err := operator.Contents([]operator.Content{{Type: "git"}, dataset("good"), {Type: "s3"}}, l)
	want := []string{"contents[0].name", "contents[0].revision", "contents[0].url", "contents[2].bucket", "contents[2].name", "launch.mode"}
	if fields := badFields(t, err); !slices.Equal(fields, want) {
		t.Errorf("%v, want %v", fields, want)
	}
}

func TestAProblemNeverRepeatsACredential(t *testing.T) {
	for _, c := range []operator.Content{
		{Name: "a", Type: "git", URL: "https://user:hunter2@h/r", Revision: commit},
		{Name: "a", Type: "git", URL: "https://h/r", Revision: "https://user:hunter2@h"},
		{Name: "a", Type: "nfs", Server: "user:hunter2@h", Path: "/a"},
		{Name: "a", Type: "nfs", Server: "h", Path: "user:hunter2@h"},
		{Name: "a", Type: "nfs", SubPath: "user:hunter2@h/.."},
		{Name: "a", Type: "s3", Bucket: "AKIA:hunter2@b"},
		{Name: "a", Type: "s3", Bucket: "b", Prefix: "../k?token=hunter2"},
		{Name: "a", Type: "https://user:hunter2@h"},
		{Name: "hunter2/é", Type: "nfs", SubPath: "s"},
		{Target: "user:hunter2@h", Type: "nfs", SubPath: "s"},
		{Name: "a", Type: "nfs", SubPath: "s", Mode: "hunter2"},
		{Name: "a", Type: "nfs", SubPath: "s", URL: "https://user:hunter2@h"},
	} {
		_, err := operator.Contents([]operator.Content{c}, everything())
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), "hunter2") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestANameBecomesAValidTargetOrIsRefused(t *testing.T) {
	for name, want := range map[string]string{
		"penguins":               "penguins",
		" NYC Taxi (2020) ":      "NYC-Taxi--2020",
		"a.b_c-d":                "a.b_c-d",
		".hidden":                "hidden",
		"--flag":                 "flag",
		"_x":                     "_x",
		"a@b":                    "a-b",
		strings.Repeat("a", 127): strings.Repeat("a", 127),
		strings.Repeat("a", 128): "",
		"":                       "",
		" ":                      "",
		"...":                    "",
		"!!!":                    "",
		"a/b":                    "",
		"../etc":                 "",
		"a\\b":                   "",
		"a\nb":                   "",
		"a\x00b":                 "",
		"données":                "",
		"データ 1":                  "",
		"\xff":                   "",
	} {
		c := dataset("x")
		c.Name, c.Target = name, ""
		got, err := operator.Contents([]operator.Content{c}, everything())
		if want == "" {
			if fields := badFields(t, err); !slices.Equal(fields, []string{"contents[0].name"}) {
				t.Errorf("%q: %v", name, fields)
			}
			continue
		}
		if err != nil || got.Mounts[0].Target != want || got.Mounts[0].UID != strings.TrimSpace(name) {
			t.Errorf("%q: %+v, %v, want %q", name, got.Mounts, err, want)
		}
	}
	// A target that is given is taken as it is, and so the name may be anything.
	c := dataset("x")
	c.Name, c.Target = "データ", " data "
	if got := granted(t, everything(), c)[0]; got.Target != "data" || got.UID != "データ" {
		t.Errorf("%+v", got)
	}
	c.Target = "a b"
	_, err := operator.Contents([]operator.Content{c}, everything())
	if fields := badFields(t, err); !slices.Equal(fields, []string{"contents[0].target"}) {
		t.Error(fields)
	}
}

// Of equal targets a set has the first alone: the second would be missing from the
// sandbox without a word.
func TestTwoContentsOfOneTargetAreRefused(t *testing.T) {
	named := dataset("x")
	named.Name, named.Target = "my data", ""
	_, err := operator.Contents([]operator.Content{dataset("a"), dataset("my-data"), named, bucket("a")}, everything())
	if fields := badFields(t, err); !slices.Equal(fields, []string{"contents[2].name", "contents[3].target"}) {
		t.Errorf("%v", fields)
	}
	l := everything()
	l.Beside = []grant.Mount{home("ada")}
	_, err = operator.Contents([]operator.Content{dataset("b"), dataset("ada")}, l)
	if fields := badFields(t, err); !slices.Equal(fields, []string{"contents[1].target"}) {
		t.Errorf("beside a home folder: %v", fields)
	}
	// One that is wrong in something else still has its target.
	bad := dataset("a")
	bad.SubPath = ".."
	_, err = operator.Contents([]operator.Content{bad, dataset("a")}, everything())
	if fields := badFields(t, err); !slices.Equal(fields, []string{"contents[0].subPath", "contents[1].target"}) {
		t.Errorf("%v", fields)
	}
}

func TestContentsAreGrantedToALaunchWithoutFoldersAndBringNoHomeFolder(t *testing.T) {
	l := everything()
	contents := []operator.Content{repository("tutorial"), dataset("penguins")}
	alone := granted(t, l, contents...)
	l.Beside = []grant.Mount{home("ada")}
	beside := granted(t, l, contents...)
	if !slices.Equal(alone, beside) {
		t.Errorf("without folders %+v, with one %+v", alone, beside)
	}
	for _, m := range alone {
		if m.Kind == grant.KindFiles {
			t.Errorf("a home folder: %+v", m)
		}
	}
	if none, err := operator.Contents(nil, l); err != nil || len(none.Mounts) != 0 {
		t.Errorf("no contents came to %+v, %v", none, err)
	}
}

func TestAContentThatIsNotServedIsReturnedForTheLaunchToDecide(t *testing.T) {
	l := everything()
	private := repository("private")
	private.Private = true
	contents := []operator.Content{repository("public"), dataset("data"), export("export"), bucket("bucket"), private}
	for name, c := range map[string]struct {
		serves      []grant.Kind
		credentials bool
		mounts      []string
		codes       map[string]grant.Code
	}{
		"binds alone": {
			[]grant.Kind{grant.KindSharedFolder},
			true,
			[]string{"data"},
			map[string]grant.Code{"public": grant.CodeUnsupportedKind, "export": grant.CodeUnsupportedKind, "bucket": grant.CodeProcessUnsupported, "private": grant.CodeUnsupportedKind},
		},
		"all but Secrets": {
			l.Serves, false,
			[]string{"public", "data", "export"},
			map[string]grant.Code{"bucket": grant.CodeSecretRefused, "private": grant.CodeSecretRefused},
		},
		"all": {l.Serves, true, []string{"public", "data", "export", "bucket", "private"}, nil},
	} {
		l.Serves, l.Credentials = c.serves, c.credentials
		got, err := operator.Contents(contents, l)
		must(t, err)
		var mounts []string
		for _, m := range got.Mounts {
			mounts = append(mounts, m.Target)
		}
		if !slices.Equal(mounts, c.mounts) || len(got.Unserved) != len(c.codes) {
			t.Errorf("%s: %+v", name, got)
		}
		for _, u := range got.Unserved {
			if u.Refusal.Code != c.codes[u.Refusal.Key] || contents[u.Index].Target != u.Refusal.Key || u.Refusal.Message == "" || u.Kind == "" {
				t.Errorf("%s: %+v", name, u)
			}
		}
		for _, s := range got.Secrets {
			if !slices.Contains(mounts, s.Target) {
				t.Errorf("%s: a Secret for what is not granted: %+v", name, s)
			}
		}
	}
}

func TestASecretOfAContentIsNamedAfterItsPodAndItsTarget(t *testing.T) {
	l := everything()
	private := repository("Private_1")
	private.Private = true
	got, err := operator.Contents([]operator.Content{repository("public"), private, bucket("b")}, l)
	must(t, err)
	if len(got.Secrets) != 2 || got.Secrets[0].Index != 1 || got.Secrets[0].Name != got.Mounts[1].Secret || got.Secrets[1].Name != got.Mounts[2].Secret {
		t.Errorf("%+v", got)
	}
	other := l
	other.Pod.UID = "uid-2"
	again, err := operator.Contents([]operator.Content{private}, l)
	must(t, err)
	elsewhere, err := operator.Contents([]operator.Content{private}, other)
	must(t, err)
	if again.Secrets[0].Name != got.Secrets[0].Name || elsewhere.Secrets[0].Name == got.Secrets[0].Name || got.Secrets[0].Name == got.Secrets[1].Name {
		t.Errorf("%+v, again %+v, elsewhere %+v", got.Secrets, again.Secrets, elsewhere.Secrets)
	}
	l.Pod.UID = ""
	if got, err := operator.Contents([]operator.Content{private}, l); err == nil {
		t.Errorf("without a uid: %+v", got)
	}
	granted(t, l, repository("public"))
}
