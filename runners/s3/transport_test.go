package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// proxy is one that tunnels and forwards, and keeps what it was asked.
type proxy struct {
	mu     sync.Mutex
	asked  []string // METHOD HOST
	status int      // of every answer, where it is not 0
	to     string   // where every connection goes
}

const proxyPassword = "the-password-of-the-proxy"

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	status := p.status
	p.mu.Unlock()
	want := &http.Request{Header: http.Header{}}
	want.SetBasicAuth("user", proxyPassword)
	if status == 0 && r.Header.Get("Proxy-Authorization") != want.Header.Get("Authorization") {
		status = http.StatusProxyAuthRequired
	}
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	if r.Method != http.MethodConnect {
		forward := r.Clone(r.Context())
		forward.RequestURI, forward.URL.Host = "", p.to // the Host of the request is what is signed
		forward.Header.Del("Proxy-Authorization")
		answer, err := http.DefaultTransport.RoundTrip(forward)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		for name, values := range answer.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
		return
	}
	far, err := net.Dial("tcp", p.to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer func() { _ = far.Close() }()
	w.WriteHeader(http.StatusOK)
	near, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
	_, _ = io.Copy(near, far)
}

// requests are those of the kind.
func (p *proxy) requests(kind string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(p.asked), func(asked string) bool { return asked != kind }))
}

func startProxy(t *testing.T, to string) (*proxy, string) {
	t.Helper()
	at, err := url.Parse(to)
	must(t, err)
	p := &proxy{to: at.Host}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return p, strings.Replace(server.URL, "//", "//user:"+proxyPassword+"@", 1)
}

func readable(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(file, []byte(content), 0o644))
	for dir := filepath.Dir(file); dir != os.TempDir(); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	return file
}

// The proxy alone knows the name: what does not go through it fails.
func TestEveryRequestGoesThroughTheProxy(t *testing.T) {
	for name, args := range map[string][]string{"http": nil, "https": {"--tls"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, args...)
			s.put("there", pattern(9<<20))
			p, at := startProxy(t, s.Endpoint)
			_, port, err := net.SplitHostPort(p.to)
			must(t, err)
			m := prepare(t, s, startEndpoint(t, s.Credentials), "--endpoint-url", name+"://localhost:"+port)
			if name == "http" {
				m = prepare(t, s, startEndpoint(t, s.Credentials), "--endpoint-url", "http://s3.bucket-test.invalid:"+port)
			} else {
				m.command.Args = append(m.command.Args, "--ca-file", readable(t, "ca.pem", s.CA))
			}
			m.command.Env = append(m.command.Env, "NODE_MOUNTS_S3_PROXY="+at)
			m.begin()
			m.write("new", "x")
			m.wantContent("there", string(pattern(9<<20)))
			kind := "CONNECT localhost:" + port
			if name == "http" {
				kind = "PUT s3.bucket-test.invalid:" + port
			}
			if p.requests(kind) == 0 {
				t.Errorf("the proxy saw %q", p.asked)
			}
			if counts := s.requests(); counts == 0 {
				t.Error("the server was not asked")
			}
			if arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", m.command.Process.Pid)); err != nil || strings.Contains(string(arguments), proxyPassword) {
				t.Errorf("its arguments are %q, %v", arguments, err)
			}
		})
	}
}

func TestAProxyThatRefusesIsToldWithoutItsPassword(t *testing.T) {
	s := startServer(t, "--tls")
	refusing, at := startProxy(t, s.Endpoint)
	refusing.status = http.StatusForbidden
	for words, at := range map[string]string{
		"the proxy answered with status 403": at,
		"connection refused: see the proxy":  "http://user:" + proxyPassword + "@127.0.0.1:9",
		"NODE_MOUNTS_S3_PROXY is no":         "socks://" + proxyPassword,
	} {
		m := prepare(t, s, startEndpoint(t, s.Credentials))
		m.command.Env = append(m.command.Env, "NODE_MOUNTS_S3_PROXY="+at)
		m.begin()
		if m.wait(40*time.Second) == 0 {
			t.Error("it serves")
		}
		if got := m.stderr.String(); !strings.Contains(got, words) || strings.Contains(got, proxyPassword) {
			t.Errorf("it said %q, want %q in it", got, words)
		}
	}
}

// authority is a certificate that has signed nothing.
func authority(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "another"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// In the namespace of this test the server's authority is the system's.
func TestAnAuthorityOfOurOwnStandsBesideTheSystems(t *testing.T) {
	s := startServer(t, "--tls")
	const dir = "/etc/ssl/certs"
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(dir, "ca-certificates.crt"), []byte(s.CA), 0o644))
	for _, args := range [][]string{nil, {"--ca-file", readable(t, "another.pem", authority(t))}} {
		m := start(t, s, startEndpoint(t, s.Credentials), args...)
		content := strings.Repeat("x", 9<<20)
		m.write("file", content)
		m.wantContent("file", content)
	}
}

