package grant

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const commit = "3f2a9c0d5b7e41868d0c1f2b3a4d5e6f708192a3"

// valid returns a mount of a kind with a source that its rules accept.
func valid(kind Kind, source string) Mount {
	m := Mount{Kind: kind, Source: source, Target: "t", Mode: ReadWrite, AllowExec: true}
	if kind == KindGit {
		m.Revision = commit
	}
	return m
}

// sourceCase is a source and what it is cleaned to; "" means that it is refused.
type sourceCase struct {
	kind         Kind
	source, want string
}

func checkSources(t *testing.T, cases []sourceCase) {
	t.Helper()
	for _, c := range cases {
		m, err := Clean(valid(c.kind, c.source))
		var refusal *Refusal
		switch {
		case c.want != "" && err != nil:
			t.Errorf("%q %q: refused: %v", c.kind, c.source, err)
		case c.want != "" && m.Source != c.want:
			t.Errorf("%q %q: cleaned to %q, want %q", c.kind, c.source, m.Source, c.want)
		case c.want == "" && !errors.As(err, &refusal):
			t.Errorf("%q %q: accepted as %q", c.kind, c.source, m.Source)
		case c.want == "" && (refusal.Code != CodeInvalidSource || refusal.Key != "t"):
			t.Errorf("%q %q: %v", c.kind, c.source, err)
		}
	}
}

func TestASourceOnTheClaimStaysBeneathIt(t *testing.T) {
	segment := strings.Repeat("s", 255)
	checkSources(t, []sourceCase{
		{KindPlain, "a/b", "a/b"},
		{KindFiles, "//a///b//", "a/b"},
		{KindSharedFolder, " a ", "a"},
		{KindPlain, "\x1c\x1d\x1e\x1f\u0085\u00a0\u3000a\u2029", "a"},
		{KindPlain, "\u200ba\ufeff", "\u200ba\ufeff"},
		{KindPlain, "...", "..."},
		{KindPlain, "-rf", "-rf"},
		{KindPlain, "a\nb", "a\nb"},
		{KindPlain, "https://h/o", "https:/h/o"},
		{KindPlain, segment, segment},
		{KindPlain, segment + "s", ""},
		{KindPlain, strings.Repeat(segment+"/", 16), strings.Repeat(segment+"/", 15) + segment},
		{KindPlain, strings.Repeat(segment+"/", 16) + "ab", ""},
		{KindPlain, "", ""},
		{KindPlain, " /// ", ""},
		{KindPlain, "a/..", ""},
		{KindPlain, "./a", ""},
		{KindPlain, "a/ ..", "a/ .."},
		{KindPlain, "a\\b", ""},
		{KindPlain, "a\x00", ""},
		{KindPlain, "a\xff", ""},
	})
}

func TestAnNFSSourceIsAHostAndAnExport(t *testing.T) {
	checkSources(t, []sourceCase{
		{KindNFS, "h:/", "h:/"},
		{KindNFS, "h:/a//b//", "h:/a/b"},
		{KindNFS, "h:/a///b/c", "h:/a/b/c"},
		{KindNFS, "h://a", ""},
		{KindNFS, "nfs://h/a", ""},
		{KindNFS, "server-1.example_x.org.:/a", "server-1.example_x.org.:/a"},
		{KindNFS, "[2001:db8::7]:/a", "[2001:db8::7]:/a"},
		{KindNFS, "2001:db8::7:/a", ""},
		{KindNFS, "[2001:db8::7%eth0]:/a", ""},
		{KindNFS, "[10.0.0.1]:/a", ""},
		{KindNFS, "[::1:/a", ""},
		{KindNFS, "h", ""},
		{KindNFS, ":/a", ""},
		{KindNFS, "-h:/a", ""},
		{KindNFS, "h..x:/a", ""},
		{KindNFS, "h o:/a", ""},
		{KindNFS, "h:/a b", ""},
		{KindNFS, "h:/a\tb", ""},
		{KindNFS, "h:/a\x00b", ""},
		{KindNFS, "h:/./a", ""},
		{KindNFS, "h:/a\\040b", ""},
		{KindNFS, "h:/" + strings.Repeat("a/", 1100), ""},
		{KindNFS, strings.Repeat("h", 64) + ":/a", ""},
	})
}

