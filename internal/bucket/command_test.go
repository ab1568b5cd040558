package bucket_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/bucket"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

const canary = "canary-91f0d3"

func settings() bucket.Settings {
	return bucket.Settings{Program: "/usr/lib/node-mounts/node-mounts-s3", Region: "eu-west-1", Owner: beneath.Owner{UID: 1000, GID: 100}}
}

// mount is a grant as a plan has it.
func mount(t *testing.T, kind grant.Kind, source string, mode grant.Mode) plan.Mount {
	t.Helper()
	m, err := grant.Clean(grant.Mount{Kind: kind, Source: source, Target: "t", Mode: mode, AllowExec: true, Secret: "the-secret"})
	if err != nil {
		t.Fatal(err)
	}
	p := plan.Build(grant.Set{Mounts: []grant.Mount{m}}, plan.Policy{Serves: map[grant.Kind]bool{kind: true}, Credentials: true})
	if len(p.Mounts) != 1 {
		t.Fatalf("%+v", p)
	}
	return p.Mounts[0]
}

func bucketAt(t *testing.T, source string) plan.Mount {
	t.Helper()
	return mount(t, grant.KindCloudStorage, source, grant.ReadWrite)
}

// session is one whose keys are canaries, with other keys beside them.
func session(t *testing.T, more ...string) awscreds.Session {
	t.Helper()
	values := map[string][]byte{
		"access-key-id": []byte("ID" + canary), "secret-access-key": []byte("KEY" + canary), "session-token": []byte("TOKEN" + canary),
		"expiration": []byte(time.Now().Add(time.Hour).Format(time.RFC3339)),
	}
	for i := 0; i < len(more); i += 2 {
		values[more[i]] = []byte(more[i+1])
	}
	s, err := awscreds.Parse(secret.NewData(values), "the-secret")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func place() bucket.Place {
	return bucket.Place{Cache: "/cache/one", CredentialsURL: "http://127.0.0.1:4567/credentials", Token: "the-token"}
}

func certificate(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func TestEachProgramIsGivenWhatItUnderstands(t *testing.T) {
	base := func(change func(*bucket.Settings)) bucket.Settings {
		s := settings()
		if change != nil {
			change(&s)
		}
		return s
	}
	mountS3 := func(change func(*bucket.Settings)) bucket.Settings {
		return base(func(s *bucket.Settings) {
			s.Program, s.MountS3 = "/usr/bin/mount-s3", true
			if change != nil {
				change(s)
			}
		})
	}
	all := func(s *bucket.Settings) {
		s.EndpointURL, s.PathStyle, s.CacheSize, s.Memory = "https://minio.example.org:9000/", true, 3<<30+5, 1<<30
	}
	for what, c := range map[string]struct {
		settings bucket.Settings
		source   string
		mode     grant.Mode
		session  awscreds.Session
		at       bucket.Place
		want     string
	}{
		"the least": {
			base(nil), "photos", grant.ReadWrite, session(t),
			bucket.Place{},
			"node-mounts-s3 --fuse-fd=3 --bucket=photos --region=eu-west-1 --uid=1000 --gid=100",
		},
		"everything": {
			base(all), "photos/2026/spring", grant.ReadOnly, session(t), place(),
			"node-mounts-s3 --fuse-fd=3 --bucket=photos --prefix=2026/spring/ --region=eu-west-1 --endpoint-url=https://minio.example.org:9000 --path-style" +
				" --read-only --uid=1000 --gid=100 --cache-dir=/cache/one --cache-size=3221225477 --memory=1073741824",
		},
		"the Secret's region and endpoint come first": {
			base(all), "photos", grant.ReadWrite, session(t, "region", "us-west-2", "endpoint-url", "https://S3.Example.com"),
			bucket.Place{},
			"node-mounts-s3 --fuse-fd=3 --bucket=photos --region=us-west-2 --endpoint-url=https://s3.example.com --path-style --uid=1000 --gid=100 --memory=1073741824",
		},
		"AWS needs no path style": {
			base(all), "photos", grant.ReadWrite, session(t, "endpoint-url", "https://s3.eu-west-1.amazonaws.com"),
			bucket.Place{},
			"node-mounts-s3 --fuse-fd=3 --bucket=photos --region=eu-west-1 --endpoint-url=https://s3.eu-west-1.amazonaws.com --uid=1000 --gid=100 --memory=1073741824",
		},
		"an address needs it always": {
			base(nil), "photos", grant.ReadWrite, session(t, "endpoint-url", "https://[2001:db8::7]:9000"),
			bucket.Place{},
			"node-mounts-s3 --fuse-fd=3 --bucket=photos --region=eu-west-1 --endpoint-url=https://[2001:db8::7]:9000 --path-style --uid=1000 --gid=100",
		},
		"a server that knows no regions": {
			base(func(s *bucket.Settings) { s.Region = "" }), "photos", grant.ReadWrite, session(t, "endpoint-url", "https://s3.example.com/storage/v1"),
			bucket.Place{},
			"node-mounts-s3 --fuse-fd=3 --bucket=photos --region=us-east-1 --endpoint-url=https://s3.example.com/storage/v1 --uid=1000 --gid=100",
		},
		"mount-s3, the least": {
			mountS3(nil), "photos", grant.ReadWrite, session(t),
			bucket.Place{},
			"mount-s3 photos /dev/fd/3 --foreground --allow-other --region=eu-west-1 --allow-delete --allow-overwrite --uid=1000 --gid=100",
		},
		"mount-s3, everything": {
			mountS3(all), "photos/2026/spring", grant.ReadOnly, session(t), place(),
			"mount-s3 photos /dev/fd/3 --foreground --allow-other --region=eu-west-1 --prefix=2026/spring/ --endpoint-url=https://minio.example.org:9000" +
				" --force-path-style --uid=1000 --gid=100 --cache=/cache/one --max-cache-size=3072 --memory-target=768",
		},
	} {
		if err := c.settings.Check(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		got, err := c.settings.Command(mount(t, grant.KindCloudStorage, c.source, c.mode), c.session, c.at)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if text := strings.Join(got.Args, " "); text != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", what, text, c.want)
		}
		if len(got.Files) != 0 {
			t.Errorf("%s: %d files", what, len(got.Files))
		}
	}
}

func TestTheEnvironmentIsMadeFromNothing(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_PROFILE", "HTTPS_PROXY", "HOME", "LD_PRELOAD"} {
		t.Setenv(name, canary)
	}
	got, err := settings().Command(bucketAt(t, "photos"), session(t, "region", "us-west-2"), place())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:4567/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN=the-token",
		"AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_REGION=us-west-2",
	}
	if !slices.Equal(got.Env, want) {
		t.Errorf("%q", got.Env)
	}
	s := settings()
	s.Proxy = "http://proxy.example.org:3128"
	got, err = s.Command(bucketAt(t, "photos"), session(t), place())
	if err != nil {
		t.Fatal(err)
	}
	if want := "NODE_MOUNTS_S3_PROXY=" + s.Proxy; !slices.Contains(got.Env, want) {
		t.Errorf("%q has no %s", got.Env, want)
	}
	if strings.Contains(strings.Join(got.Args, " "), s.Proxy) {
		t.Errorf("%q: a proxy may have a password, and arguments are for all to read", got.Args)
	}
}

