package system_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

// An agent comes back as soon as its watch ends, and the next one lasts minutes.
func TestAProxyEndsWhileAnAgentGoesOnWatchingThroughIt(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer api.Close()
	// What is left of a proxy that does not end goes with its API server.
	stuck := time.AfterFunc(patience, api.CloseClientConnections)
	var agents sync.WaitGroup
	t.Run("proxy", func(t *testing.T) {
		x := newProxy(t, &rest.Config{Host: api.URL})
		watches := make(chan struct{})
		const many = 32 // one alone comes back at the wrong moment too seldom
		for range many {
			agents.Go(func() { watchOn(x.URL, watches) })
		}
		for range many {
			<-watches
		}
	})
	if !stuck.Stop() {
		t.Error("the proxy did not end before its API server")
	}
	agents.Wait()
}

// watchOn watches until nobody listens any more. It tells when the first watch has
// begun.
func watchOn(url string, begun chan<- struct{}) {
	for first := true; ; first = false {
		r, err := http.Get(url + "/api/v1/namespaces/a/pods?watch=true&sendInitialEvents=true")
		if first {
			begun <- struct{}{}
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			return
		}
		if err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}
}