func TestAGitSourceIsFetchedOverHTTPSOrSSH(t *testing.T) {
	checkSources(t, []sourceCase{
		{KindGit, "https://h.example:8443/o/r.git", "https://h.example:8443/o/r.git"},
		{KindGit, "https://h/o/r/", "https://h/o/r/"},
		{KindGit, "https://h/@o/r", "https://h/@o/r"},
		{KindGit, "https://h/my%20repo", "https://h/my%20repo"},
		{KindGit, "https://[::1]:1/r", "https://[::1]:1/r"},
		{KindGit, "git@h:/srv/r.git", "git@h:/srv/r.git"},
		{KindGit, "git@h:~u/r", "git@h:~u/r"},
	})
}

func TestAGitSourceReachesNoFileFlagOrOtherTransport(t *testing.T) {
	checkSources(t, []sourceCase{
		{KindGit, "HTTPS://h/o", ""},
		{KindGit, "https://git@h/o", ""},
		{KindGit, "https://h", ""},
		{KindGit, "https://h/", ""},
		{KindGit, "https://h//o", ""},
		{KindGit, "https://h:0/o", ""},
		{KindGit, "https://h:65536/o", ""},
		{KindGit, "https://h:/o", ""},
		{KindGit, "https://h/o?x=1", ""},
		{KindGit, "https://h/o#x", ""},
		{KindGit, "https://h/../o", ""},
		{KindGit, "https://h/o/%2e%2e/r", ""},
		{KindGit, "https://h/o%2f..%2fr", ""},
		{KindGit, "https://h/o%0ar", ""},
		{KindGit, "https://h/o%00r", ""},
		{KindGit, "https://h/o%5cr", ""},
		{KindGit, "https://h/%2d-upload-pack=x", ""},
		{KindGit, "https://h/o%zz", ""},
		{KindGit, "https://h/-o", ""},
		{KindGit, "https://-h/o", ""},
		{KindGit, "https://h%2d/o", ""},
		{KindGit, "https://h/a b", ""},
		{KindGit, "https://h/a\u2028b", ""},
		{KindGit, "https://h/a\\b", ""},
		{KindGit, "ssh://h/o", ""},
		{KindGit, "ssh://root@h/o", ""},
		{KindGit, "ssh://git@-oProxyCommand=id/o", ""},
		{KindGit, "ssh://git@git@h/o", ""},
		{KindGit, "git@-oProxyCommand=id:o", ""},
		{KindGit, "git@h:", ""},
		{KindGit, "git@h:-o", ""},
		{KindGit, "git@h:a/../b", ""},
		{KindGit, "git@h", ""},
		{KindGit, "root@h:o", ""},
		{KindGit, "git@h://o", ""},
		{KindGit, "/srv/repo", ""},
		{KindGit, "--upload-pack=id", ""},
		{KindGit, "https://h/" + strings.Repeat("a/", 1100), ""},
	})
}

func TestABucketSourceStartsWithABucket(t *testing.T) {
	checkSources(t, []sourceCase{
		{KindCloudStorage, "/b/", "b"},
		{KindCloudStorage, "b.u_c-k/a b/ü", "b.u_c-k/a b/ü"},
		{KindCloudStorage, "b/../c", ""},
		{KindCloudStorage, "--endpoint-url=x", ""},
		{KindCloudStorage, "bü/p", ""},
		{KindCloudStorage, "s3://b/p", ""},
		{KindCloudStorage, "", ""},
	})
}

func TestABridgeSourceIsOneUID(t *testing.T) {
	checkSources(t, []sourceCase{
		{KindLocalBridge, "01H.x_y-z", "01H.x_y-z"},
		{KindLocalBridge, "/01H/", "01H"},
		{KindLocalBridge, "a/b", ""},
		{KindLocalBridge, "-a", ""},
		{KindLocalBridge, "..", ""},
		{KindLocalBridge, "a b", ""},
		{KindLocalBridge, "", ""},
	})
}