func closeFiles(c bucket.Command) {
	for _, f := range c.Files {
		f.Close()
	}
}

// Whatever else is asked for, what can be seen in /proc has nothing of the session,
// and arguments have nothing of the token.
func TestNoArgumentAndNoVariableHasTheSession(t *testing.T) {
	ca := certificate(t)
	for _, mountS3 := range []bool{false, true} {
		for _, endpoint := range []string{"", "https://s3.example.org"} {
			s := settings()
			s.MountS3, s.CA, s.Memory, s.CacheSize = mountS3, ca, 2<<30, 1<<30
			got, err := s.Command(bucketAt(t, "photos/x"), session(t, "region", "r", "endpoint-url", endpoint), place())
			if err != nil {
				t.Fatal(err)
			}
			closeFiles(got)
			if text := fmt.Sprint(got.Args, got.Env); strings.Contains(text, canary) {
				t.Errorf("%s", text)
			}
			if text := strings.Join(got.Args, " "); strings.Contains(text, "the-token") {
				t.Errorf("%s", text)
			}
		}
	}
}

func TestABucketIsWhatIsBeforeTheFirstSlash(t *testing.T) {
	for source, want := range map[string][2]string{
		"photos":                {"photos", ""},
		"photos/":               {"photos", ""},
		"/photos//2026/":        {"photos", "2026/"},
		"photos/a b/c":          {"photos", "a b/c/"},
		"photos/-rf":            {"photos", "-rf/"},
		"photos/--region=x":     {"photos", "--region=x/"},
		`photos/it's "so" 100%`: {"photos", `it's "so" 100%/`},
		"photos/%2e%2e/x":       {"photos", "%2e%2e/x/"},
		"photos/...":            {"photos", ".../"},
		"photos/a=b,c;d$e":      {"photos", "a=b,c;d$e/"},
		"photos/été/日本":         {"photos", "été/日本/"},
		"photos/s3://other/x":   {"photos", "s3:/other/x/"},
		"my.bucket_x-1/x":       {"my.bucket_x-1", "x/"},
	} {
		m := bucketAt(t, source)
		for _, mountS3 := range []bool{false, true} {
			s := settings()
			s.MountS3 = mountS3
			got, err := s.Command(m, session(t), bucket.Place{})
			if err != nil {
				t.Errorf("%q: %v", source, err)
				continue
			}
			name, at := "--bucket="+want[0], 2
			if mountS3 {
				name, at = want[0], 1
			}
			if got.Args[at] != name {
				t.Errorf("%q: the bucket is %q", source, got.Args[at])
			}
			i := slices.IndexFunc(got.Args, func(a string) bool { return strings.HasPrefix(a, "--prefix") })
			if want[1] == "" && i >= 0 || want[1] != "" && (i < 0 || got.Args[i] != "--prefix="+want[1]) {
				t.Errorf("%q: %q, want the prefix %q", source, got.Args, want[1])
			}
		}
	}
}

