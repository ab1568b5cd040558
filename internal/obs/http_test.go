package obs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func deps() Deps {
	return Deps{
		Alive:    func() error { return nil },
		Ready:    func() error { return nil },
		Gateway:  func() any { return map[string]any{"pods": []string{"<a&b>"}} },
		Registry: NewRecorder("v1", "6.1.0").Gatherer(),
	}
}

type ask struct{ method, path, remote, host, accept string }

type reply struct {
	status int
	header http.Header
	body   string
}

func (a ask) of(h http.Handler) reply {
	method := a.method
	if method == "" {
		method = http.MethodGet
	}
	r := httptest.NewRequest(method, a.path, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:5555", "localhost:9808"
	if a.remote != "" {
		r.RemoteAddr = a.remote
	}
	if a.host != "" {
		r.Host = a.host
	}
	r.Header.Set("Accept", a.accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return reply{w.Code, w.Header(), w.Body.String()}
}

func TestHealthAndReadinessSayWhatIsWrong(t *testing.T) {
	h := Handler(deps())
	for _, path := range []string{"/healthz", "/readyz"} {
		r := ask{path: path, remote: "10.0.0.1:80", host: "10.0.0.9:9808"}.of(h)
		if body := r.body; r.status != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: %d %q", path, r.status, body)
		}
	}
	d := deps()
	d.Alive = func() error { return errors.New("the loop stands still") }
	d.Ready = func() error { return errors.New("the kubelet directory is private") }
	h = Handler(d)
	for path, why := range map[string]string{"/healthz": "the loop stands still", "/readyz": "the kubelet directory is private"} {
		r := ask{path: path}.of(h)
		if body := r.body; r.status != http.StatusServiceUnavailable || strings.TrimSpace(body) != why {
			t.Errorf("%s: %d %q", path, r.status, body)
		}
	}
}

func TestMetricsAreServedAsTextWhateverIsAskedFor(t *testing.T) {
	h := Handler(deps())
	for _, accept := range []string{"", "*/*", "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"} {
		r := ask{path: "/metrics", remote: "10.0.0.1:80", host: "10.0.0.9:9808", accept: accept}.of(h)
		body := r.body
		if r.status != http.StatusOK || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") {
			t.Errorf("accepting %q: %d %s", accept, r.status, r.header.Get("Content-Type"))
		}
		for _, line := range []string{
			"datalayer_mount_gateway_leaked_total 0\n", "datalayer_mount_gateway_leaked 0\n",
			`datalayer_mount_gateway_failed_total{code="NODE_MOUNT_GATEWAY_MOUNT_FAILED"} 0` + "\n",
		} {
			if !strings.Contains(body, line) {
				t.Errorf("no line %q", line)
			}
		}
	}
}

func TestTheViewOfTheGatewayIsForLoopbackOnly(t *testing.T) {
	h := Handler(deps())
	for _, c := range []struct {
		remote, host string
		status       int
	}{
		{"127.0.0.1:5555", "localhost:9808", 200},
		{"127.0.0.1:5555", "localhost", 200},
		{"127.0.0.1:5555", "127.0.0.1:9808", 200},
		{"127.0.0.1:5555", "127.0.0.1", 200},
		{"[::1]:5555", "[::1]:9808", 200},
		{"[::1]:5555", "[::1]", 200},
		{"[::ffff:127.0.0.1]:5555", "localhost", 200},
		{"127.8.9.1:5555", "localhost", 200},
		{"10.0.0.1:5555", "localhost:9808", 403},
		{"[fd00::1]:5555", "localhost:9808", 403},
		{"[::ffff:10.0.0.1]:5555", "localhost:9808", 403},
		{"169.254.1.1:5555", "127.0.0.1", 403},
		{"127.0.0.1:5555", "evil.example:9808", 403},
		{"127.0.0.1:5555", "localhost.evil.example", 403},
		{"127.0.0.1:5555", "127.0.0.1.evil.example:9808", 403},
		{"127.0.0.1:5555", "10.0.0.9:9808", 403},
		{"127.0.0.1:5555", "0.0.0.0:9808", 403},
		{"127.0.0.1:5555", ":9808", 403},
		{"", "localhost", 200}, // as ask has it
		{"nonsense", "localhost", 403},
		{"@", "localhost", 403},
	} {
		for _, path := range []string{"/gateway", "/mounts"} {
			r := ask{path: path, remote: c.remote, host: c.host}.of(h)
			body := r.body
			if r.status != c.status {
				t.Errorf("%s from %s to %s: %d, want %d", path, c.remote, c.host, r.status, c.status)
			}
			if c.status == 403 && (strings.Contains(body, "a&b") || !strings.Contains(body, "kubectl")) {
				t.Errorf("%s: the refusal is %q", path, body)
			}
			if c.status == 200 && (!json.Valid([]byte(body)) || r.header.Get("Content-Type") != "application/json") {
				t.Errorf("%s: %s %q", path, r.header.Get("Content-Type"), body)
			}
		}
	}
	// HTTP/1.0 needs no Host.
	r := httptest.NewRequest(http.MethodGet, "/gateway", nil)
	r.RemoteAddr, r.Host = "127.0.0.1:5555", ""
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("without a host: %d", w.Code)
	}
}

