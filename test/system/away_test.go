package system_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/internal/simnode"
)

// outage is how long the API server stays away: long enough for the agent's watch
// and its requests to have failed several times, with growing pauses.
const outage = time.Minute

// apiServerAway ends the API server under an agent, and the agent in the middle
// of that. Nothing is unmounted; what was asked meanwhile comes afterwards.
func apiServerAway(t *testing.T, c *cluster) {
	n := c.node(t)
	p, gone := n.run("sandbox"), n.run("gone")
	n.startAgent(agentOptions{})
	set := twoFolders()
	p.grant(set...)
	gone.grant(set...)
	ids := p.ids()
	untouched := func() string {
		if now := p.ids(); !maps.Equal(now, ids) {
			return fmt.Sprintf("the mounts are %v, were %v", now, ids)
		}
		if got, err := p.ctr.ReadFile(in + "ada/file"); err != nil || string(got) != "home/users/ada file" {
			return fmt.Sprintf("the sandbox reads %q, %v", got, err)
		}
		return gone.differs(set)
	}
	c.server.Leave(t)
	throughout(t, outage/2, untouched)
	n.agent.Kill()
	// A Pod's end that the agent cannot ask about: it must not be believed.
	must(t, gone.ctr.Stop())
	gone.startUnreported()
	n.startAgent(agentOptions{}).Says("cannot be watched")
	throughout(t, outage/2, untouched)

	c.server.Return(t)
	began := time.Now()
	must(t, gone.ctr.Stop())
	gone.remove()
	set = append(set, home("home/users/bob", "bob"))
	p.grant(set...)
	gone.tornDown()
	gone.forgotten()
	t.Logf("the first answer came %v after the API server", time.Since(began).Round(time.Millisecond))
	for target, id := range ids {
		if now := p.ids()[target]; now != id {
			t.Errorf("%s is mount %d, was %d", target, now, id)
		}
	}
	p.delete()
}

// staleList: after an outage the first list comes from an API server that has
// not heard of the Pod, no later event corrects it, and for a while nobody can be
// asked either.
func staleList(t *testing.T, c *cluster) {
	n := c.node(t)
	x := newProxy(t, configOf(t, n.kubeconfig))
	p := n.run("sandbox")
	a := n.startAgent(agentOptions{kubeconfig: plainKubeconfig(t, x.URL)})
	set := twoFolders()
	p.grant(set...)
	ids := p.ids()
	list, err := c.admin.CoreV1().Pods(n.namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	x.cutOff(list.ResourceVersion)
	a.Says("cannot be watched")
	x.comeBack()
	// The agent has seen that its Pod is not in the list, and asks.
	eventually(t, "the agent to ask whether the Pod is gone", func() string {
		if !x.served() || a.calls()["Confirm"] <= refusedGets+1 {
			return fmt.Sprint(a.calls())
		}
		return ""
	})
	throughout(t, 2*time.Second, func() string {
		if now := p.ids(); !maps.Equal(now, ids) {
			return fmt.Sprintf("the mounts are %v, were %v", now, ids)
		}
		return p.differs(set)
	})
	set = append(set, home("home/users/bob", "bob"))
	p.grant(set...)
	if calls := a.calls(); calls["Unmount"] != 0 || calls["Bind"] != 3 {
		t.Errorf("the agent called %v", calls)
	}
	p.delete()
}

// refusedGets is how many times a proxy that came back refuses to say whether a
// Pod exists.
const refusedGets = 3

// proxy stands between an agent and the API server.
type proxy struct {
	*httptest.Server
	forward http.Handler

	mu    sync.Mutex
	down  bool
	stale string // the resource version of a list without Pods that is still to be served
	given bool   // it has been
	gets  int    // how many requests for one Pod are still to be refused
}

func newProxy(t *testing.T, to *rest.Config) *proxy {
	t.Helper()
	target, err := url.Parse(to.Host)
	must(t, err)
	transport, err := rest.TransportFor(to)
	must(t, err)
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // a watch is one answer that does not end
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	x := &proxy{forward: forward}
	x.Server = httptest.NewUnstartedServer(x)
	// Close waits for every request, and an agent that runs watches anew while the
	// watches are being ended: for up to ten minutes. These end with ctx, old or new.
	ctx, end := context.WithCancel(context.Background())
	x.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	x.Start()
	t.Cleanup(func() {
		end()
		x.Close()
	})
	return x
}

// cutOff ends every connection and lets no request through. The first list after that
// will be empty, and as if read at this resource version.
func (x *proxy) cutOff(version string) {
	x.mu.Lock()
	x.down, x.stale, x.gets = true, version, refusedGets
	x.mu.Unlock()
	x.CloseClientConnections()
}

func (x *proxy) comeBack() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.down = false
}

func (x *proxy) served() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.given
}

// ServeHTTP implements http.Handler.
func (x *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	q := r.URL.Query()
	ofPods := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods")
	watches := q.Get("watch") == "true" || q.Get("watch") == "1"
	stale := ""
	if ofPods && !watches && !x.down {
		stale, x.stale = x.stale, ""
		x.given = x.given || stale != ""
	}
	down, pending := x.down, x.stale != ""
	if !down && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/pods/") && x.gets > 0 {
		x.gets--
		down = true
	}
	x.mu.Unlock()
	switch {
	case down, ofPods && watches && pending && q.Get("sendInitialEvents") == "":
		// As a load balancer says it whose servers are all away.
		http.Error(w, "no server", http.StatusServiceUnavailable)
	case ofPods && watches && pending:
		// An API server that cannot begin a watch with a list.
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"sendInitialEvents is forbidden"}`)
	case stale != "":
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[]}`, stale)
	default:
		x.forward.ServeHTTP(w, r)
	}
}

// startUnreported starts the container again while kubelet cannot report it.
func (p *pod) startUnreported() {
	p.n.t.Helper()
	var err error
	p.ctr, err = p.StartContainer(simnode.ContainerOptions{})
	must(p.n.t, err)
}
