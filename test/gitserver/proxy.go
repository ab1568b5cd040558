package gitserver

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// Proxy is a forward proxy that knows CONNECT, and one way for every name.
type Proxy struct {
	To       string // where every connection goes, host:port
	Asked    atomic.Pointer[string]
	listener *httptest.Server
}

// Start serves until the test ends.
func (p *Proxy) Start(t testing.TB) {
	t.Helper()
	p.listener = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.listener.Close)
}

// URL is the proxy's address.
func (p *Proxy) URL() string { return p.listener.URL }

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
		return
	}
	p.Asked.Store(&r.Host)
	far, err := net.Dial("tcp", p.To)
	if err != nil {
		http.Error(w, "away", http.StatusBadGateway)
		return
	}
	defer func() { _ = far.Close() }()
	near, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	if _, err := io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
}