func TestTheFieldsOfAMountAreTrimmedAndChecked(t *testing.T) {
	base := valid(KindFiles, "home/u")
	long := strings.Repeat("a", 127)
	for _, c := range []struct {
		name   string
		change func(*Mount)
		code   Code // "" means accepted
		key    string
	}{
		{"target of 127", func(m *Mount) { m.Target = long }, "", ""},
		{"target of 128", func(m *Mount) { m.Target = long + "a" }, CodeInvalidTarget, "#0"},
		{"no target", func(m *Mount) { m.Target = "" }, CodeInvalidTarget, "#0"},
		{"target not ASCII", func(m *Mount) { m.Target = "é" }, CodeInvalidTarget, "#0"},
		{"target that starts with an underscore", func(m *Mount) { m.Target = "_a.b-c" }, "", ""},
		{"target is looked at first", func(m *Mount) { m.Target, m.Kind = "/", "smb" }, CodeInvalidTarget, "#0"},
		{"kind before mode", func(m *Mount) { m.Kind, m.Mode = "smb", "x" }, CodeUnsupportedKind, "t"},
		{"kind in capitals", func(m *Mount) { m.Kind = "Files" }, CodeUnsupportedKind, "t"},
		{"kind with white space", func(m *Mount) { m.Kind = " files\n" }, "", ""},
		{"mode before source", func(m *Mount) { m.Mode, m.Source = "x", ".." }, CodeInvalidGrant, "t"},
		{"mode empty", func(m *Mount) { m.Mode = "" }, "", ""},
		{"mode of white space", func(m *Mount) { m.Mode = " " }, CodeInvalidGrant, "t"},
		{"source before secret", func(m *Mount) { m.Source, m.Secret = "..", "/" }, CodeInvalidSource, "t"},
		{"secret of 253", func(m *Mount) { m.Secret = strings.Repeat("a", 253) }, "", ""},
		{"secret of 254", func(m *Mount) { m.Secret = strings.Repeat("a", 254) }, CodeSecretRefused, "t"},
		{"secret with dots", func(m *Mount) { m.Secret = "0.a-b.c" }, "", ""},
		{"secret with an empty label", func(m *Mount) { m.Secret = "a..b" }, CodeSecretRefused, "t"},
		{"secret that ends in a hyphen", func(m *Mount) { m.Secret = "a-" }, CodeSecretRefused, "t"},
		{"secret with an underscore", func(m *Mount) { m.Secret = "a_b" }, CodeSecretRefused, "t"},
		{"revision without a use", func(m *Mount) { m.Revision = "v1" }, "", ""},
		{"revision that cannot be shown", func(m *Mount) { m.Revision = "a\nb" }, CodeInvalidSource, "t"},
		{"revision too long", func(m *Mount) { m.Revision = strings.Repeat("a", 129) }, CodeInvalidSource, "t"},
		{"invalid UTF-8 in the secret", func(m *Mount) { m.Secret = "\xff" }, CodeSecretRefused, "t"},
	} {
		m := base
		c.change(&m)
		_, err := Clean(m)
		var refusal *Refusal
		switch {
		case c.code == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.code != "" && !errors.As(err, &refusal):
			t.Errorf("%s: accepted", c.name)
		case c.code != "" && (refusal.Code != c.code || refusal.Key != c.key):
			t.Errorf("%s: %v, want %s under %s", c.name, err, c.code, c.key)
		}
	}
}

func TestARevisionIsOneFullCommit(t *testing.T) {
	for _, revision := range []string{"", "main", "HEAD", commit[:39], commit + "a", strings.ToUpper(commit), commit[:39] + "g"} {
		m := valid(KindGit, "https://h/o/r")
		m.Revision = revision
		var refusal *Refusal
		if _, err := Clean(m); !errors.As(err, &refusal) || refusal.Code != CodeInvalidSource {
			t.Errorf("revision %q: %v", revision, err)
		}
	}
}

func TestAUIDThatCannotBeShownIsDropped(t *testing.T) {
	for uid, want := range map[string]string{
		" u1 ":                   "u1",
		"é":                      "é",
		strings.Repeat("u", 128): strings.Repeat("u", 128),
		strings.Repeat("u", 129): "",
		"a\nb":                   "",
		"\xff":                   "",
	} {
		m := valid(KindFiles, "home/u")
		m.UID = uid
		cleaned, err := Clean(m)
		if err != nil || cleaned.UID != want {
			t.Errorf("uid %q became %q, %v", uid, cleaned.UID, err)
		}
	}
}

func TestCleaningACleanMountChangesNothing(t *testing.T) {
	for _, source := range []string{"a", " /a/ /b /", "/ a", "/ /"} {
		once, err := Clean(valid(KindPlain, source))
		if err != nil {
			t.Fatal(err)
		}
		twice, err := Clean(once)
		if err != nil || twice != once {
			t.Errorf("%q: %+v, then %+v, %v", source, once, twice, err)
		}
	}
}

