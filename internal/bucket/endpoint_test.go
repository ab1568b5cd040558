package bucket_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/internal/bucket"
	"github.com/datalayer/node-mounts/internal/secret"
)

// endpointOf is the endpoint that the program would be given, and the error.
func endpointOf(t *testing.T, s bucket.Settings, url string) (string, error) {
	t.Helper()
	got, err := s.Command(bucketAt(t, "photos"), session(t, "endpoint-url", url), place())
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(got.Args, func(a string) bool { return strings.HasPrefix(a, "--endpoint-url=") })
	if i < 0 {
		t.Fatalf("%q", got.Args)
	}
	return strings.TrimPrefix(got.Args[i], "--endpoint-url="), nil
}

func TestAnEndpointIsPassedAsItWasLookedAt(t *testing.T) {
	for url, want := range map[string]string{
		"https://s3.example.org":                     "https://s3.example.org",
		"HTTPS://S3.Example.ORG.:443/":               "https://s3.example.org:443",
		"https://minio.storage.svc:9000":             "https://minio.storage.svc:9000",
		"https://10.20.30.40":                        "https://10.20.30.40",
		"https://[2001:DB8::1]":                      "https://[2001:db8::1]",
		"https://x.supabase.co/storage/v1/s3/":       "https://x.supabase.co/storage/v1/s3",
		"https://account.r2.cloudflarestorage.com//": "https://account.r2.cloudflarestorage.com",
		"https://localhostess.example.org":           "https://localhostess.example.org",
		"https://kubernetes.example.org":             "https://kubernetes.example.org",
		"https://2026.example.org":                   "https://2026.example.org",
	} {
		if got, err := endpointOf(t, settings(), url); err != nil || got != want {
			t.Errorf("%s: %q %v", url, got, err)
		}
	}
}

func TestASecretCannotTurnTheProgramOnTheNode(t *testing.T) {
	s := settings()
	s.Endpoints.Deny = []netip.Prefix{netip.MustParsePrefix("10.96.0.1/32"), netip.MustParsePrefix("192.168.7.0/24")}
	for _, url := range []string{
		// Loopback, in all its spellings.
		"https://localhost", "https://LOCALHOST.", "https://a.localhost", "https://127.0.0.1", "https://127.9.9.9:9443", "https://[::1]",
		"https://127.1", "https://2130706433", "https://0x7f000001", "https://0x7f.0.0.1", "https://0177.0.0.1", "https://127.0.0.1.", "https://0",
		"https://0.0.0.0", "https://[::]", "https://[::ffff:127.0.0.1]", "https://[::ffff:7f00:1]", "https://[::127.0.0.1]", "https://[64:ff9b::7f00:1]", "https://[2002:7f00:1::]",
		"https://[64:ff9b:1::7f00:1]", "https://[64:ff9b:1:7f00:0:100::]", "https://[::ffff:0:7f00:1]", "https://[64:ff9b:1::a9fe:a9fe]", "https://[fec0::1]", "https://[64:ff9b:1::a60:1]",
		"https://ip6-localhost", "https://localhost.localdomain",
		// Metadata services, and the link.
		"https://169.254.169.254", "https://169.254.170.2/v2/credentials", "https://[fe80::1]", "https://[fe80::1%25eth0]", "https://[fd00:ec2::254]", "https://[fd20:ce::254]",
		"https://metadata.google.internal", "https://100.100.100.200", "https://168.63.129.16", "https://[::ffff:a9fe:a9fe]", "https://[64:ff9b::a9fe:a9fe]",
		"https://2852039166", "https://0xa9fea9fe", "https://224.0.0.1", "https://255.255.255.255",
		// The API server, and what the administrator denies.
		"https://10.96.0.1", "https://[::ffff:10.96.0.1]", "https://[64:ff9b::a60:1]", "https://kubernetes", "https://kubernetes.default", "https://kubernetes.default.svc:443",
		"https://Kubernetes.Default.svc.cluster.local", "https://192.168.7.20:10250",
		// No TLS, no S3, nothing that two readers could read differently.
		"http://s3.example.org", "http://10.0.0.7:9000", "ftp://s3.example.org", "file:///etc/passwd", "s3.example.org", "//s3.example.org", "https:s3.example.org", "https://", "https:///x",
		"https://user:" + canary + "@s3.example.org", "https://s3.example.org@127.0.0.1", "https://127.0.0.1#@s3.example.org", `https://127.0.0.1\@s3.example.org`,
		"https://s3.example.org?x=" + canary, "https://s3.example.org?", "https://s3.example.org#", "https://s3.example.org:0", "https://s3.example.org:65536", "https://s3.example.org:",
		"https://s3.example.org:https", "https://s3.example.org/../x", "https://s3.example.org/%2e%2e/x", "https://s3.example.org/a//b", "https://s3.exa%6dple.org", "https://s3..org",
		"https://-s3.example.org", "https://s3.é.org", "https://１２７.0.0.1", "https://[::1", "https://" + strings.Repeat("a.", 130) + "org", "https://s3.org/" + strings.Repeat("x", 2048),
	} {
		got, err := endpointOf(t, s, url)
		refused, ok := errors.AsType[*secret.RefusedError](err)
		if !ok || !strings.Contains(refused.Reason, "endpoint-url") || !strings.Contains(refused.Reason, "the-secret") {
			t.Errorf("%s: %q %v", url, got, err)
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%s: repeated: %v", url, err)
		}
	}
}

func TestTheAdministratorMayAllowWhatIsRefused(t *testing.T) {
	s := settings()
	s.Endpoints = bucket.Endpoints{
		Insecure: true, Allow: []string{"127.0.0.1:9000", "minio.localhost", "::1", "[fd00:ec2::254]:443"},
		Deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}
	for url, allowed := range map[string]bool{
		"http://s3.example.org":      true,
		"http://127.0.0.1:9000":      true,
		"https://127.0.0.1:9000":     true,
		"https://127.0.0.1":          false,
		"https://127.0.0.1:9001":     false,
		"https://minio.localhost":    true,
		"https://minio.localhost:99": true,
		"http://[::1]:7":             true,
		"https://[fd00:ec2::254]":    true,
		"http://[fd00:ec2::254]":     false,
		"https://10.0.0.1":           false,
		"ftp://127.0.0.1:9000":       false,
	} {
		if _, err := endpointOf(t, s, url); (err == nil) != allowed {
			t.Errorf("%s: %v", url, err)
		}
	}
	// What the node's own settings say is the administrator's word already.
	s = settings()
	s.EndpointURL = "http://127.0.0.1:9000"
	got, err := s.Command(bucketAt(t, "photos"), session(t), place())
	if err != nil || !slices.Contains(got.Args, "--endpoint-url=http://127.0.0.1:9000") {
		t.Errorf("%q %v", got.Args, err)
	}
}

func FuzzAnEndpointThatPassesIsReadTheSameAgain(f *testing.F) {
	for _, s := range []string{"https://s3.example.org:9000/x", "https://[::1]", "https://127.1", "https://a@b/../c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, url string) {
		if strings.ContainsFunc(url, func(r rune) bool { return r <= ' ' || r >= 0x7f }) || url == "" {
			return // refused before, by the Secret's reader
		}
		once, err := endpointOf(t, settings(), url)
		if err != nil {
			return
		}
		if twice, err := endpointOf(t, settings(), once); err != nil || twice != once {
			t.Errorf("%q became %q, and that %q, %v", url, once, twice, err)
		}
	})
}
