package checkout_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/test/gitserver"
)

// stalled is a server that accepts connections and never says a word.
type stalled struct {
	address netip.AddrPort
	holds   atomic.Int32
}

func newStalled(t *testing.T) *stalled {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stalled{address: netip.MustParseAddrPort(listener.Addr().String())}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var held []net.Conn
		defer func() {
			for _, c := range held {
				_ = c.Close()
			}
		}()
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
			s.holds.Add(1)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	return s
}

// greedy is a world in which one Pod asks for a dozen repositories of servers that
// stall, as many as hosts, and has got as many places as it gets.
func greedy(t *testing.T, hosts int, server *gitserver.HTTPS) (w *world, repo *gitserver.Repository) {
	t.Helper()
	w = newWorld(t)
	repo = w.repository()
	w.https(server)
	bad := newStalled(t)
	w.open([]*gitserver.HTTPS{server}, loopback(bad.address), func(c *checkout.Config) {
		c.Limits.Jobs, c.Limits.PerHost = 4, 3
		c.Network.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	for i := range dozen {
		go func() {
			_, _ = w.store.Get(ctx, checkout.Request{
				URL:      fmt.Sprintf("https://stalls%d.example.com:%d/r%d", i%hosts, bad.address.Port(), i),
				Revision: strings.Repeat("ab", 20), Use: fmt.Sprint("greedy/", i), Pod: "greedy",
			})
		}()
	}
	eventually(t, "the greedy Pod has what it gets", func() bool {
		return len(w.store.Progress()) == dozen && bad.holds.Load() >= 2
	})
	return w, repo
}

const dozen = 12

// undisturbed says that everything of the greedy Pod is still there: nobody was
// served because it had ended.
func (w *world) undisturbed() {
	w.t.Helper()
	if n := len(w.store.Progress()); n != dozen {
		w.t.Errorf("%d of %d are still asked for by the greedy Pod", n, dozen)
	}
}

func TestAPodThatAsksForMuchLeavesRoomForTheOthers(t *testing.T) {
	for name, hosts := range map[string]int{"of many servers": dozen, "of one server": 1} {
		t.Run(name, func(t *testing.T) {
			server := &gitserver.HTTPS{}
			w, repo := greedy(t, hosts, server)
			for i := range 3 {
				sha := repo.Files(fmt.Sprint("b", i), map[string]string{"README": fmt.Sprint(i)})
				w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: fmt.Sprint("modest/", i), Pod: "modest"})
			}
			w.undisturbed()
		})
	}
}

// The greedy Pod has asked first, and waits with the others: its share keeps none of
// them from what it wants as well.
func TestARepositoryThatAPodWaitsForInVainIsFetchedForAnother(t *testing.T) {
	server := &gitserver.HTTPS{}
	w, repo := greedy(t, dozen, server)
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: "greedy/too", Pod: "greedy"}
	first := make(chan error, 1)
	go func() {
		_, err := w.store.Get(t.Context(), ask)
		first <- err
	}()
	eventually(t, "the greedy Pod waits", func() bool { return len(w.store.Progress()) == dozen+1 })
	for _, p := range w.store.Progress() {
		if p.Revision == sha && p.Phase != checkout.PhaseWaiting {
			t.Errorf("it is %s", p.Phase)
		}
	}
	ask.Use, ask.Pod = "modest/target", "modest"
	w.mustGet(ask)
	if err := <-first; err != nil {
		t.Error(err)
	}
	w.undisturbed()
}

// Work on one content is done once, but who waits for a slot holds up nobody else.
func TestAWrongCredentialThatWaitsKeepsNobodyFromTheRepository(t *testing.T) {
	server := private(&gitserver.HTTPS{})
	w, repo := greedy(t, dozen, server)
	sha := repo.Files("main", map[string]string{"README": "secret\n"})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = w.store.Get(ctx, checkout.Request{
			URL: server.URL(repo.Name), Revision: sha, Use: "greedy/too", Pod: "greedy", Credential: &checkout.Credential{Token: "guess"},
		})
	}()
	eventually(t, "the greedy Pod waits", func() bool { return len(w.store.Progress()) == dozen+1 })
	w.mustGet(checkout.Request{
		URL: server.URL(repo.Name), Revision: sha, Use: "modest/target", Pod: "modest", Credential: &checkout.Credential{Token: canary},
	})
	stop()
	<-ended
	eventually(t, "its wish is gone", func() bool { return len(w.store.Progress()) == dozen })
}