// What a redirect leads to has been looked at by nobody, and the session's token would
// go there.
func TestNoRedirectIsFollowed(t *testing.T) {
	s := startServer(t)
	var mu sync.Mutex
	var got []string
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprint(r.URL, r.Header))
		w.WriteHeader(http.StatusNotFound)
	}))
	defer inner.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		for region, words := range map[string]string{"": "is not in region us-east-1", "eu-north-1": "is in region eu-north-1, not in us-east-1: set region to eu-north-1", "Not a region": "is not in region us-east-1"} {
			outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if region != "" {
					w.Header().Set("X-Amz-Bucket-Region", region)
				}
				http.Redirect(w, r, strings.Replace(inner.URL, "127.0.0.1", "localhost", 1)+"/latest/meta-data/", status)
			}))
			m := launch(t, s, startEndpoint(t, s.session(time.Hour)), "--endpoint-url", outer.URL)
			if got := m.wait(40 * time.Second); got != exitBucketWrong {
				t.Errorf("%d: exit status %d", status, got)
			}
			if said := m.stderr.String(); !strings.Contains(said, words) || strings.Contains(said, "meta-data") {
				t.Errorf("%d: it said %q, want %q in it", status, said, words)
			}
			outer.Close()
		}
	}
	if len(got) != 0 {
		t.Errorf("it was followed: %q", got)
	}
}

// While it serves, too: the server may have changed.
func TestNoRedirectIsFollowedLater(t *testing.T) {
	s := startServer(t)
	s.put("file", pattern(1<<20))
	at, err := url.Parse(s.Endpoint)
	must(t, err)
	var mu sync.Mutex
	redirects, followed := false, 0
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { mu.Lock(); followed++; mu.Unlock() }))
	defer inner.Close()
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if redirects {
			http.Redirect(w, r, inner.URL+r.URL.String(), http.StatusTemporaryRedirect)
			return
		}
		r.URL.Host, r.URL.Scheme, r.RequestURI = at.Host, "http", ""
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
	}))
	defer outer.Close()
	m := start(t, s, startEndpoint(t, s.session(time.Hour)), "--endpoint-url", outer.URL)
	mu.Lock()
	redirects = true
	mu.Unlock()
	if _, err := os.ReadFile(m.path("file")); err == nil {
		t.Error("it was read")
	}
	if err := os.WriteFile(m.path("new"), []byte("x"), 0o644); err == nil {
		t.Error("it was written")
	}
	mu.Lock()
	defer mu.Unlock()
	if followed != 0 {
		t.Errorf("%d requests were redirected", followed)
	}
}

// The last line that begins with "error: " is the reason that a user is told.
func TestAServersWordsCannotPassForOurs(t *testing.T) {
	s := startServer(t)
	const forged = "&#10;error: forged"
	for message, code := range map[string]string{
		"inner&#x9b;31m says" + forged: "Oops", "carriage&#13;return&#x2028;error: forged": "Oops", "right&#x202e;to&#x2066;left &#xfeff;error: forged": "Oops",
		strings.Repeat("long ", 10_000): "Oops", "a code": "Oops" + forged,
	} {
		outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, message)
		}))
		m := launch(t, s, startEndpoint(t, s.Credentials), "--endpoint-url", outer.URL)
		wantOneLine(t, m, exitFailed)
		outer.Close()
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintln(w, `{"message":"no\nerror: forged\u009b"}`)
	}))
	defer refusing.Close()
	wantOneLine(t, launch(t, s, &endpoint{url: refusing.URL}), exitCredentialRefused)
}

func wantOneLine(t *testing.T, m *mount, status int) {
	t.Helper()
	if got := m.wait(40 * time.Second); got != status {
		t.Errorf("exit status %d, want %d", got, status)
	}
	said := m.stderr.String()
	rest, whole := strings.CutSuffix(said, "\n")
	if !whole || !strings.HasPrefix(said, "error: ") || len(said) > 500 || strings.ContainsFunc(rest, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("it said %.1000q", said)
	}
}

func TestTextOfOthersIsPlain(t *testing.T) {
	for text, want := range map[string]string{
		"plain":             "plain",
		" two\n\t lines\r ": "two lines",
		"\x1b[31mred\u009b": "[31mred",
		"not\xffUTF-8":      "notUTF-8",
		"0123456789":        "0123456789",
		"0123456789a":       "0123456789…",
		"012345678é":        "012345678…",
	} {
		if got := plain(text, 10); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
