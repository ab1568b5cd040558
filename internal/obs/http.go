package obs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Deps are what the endpoints answer from. Alive, Ready and Gateway are called for
// each request, at the same time as each other. Alive and Ready return at once and
// touch no user storage; Gateway asks the claim, with a bound.
type Deps struct {
	// Alive is nil while the agent's loops go round.
	Alive func() error
	// Ready is nil when the agent can serve grants; else it says what is missing.
	Ready func() error
	// Gateway is the agent's Pods and mounts, as a value that encodes to JSON.
	Gateway  func() any
	Registry prometheus.Gatherer
}

// Handler serves:
//
//	/healthz   200 "ok", or 503 and the reason: restart the agent
//	/readyz    200 "ok", or 503 and the reason: do not count on this node
//	/metrics   the registry
//	/gateway   JSON, to loopback only
//	/mounts    JSON, to loopback only
//
// Every other method than GET and HEAD is answered 405.
func Handler(d Deps) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", probe(d.Alive))
	mux.Handle("/readyz", probe(d.Ready))
	mux.Handle("/metrics", exposition(d.Registry))
	mux.Handle("/gateway", loopbackOnly(document(d.Gateway)))
	mux.Handle("/mounts", loopbackOnly(document(noVolumes)))
	return readOnly(mux)
}

// noVolumes are the volumes of the CSI driver, which this release does not run. Who
// asks gets an empty list, and need not know the release.
func noVolumes() any { return []any{} }

// exposition serves the text format and never OpenMetrics: there, the counter
// leaked_total and the gauge leaked would be two families of one name, which the
// format forbids. Both names are given.
func exposition(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		EnableOpenMetrics: false,
		// A collector that fails must not hide the counter of leaks.
		ErrorHandling: promhttp.ContinueOnError,
		// Each scrape walks /proc of this process: a flood waits its turn.
		MaxRequestsInFlight: 4,
	})
}

func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are answered here", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func probe(ask func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := ask(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
}

func document(value func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var body bytes.Buffer
		enc := json.NewEncoder(&body)
		enc.SetIndent("", "  ")
		if err := enc.Encode(value()); err != nil {
			http.Error(w, fmt.Sprintf("encode the answer: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(body.Bytes()) // a client that went away needs no answer
	})
}

// loopbackOnly guards what names folders and Secrets. The address alone would
// not do: a page in a browser on the node reaches loopback under a name of its
// own whose address it changes (DNS rebinding), and the Host header tells.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !fromLoopback(r.RemoteAddr) || !namesLoopback(r.Host) {
			http.Error(w, "this names folders and Secrets, so it is answered only to http://localhost, http://127.0.0.1 and http://[::1] from the agent's own Pod: use kubectl exec or kubectl port-forward", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func fromLoopback(remote string) bool {
	addr, err := netip.ParseAddrPort(remote)
	return err == nil && addr.Addr().Unmap().IsLoopback()
}

func namesLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name == "localhost" || name == "127.0.0.1" || name == "::1"
	}
	return host == "localhost" || host == "127.0.0.1" || host == "[::1]"
}

// Bounds of one connection. The widest answer is /metrics, some tens of kB.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// NewServer is an http.Server for h on addr whose clients cannot hold it up.
func NewServer(addr string, h http.Handler) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
}