func TestASourceThatIsNoBucketIsRefused(t *testing.T) {
	for what, m := range map[string]plan.Mount{
		"a folder":      mount(t, grant.KindFiles, "photos", grant.ReadWrite),
		"a long prefix": bucketAt(t, "photos/"+strings.Repeat(strings.Repeat("x", 200)+"/", 6)),
	} {
		_, err := settings().Command(m, session(t), place())
		if _, ok := errors.AsType[*bucket.SourceError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := settings().Command(bucketAt(t, "photos/"+strings.Repeat("x/", 511)), session(t), place()); err != nil {
		t.Errorf("a prefix of 1,022 bytes: %v", err)
	}
}

func TestWithoutARegionTheSecretIsToldToHaveOne(t *testing.T) {
	s := settings()
	s.Region = ""
	for _, endpoint := range []string{"", "https://s3.amazonaws.com"} {
		_, err := s.Command(bucketAt(t, "photos"), session(t, "endpoint-url", endpoint), place())
		if refused, ok := errors.AsType[*secret.RefusedError](err); !ok || !strings.Contains(refused.Reason, `"region"`) {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

func TestCertificatesArePassedAsAFileThatNobodyCanChange(t *testing.T) {
	ca := certificate(t)
	for _, mountS3 := range []bool{false, true} {
		s := settings()
		s.MountS3, s.CA = mountS3, ca
		got, err := s.Command(bucketAt(t, "photos"), session(t), place())
		if err != nil {
			t.Fatal(err)
		}
		defer closeFiles(got)
		told := slices.Contains(got.Args, "--ca-file=/proc/self/fd/4")
		if mountS3 {
			told = slices.Contains(got.Env, "AWS_CA_BUNDLE=/proc/self/fd/4")
		}
		if !told || len(got.Files) != 1 {
			t.Fatalf("%q %q, %d files", got.Args, got.Env, len(got.Files))
		}
		if _, err := got.Files[0].WriteAt([]byte("x"), 0); !errors.Is(err, syscall.EPERM) {
			t.Errorf("written to: %v", err)
		}
		if err := got.Files[0].Truncate(0); !errors.Is(err, syscall.EPERM) {
			t.Errorf("cut off: %v", err)
		}
		// The program is another user, and opens it by its path more than once.
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		cat := exec.Command("cat", "/proc/self/fd/4", "/proc/self/fd/4")
		cat.ExtraFiles = append([]*os.File{null}, got.Files...)
		cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{}}}
		out, err := cat.CombinedOutput()
		if err != nil || string(out) != string(ca)+string(ca) {
			t.Errorf("%v: %q", err, out)
		}
	}
}

func TestSettingsThatCannotWorkAreToldToWhoMadeThem(t *testing.T) {
	ca := certificate(t)
	for what, change := range map[string]func(*bucket.Settings){
		"no program":        func(s *bucket.Settings) { s.Program = "" },
		"root":              func(s *bucket.Settings) { s.Owner = beneath.Owner{} },
		"the group of root": func(s *bucket.Settings) { s.Owner.GID = 0 },
		"a tiny cache":      func(s *bucket.Settings) { s.CacheSize = 1 },
		"little memory":     func(s *bucket.Settings) { s.MountS3, s.Memory = true, 682<<20 },
		"a region":          func(s *bucket.Settings) { s.Region = "eu west" },
		"an endpoint":       func(s *bucket.Settings) { s.EndpointURL = "ftp://" + canary },
		"a proxy":           func(s *bucket.Settings) { s.Proxy = canary },
		"mount-s3's proxy":  func(s *bucket.Settings) { s.MountS3, s.Proxy = true, "http://proxy" },
		"no certificate":    func(s *bucket.Settings) { s.CA = []byte("x") },
		"a private key": func(s *bucket.Settings) {
			s.CA = append([]byte("-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"), ca...)
		},
		"a broken one": func(s *bucket.Settings) {
			s.CA = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		},
	} {
		s := settings()
		change(&s)
		if err := s.Check(); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s := settings()
	s.MountS3, s.Memory, s.CA, s.EndpointURL = true, 683<<20, ca, "http://10.0.0.7:9000"
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

func TestAProgramComesBackForItsSessionEveryMinute(t *testing.T) {
	s := settings()
	// That for Go asks 5 minutes before the end, mount-s3's runtime 10 seconds.
	if got := s.Lifetime() - 5*time.Minute; got != time.Minute {
		t.Errorf("after %s", got)
	}
	s.MountS3 = true
	if got := s.Lifetime() - 10*time.Second; got != time.Minute {
		t.Errorf("mount-s3 after %s", got)
	}
}
