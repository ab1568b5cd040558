package checkout_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/netaddr/netaddrtest"
	"github.com/datalayer/node-mounts/test/gitserver"
)

func TestAPublicCommitAskedForWithCredentialsAndWithoutIsOneClone(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	held := newGate(t)
	server := w.https(&gitserver.HTTPS{Hold: held.hold})
	w.open([]*gitserver.HTTPS{server})
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			r := checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: fmt.Sprint(i)}
			if i%2 == 0 {
				r.Credential = &checkout.Credential{Token: fmt.Sprint("token-", i)}
			}
			if _, err := w.store.Get(t.Context(), r); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		waiting := 0
		for _, p := range w.store.Progress() {
			waiting += p.Waiting
		}
		return waiting == 10 && held.waiting() > 0
	})
	held.open()
	all.Wait()
	if refs, objects := server.Count("refs"), server.Count("objects"); refs != 1 || objects > 2 {
		t.Errorf("%d questions and %d fetches for one public commit", refs, objects)
	}
	if names := list(t, filepath.Join(w.root, "ready")); len(names) != 1 {
		t.Errorf("published: %v", names)
	}
}

func TestWhatIsLeftOfACheckoutByHandIsReplaced(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha}
	if err := os.RemoveAll(w.mustGet(ask).Path); err != nil {
		t.Fatal(err)
	}
	if got := content(t, w.mustGet(ask), "README"); got != "hello\n" {
		t.Errorf("README holds %q", got)
	}
	w.nothingLeft()
}

func TestACheckoutIsKeptForWhoeverWaitedForItAndNoLonger(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Budget = 0 })
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: "u"}
	c, err := checkout.GetForTest(t, w.store, ask, func() { w.store.Collect(t.Context()) })
	if err != nil || c == nil {
		t.Fatalf("it was removed before it could be used: %v", err)
	}
	if got := content(t, c, "README"); got != "hello\n" {
		t.Errorf("README holds %q", got)
	}
	w.store.Release("u")
	w.store.Collect(t.Context())
	if _, err := os.Stat(c.Path); err == nil {
		t.Error("nobody uses it, and it is kept")
	}
}

func TestTheNextAddressIsTriedWhereAServerIsNotAtTheFirst(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	https, ssh := w.https(&gitserver.HTTPS{}), gitserver.StartSSH(t, w.repos)
	w.open([]*gitserver.HTTPS{https}, func(c *checkout.Config) {
		nowhere := netip.MustParseAddr("127.0.0.9")
		for _, a := range []netip.AddrPort{https.Address(), ssh.Address()} {
			c.Network.Allow = append(c.Network.Allow, a, netip.AddrPortFrom(nowhere, a.Port()))
		}
		c.Network.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{nowhere, netip.MustParseAddr("127.0.0.1")}, nil
		}
	})
	hosts := strings.ReplaceAll(string(ssh.KnownHosts()), "127.0.0.1", "example.com")
	for url, c := range map[string]*checkout.Credential{
		https.URL(repo.Name): nil, ssh.URL(repo): {SSHKey: ssh.Key(), KnownHosts: []byte(hosts)},
	} {
		ask := checkout.Request{URL: strings.Replace(url, "127.0.0.1", "example.com", 1), Revision: sha, Credential: c}
		if got := content(t, w.mustGet(ask), "README"); got != "hello\n" {
			t.Errorf("%s: README holds %q", url, got)
		}
	}
}

func TestAnAddressOfTheNodeOrThePodIsNotFetchedFromWhateverItIs(t *testing.T) {
	w := newWorld(t)
	own := netip.MustParseAddr("203.0.113.7")
	w.open(nil, func(c *checkout.Config) {
		c.Network.Own = []string{netaddrtest.Network(t, "lo", own)}
		c.Network.Resolve = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{own}, nil }
	})
	for _, host := range []string{own.String(), "[::ffff:203.0.113.7]", "[64:ff9b::cb00:7107]", "here.example"} {
		w.fails(checkout.Request{URL: "https://" + host + "/a/b", Revision: strings.Repeat("ab", 20)}, checkout.Refused)
	}
}

// Whether a port is open, what listens there and by what name is the network's affair.
func TestWhereNoRepositoryIsTheAnswerIsOneSentence(t *testing.T) {
	w := newWorld(t)
	stranger, trusts := other(t, func(http.ResponseWriter, *http.Request) {})
	open := strings.TrimPrefix(stranger.URL, "https://")
	plain := gitserver.StartSSH(t, w.repos).Address().String()
	w.open(nil, trusts, func(c *checkout.Config) {
		c.CA = nil
		c.Network.Allow = append(c.Network.Allow, mustAddress("127.0.0.9:9"), mustAddress(plain))
	})
	key := &checkout.Credential{SSHKey: gitserver.NewKey(t), KnownHosts: []byte("h")}
	var texts []string
	for _, url := range []string{"https://" + open + "/a", "https://127.0.0.9:9/a", "https://" + plain + "/a", "ssh://git@127.0.0.9:9/a", "ssh://git@" + open + "/a"} {
		r := checkout.Request{URL: url, Revision: strings.Repeat("ab", 20)}
		if strings.HasPrefix(url, "ssh") {
			r.Credential = key
		}
		err := w.failure(r, checkout.Unreachable)
		e := err.(*checkout.Error) //nolint:errorlint // what Get returns
		if !e.Node {
			t.Errorf("%s: what the network has to say is for everybody: %v", url, err)
		}
		texts = append(texts, e.Message)
	}
	for _, text := range texts[1:] {
		if text != texts[0] {
			t.Errorf("%q and %q tell two addresses apart", text, texts[0])
		}
	}
}
