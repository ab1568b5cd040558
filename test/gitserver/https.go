package gitserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// HTTPS serves the repositories beneath a folder by git's http-backend.
type HTTPS struct {
	// Username and Password, when set, are asked for.
	Username, Password string
	// OldProtocol keeps the server at the protocol in which a commit can be asked for
	// only where a branch or a tag ends.
	OldProtocol bool
	// RedirectTo, when set, is where every request is sent instead.
	RedirectTo string
	// Suffix redirects an address without ".git" to the one with it.
	Suffix bool
	// Hold, when set, is asked before the answer to each request for objects begins;
	// it returns when the answer may begin, or when the request has ended.
	Hold func(r *http.Request)
	// At is the address to listen at; the zero value is a port of loopback.
	At netip.AddrPort
	// HoldRefused is asked likewise before a request is refused.
	HoldRefused func(r *http.Request)

	server *httptest.Server
	mu     sync.Mutex
	counts map[string]int
	sent   atomic.Int64
}

// meter counts what is answered.
type meter struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (m meter) Write(p []byte) (int, error) {
	n, err := m.ResponseWriter.Write(p)
	m.sent.Add(int64(n))
	return n, err
}

// Start serves until the test ends.
func (h *HTTPS) Start(t testing.TB, root string) {
	t.Helper()
	h.counts = map[string]int{}
	backend := &cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend",
		Env: append(environment(), "GIT_PROJECT_ROOT="+root, "GIT_HTTP_EXPORT_ALL=1",
			// The repositories may belong to whoever runs the tests.
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"),
	}
	h.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.serve(backend, meter{w, &h.sent}, r)
	}))
	if h.At.IsValid() {
		h.listen(t)
	}
	h.server.StartTLS()
	t.Cleanup(h.server.Close)
}

// listen has the server listen at h.At, with a certificate for that address.
func (h *HTTPS) listen(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", h.At.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	h.server.Listener = l
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{h.At.Addr().AsSlice()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	h.server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func (h *HTTPS) serve(backend http.Handler, w http.ResponseWriter, r *http.Request) {
	if h.RedirectTo != "" {
		h.count("redirected")
		http.Redirect(w, r, h.RedirectTo+r.URL.RequestURI(), http.StatusFound)
		return
	}
	if before, after, found := strings.Cut(r.URL.Path, "/info/refs"); h.Suffix && found && !strings.HasSuffix(before, ".git") {
		h.count("redirected")
		http.Redirect(w, r, before+".git/info/refs"+after+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
		return
	}
	if h.Password != "" {
		username, password, _ := r.BasicAuth()
		if username != h.Username || password != h.Password {
			h.count("refused")
			if h.HoldRefused != nil {
				h.HoldRefused(r)
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="repositories"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
	}
	if h.OldProtocol {
		r.Header.Del("Git-Protocol")
	}
	if strings.HasSuffix(r.URL.Path, "/info/refs") {
		h.count("refs")
	}
	if strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
		h.count("objects")
		if h.Hold != nil {
			// The end of a connection is seen only once the request has been read.
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			h.Hold(r)
		}
	}
	backend.ServeHTTP(w, r)
}

func (h *HTTPS) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what]++
}

// Count is how many requests came that were "refs", "objects", "refused" or
// "redirected".
func (h *HTTPS) Count(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts[what]
}

// Sent is how many bytes the server has answered.
func (h *HTTPS) Sent() int64 { return h.sent.Load() }

// URL is the address of a repository.
func (h *HTTPS) URL(name string) string { return h.server.URL + "/" + name }

// Address is where the server listens.
func (h *HTTPS) Address() netip.AddrPort {
	return netip.MustParseAddrPort(h.server.Listener.Addr().String())
}

// CA is the certificate of the server, in PEM. It names 127.0.0.1 and example.com, or
// the address of At.
func (h *HTTPS) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
}