func TestTheViewIsWhatTheAgentGives(t *testing.T) {
	d := deps()
	for path, want := range map[string]string{"/gateway": `{"pods":["<a&b>"]}`, "/mounts": `[]`} {
		var got, expected any
		if err := json.Unmarshal([]byte(ask{path: path}.of(Handler(d)).body), &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(want), &expected); err != nil {
			t.Fatal(err)
		}
		g, _ := json.Marshal(got)
		e, _ := json.Marshal(expected)
		if !bytes.Equal(g, e) {
			t.Errorf("%s: %s, want %s", path, g, e)
		}
	}
	d.Gateway = func() any { return func() {} }
	if r := (ask{path: "/gateway"}).of(Handler(d)); r.status != http.StatusInternalServerError {
		t.Errorf("a value that does not encode: %d", r.status)
	}
}

func TestNothingButReadingIsAnswered(t *testing.T) {
	h := Handler(deps())
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/gateway", "/mounts"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodConnect, "NONSENSE"} {
			r := ask{method: method, path: path}.of(h)
			if r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d, allow %q", method, path, r.status, r.header.Get("Allow"))
			}
		}
		if r := (ask{method: http.MethodHead, path: path}).of(h); r.status != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, r.status)
		}
	}
	for _, path := range []string{"/", "/nothing", "/debug/pprof/", "/gateway/x", "/metrics/"} {
		if r := (ask{path: path}).of(h); r.status != http.StatusNotFound {
			t.Errorf("%s: %d", path, r.status)
		}
	}
}

func TestAServerAnswersOverARealConnectionAndBoundsItsClients(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(l.Addr().String(), Handler(deps()))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	r, err := http.Get("http://" + l.Addr().String() + "/gateway")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusOK || !strings.Contains(string(body), "pods") {
		t.Errorf("%d %q", r.StatusCode, body)
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	big, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := big.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if big.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("64 KiB of headers: %d", big.StatusCode)
	}
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 {
		t.Error("a client may hold a connection for ever")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

func TestTheLogIsJSONFromItsLevelOn(t *testing.T) {
	levels := []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	for i, name := range []string{"debug", "info", "Warn", "ERROR"} {
		var b bytes.Buffer
		log, err := NewLogger(&b, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range levels {
			log.Log(t.Context(), l, "line", "pod", "a")
		}
		var got int
		for line := range strings.Lines(b.String()) {
			var v map[string]any
			if err := json.Unmarshal([]byte(line), &v); err != nil || v["msg"] != "line" || v["pod"] != "a" {
				t.Errorf("the line is %q: %v", line, err)
			}
			got++
		}
		if want := len(levels) - i; got != want {
			t.Errorf("level %s: %d lines, want %d", name, got, want)
		}
	}
	for _, bad := range []string{"", "trace", "info+2", " info"} {
		if _, err := NewLogger(io.Discard, bad); err == nil || !strings.Contains(err.Error(), "debug, info, warn or error") {
			t.Errorf("level %q: %v", bad, err)
		}
	}
}