func TestASourceChangedAfterCleaningIsTrimmedAgain(t *testing.T) {
	m, err := Clean(valid(KindPlain, "/a /"))
	if err != nil || m.Source != "a " {
		t.Fatalf("%+v, %v", m, err)
	}
	m.Source = "b "
	if m, err = Clean(m); err != nil || m.Source != "b" {
		t.Errorf("%+v, %v", m, err)
	}
	m, err = Clean(valid(KindCloudStorage, "/b/p /"))
	if err != nil || m.Source != "b/p " {
		t.Fatalf("%+v, %v", m, err)
	}
	m.Kind = KindNFS
	if _, err = Clean(m); err == nil {
		t.Error("a bucket was accepted as an export")
	}
}

func TestAMessageNeverRepeatsCredentials(t *testing.T) {
	for _, m := range []Mount{
		valid(KindGit, "https://user:hunter2@h.example/o/r"),
		valid(KindGit, "https://user:hun?ter2@h.example/o/r"),
		valid(KindGit, "http://user:hunter2@h.example/o/r"),
		valid(KindGit, "user:hunter2@h.example/o/r"),
		valid(KindGit, "ssh://git:hunter2@h.example/o/r"),
		valid(KindGit, "https://h.example/o/r?token=hunter2"),
		valid(KindGit, "https://h.example/o/r#hunter2"),
		valid(KindNFS, "https://user:hunter2@h.example/o/r"),
		valid(KindCloudStorage, "https://user:hunter2@h.example/o/r"),
		valid(KindPlain, "https://user:hunter2@h.example/../r"),
		valid(KindNFS, "user:hunter2@h:/x"),
		valid(KindNFS, "hunter2%40h"),
		valid(KindPlain, "user:hunter2@h/../x"),
		valid(KindPlain, "user:hunter2/../x"),
		valid(KindFiles, "//h/share?password=hunter2/.."),
		valid(KindCloudStorage, "b/AKIA:hunter2@/../x"),
		valid(KindCloudStorage, "b/"+strings.Repeat("x", 20)+"hunter2"+strings.Repeat("x", 60)+"/../x"),
		valid(KindLocalBridge, "bridge=hunter2&x"),
		{Target: "t", Kind: "https://user:hunter2@h", Source: "a"},
		{Target: "https://user:hunter2@h", Source: "a"},
		{Target: "t", Source: "a", Mode: "user:hunter2@"},
		{Target: "t", Source: "a", Secret: "Hunter2-hunter2!"},
		{Target: "t", Kind: KindGit, Source: "https://h/o/r", Revision: "https://user:hunter2@h"},
		{Target: "t", Source: "a", Revision: "é?token=hunter2"},
	} {
		_, err := Clean(m)
		if err == nil {
			t.Errorf("%q %q: accepted", m.Kind, m.Source)
			continue
		}
		if strings.Contains(strings.ToLower(err.Error()), "hunter2") || strings.Contains(err.Error(), "ter2") {
			t.Errorf("%q %q: %v", m.Kind, m.Source, err)
		}
	}
}

func TestAMessageRepeatsWhatIsPlainlyAPath(t *testing.T) {
	for _, source := range []string{"../etc", "home/../x", "a\\b"} {
		if _, err := Clean(valid(KindFiles, source)); err == nil || !strings.Contains(err.Error(), quote(source)) {
			t.Errorf("%q: %v", source, err)
		}
	}
}

func TestAMessageRepeatsABoundedPartOfItsInput(t *testing.T) {
	for _, text := range []string{strings.Repeat("\x01", 4096), strings.Repeat("é", 4096), strings.Repeat("\U0010fffe", 4096)} {
		for _, m := range []Mount{
			{Target: text},
			{Target: "t", Kind: Kind(text)},
			{Target: "t", Source: text, Mode: Mode(text)},
			{Target: "t", Source: text + "/.."},
			{Target: "t", Source: "a", Revision: text},
			{Target: "t", Source: "a", Secret: text},
		} {
			_, err := Clean(m)
			if err == nil {
				t.Fatalf("accepted: %.100s", fmt.Sprint(m))
			}
			if got := err.Error(); len(got) > 700 || strings.ContainsAny(got, "\x00\x01\n") {
				t.Errorf("%d bytes: %.100q", len(got), got)
			}
		}
	}
}
