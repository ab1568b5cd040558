package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/test/gitserver"
)

func TestAPublicRepositoryIsCheckedOutAtItsCommit(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	old := repo.Files("main", map[string]string{"README": "old\n"})
	sha := repo.Files("main", map[string]string{"README": "hello\n", "bin/run*": "#!/bin/sh\n", "deep/er/x": "y"}, old)
	repo.Files("main", map[string]string{"README": "newer\n"}, sha)
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})

	c := w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha})
	if got := content(t, c, "README"); got != "hello\n" {
		t.Errorf("README holds %q", got)
	}
	for name, mode := range map[string]os.FileMode{"README": 0o644, "bin/run": 0o755, "deep/er": os.ModeDir | 0o755, ".git": os.ModeDir | 0o755, ".": os.ModeDir | 0o755} {
		info, err := os.Lstat(filepath.Join(c.Path, name))
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		if info.Mode() != mode || stat.Uid != ada || stat.Gid != users {
			t.Errorf("%s is %v of %d:%d, expected %v of %d:%d", name, info.Mode(), stat.Uid, stat.Gid, mode, ada, users)
		}
	}
	w.nothingLeft()
}

func TestTheSandboxUserCanAskGitAboutTheCheckout(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	c := w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha})

	// The store is root's alone; a sandbox has the folder by a bind.
	at := filepath.Join(shortDir(t), "sandbox")
	if err := os.Rename(c.Path, at); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"log", "--format=%H"}, {"status", "--porcelain"}, {"fsck", "--strict"}, {"remote", "-v"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = at
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ada, Gid: users}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("git %v: %v: %s", args, err, out)
		}
		if want := map[string]string{"log": sha + "\n"}[args[0]]; args[0] != "fsck" && string(out) != want {
			t.Errorf("git %v says %q, expected %q", args, out, want)
		}
	}
}

func TestACommitThatIsNotThereIsSaidToBeMissing(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: strings.Repeat("ab", 20)}, checkout.NotFound)
	w.fails(checkout.Request{URL: server.URL("no/such.git"), Revision: strings.Repeat("ab", 20)}, checkout.NotFound)
}

func TestARevisionThatIsNoCommitIsRefused(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	repo.Git("tag", "-a", "-m", "a tag", "v1", sha)
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	for _, revision := range []string{"v1", "v1^{tree}", "v1:README"} {
		w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: repo.Git("rev-parse", revision)}, checkout.Invalid)
	}
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: "main"}, checkout.Invalid)
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: sha[:39]}, checkout.Invalid)
}

func TestAServerOfTheOldProtocolIsAskedForItsBranches(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "the one\n"})
	last := sha
	for i := range 60 {
		last = repo.Files("main", map[string]string{"README": fmt.Sprint(i)}, last)
	}
	server := w.https(&gitserver.HTTPS{OldProtocol: true})
	w.open([]*gitserver.HTTPS{server})

	c := w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha})
	if got := content(t, c, "README"); got != "the one\n" {
		t.Errorf("README holds %q", got)
	}
	if out, err := exec.Command("git", "-c", "safe.directory=*", "-C", c.Path, "for-each-ref").CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("branches of the server are left: %s %v", out, err)
	}
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: strings.Repeat("ab", 20)}, checkout.NotFound)
}

const canary = "canary-7f3a-token"

func private(server *gitserver.HTTPS) *gitserver.HTTPS {
	server.Username, server.Password = "x-access-token", canary
	return server
}

func TestAPrivateRepositoryOpensToItsCredentialAlone(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "secret\n"})
	server := w.https(private(&gitserver.HTTPS{}))
	w.open([]*gitserver.HTTPS{server})
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha}

	w.fails(ask, checkout.AuthRefused)
	wrong := ask
	wrong.Credential = &checkout.Credential{Token: canary + "x"}
	if err := w.failure(wrong, checkout.AuthRefused); strings.Contains(err.Error(), canary) {
		t.Errorf("the error shows the token: %v", err)
	}
	for _, right := range []checkout.Credential{{Token: canary}, {Username: "x-access-token", Password: canary}} {
		ask.Credential = &right
		if got := content(t, w.mustGet(ask), "README"); got != "secret\n" {
			t.Errorf("README holds %q", got)
		}
	}
}

func TestAPrivateCheckoutIsNotGivenToWhoHasNoCredentialForIt(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "secret\n"})
	server := w.https(private(&gitserver.HTTPS{}))
	w.open([]*gitserver.HTTPS{server})
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha, Credential: &checkout.Credential{Token: canary}}
	first := w.mustGet(ask)
	objects := server.Count("objects")

	other := ask
	other.Use = "other/target"
	other.Credential = nil
	w.fails(other, checkout.AuthRefused)
	other.Credential = &checkout.Credential{Token: "guess"}
	w.fails(other, checkout.AuthRefused)

	// Another credential that the server accepts: no second clone, but a question.
	refs := server.Count("refs")
	other.Credential = &checkout.Credential{Password: canary, Username: "x-access-token", KnownHosts: []byte("other")}
	if again := w.mustGet(other); again.Path != first.Path {
		t.Errorf("two folders for one commit: %s and %s", first.Path, again.Path)
	}
	if n := server.Count("refs"); n == refs {
		t.Error("the server was not asked about the second credential")
	}
	// ls-remote asks for refs by the same path as for objects, once.
	if n := server.Count("objects"); n > objects+1 {
		t.Errorf("%d requests for objects: cloned again", n-objects)
	}
	// Believed for a minute, and not for ever.
	refs = server.Count("refs")
	w.mustGet(ask)
	if n := server.Count("refs"); n != refs {
		t.Error("the server was asked again at once")
	}
	w.clock.advance(2 * time.Minute)
	w.mustGet(ask)
	if n := server.Count("refs"); n == refs {
		t.Error("a credential is believed for ever")
	}
}

func TestACheckoutThatNeededNoCredentialIsForEverybody(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha, Credential: &checkout.Credential{Token: canary}}
	first := w.mustGet(ask)
	ask.Credential = nil
	before := server.Count("refs")
	if second := w.mustGet(ask); second.Path != first.Path || server.Count("refs") != before {
		t.Error("a public repository was cloned again for a request without a credential")
	}
}

func TestACertificateThatNobodySignedIsNotTrusted(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	w.open(nil, loopback(server.Address()))
	err := w.failure(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.Unreachable)
	if !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the error does not name the certificate: %v", err)
	}
}

func TestARedirectToAnotherServerIsNotFollowed(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	target := w.https(&gitserver.HTTPS{})
	server := &gitserver.HTTPS{RedirectTo: strings.TrimSuffix(target.URL(""), "/")}
	w.https(server)
	w.open([]*gitserver.HTTPS{server, target})
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.Refused)
	if server.Count("redirected") == 0 || target.Count("refs") != 0 {
		t.Errorf("%d requests redirected, %d arrived", server.Count("redirected"), target.Count("refs"))
	}
}

func TestAnAddressThatLacksGitAtItsEndIsAskedWithIt(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(private(&gitserver.HTTPS{Suffix: true}))
	w.open([]*gitserver.HTTPS{server})
	ask := checkout.Request{URL: strings.TrimSuffix(server.URL(repo.Name), ".git"), Revision: sha, Credential: &checkout.Credential{Token: canary}}
	w.mustGet(ask)
	if server.Count("redirected") != 1 {
		t.Errorf("redirected %d times", server.Count("redirected"))
	}
	ask.Credential = &checkout.Credential{Token: canary + "x"}
	w.fails(ask, checkout.AuthRefused)
}

func TestANameIsLookedUpOnceAndPinned(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	asked := 0
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) {
		c.Network.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
			asked++
			if host != "example.com" {
				return nil, errors.New("unknown")
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")}, nil
		}
	})
	url := fmt.Sprintf("https://EXAMPLE.com.:%d/%s", server.Address().Port(), repo.Name)
	w.mustGet(checkout.Request{URL: url, Revision: sha})
	if asked != 1 {
		t.Errorf("looked up %d times", asked)
	}
}

func TestAddressesOfTheNodeAreNotFetchedFrom(t *testing.T) {
	w := newWorld(t)
	w.open(nil, func(c *checkout.Config) {
		c.Network.Deny = []netip.Prefix{netip.MustParsePrefix("10.96.0.1/32")}
		c.Network.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(map[string]string{
				"sneaky.example": "127.0.0.1", "api.example": "10.96.0.1", "mapped.example": "::ffff:10.96.0.1",
			}[host])}, nil
		}
	})
	for _, host := range []string{
		"127.0.0.1", "127.9.9.9", "[::1]", "0.0.0.0", "[::]", "169.254.169.254", "[fe80::1]", "224.0.0.1", "[ff02::1]",
		"[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::7f00:1]", "255.255.255.255",
		"[64:ff9b:1::7f00:1]", "[64:ff9b:1:7f00:0:100::]", "[64:ff9b:1::a9fe:a9fe]", "[::ffff:0:7f00:1]", "[fec0::1]", "[fd20:ce::254]", "[64:ff9b:1::a60:1]",
		"168.63.129.16", "[fd00:ec2::254]", "10.96.0.1", "[::ffff:10.96.0.1]", "sneaky.example", "api.example", "mapped.example",
	} {
		for _, url := range []string{"https://" + host + "/a/b", "https://" + host + ":8443/a/b"} {
			w.fails(checkout.Request{URL: url, Revision: strings.Repeat("ab", 20)}, checkout.Refused)
		}
		w.fails(checkout.Request{URL: "git@" + host + ":a/b", Revision: strings.Repeat("ab", 20), Credential: &checkout.Credential{SSHKey: []byte("k"), KnownHosts: []byte("h")}}, checkout.Refused)
	}
	// What curl would read as an address, and we as a name.
	for _, host := range []string{"127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.0x1", "::1", "[127.0.0.1]", "[fe80::1%25eth0]"} {
		w.fails(checkout.Request{URL: "https://" + host + "/a/b", Revision: strings.Repeat("ab", 20)}, checkout.Invalid)
	}
}

func TestAProxyIsUsedAndLooksTheNameUp(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	server := w.https(&gitserver.HTTPS{})
	proxy := &gitserver.Proxy{To: server.Address().String()}
	proxy.Start(t)
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) {
		c.Proxy = proxy.URL()
		c.Network.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no names here") }
	})
	w.mustGet(checkout.Request{URL: "https://example.com/" + repo.Name, Revision: sha})
	if asked := proxy.Asked.Load(); asked == nil || *asked != "example.com:443" {
		t.Errorf("the proxy was asked for %v", asked)
	}
}

func TestTenRequestsAtOnceAreOneClone(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	held := newGate(t)
	server := w.https(&gitserver.HTTPS{Hold: held.hold})
	w.open([]*gitserver.HTTPS{server})
	paths := make(chan string, 10)
	for i := range 10 {
		go func() {
			c, err := w.store.Get(t.Context(), checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: fmt.Sprint(i)})
			if err != nil {
				paths <- err.Error()
				return
			}
			paths <- c.Path
		}()
	}
	eventually(t, "ten callers wait for one clone", func() bool {
		p := w.store.Progress()
		return len(p) == 1 && p[0].Waiting == 10 && p[0].Phase == checkout.PhaseFetching && held.waiting() > 0
	})
	held.open()
	first := <-paths
	for range 9 {
		if p := <-paths; p != first {
			t.Errorf("%s and %s", first, p)
		}
	}
	if n := server.Count("refs"); n != 1 {
		t.Errorf("%d clones", n)
	}
	if p := w.store.Progress(); len(p) != 0 {
		t.Errorf("still under way: %v", p)
	}
}

func TestACloneThatNobodyWaitsForEnds(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	held := newGate(t)
	server := w.https(&gitserver.HTTPS{Hold: held.hold})
	w.open([]*gitserver.HTTPS{server})
	var stops []context.CancelFunc
	ended := make(chan error, 2)
	for i := range 2 {
		ctx, stop := context.WithCancel(t.Context())
		stops = append(stops, stop)
		go func() {
			_, err := w.store.Get(ctx, checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: fmt.Sprint(i)})
			ended <- err
		}()
	}
	eventually(t, "both wait", func() bool {
		p := w.store.Progress()
		return len(p) == 1 && p[0].Waiting == 2 && held.waiting() > 0
	})
	stops[0]()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first got %v", err)
	}
	if p := w.store.Progress(); len(p) != 1 || held.ended() > 0 {
		t.Error("the clone ended although one still waits")
	}
	stops[1]()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the second got %v", err)
	}
	stopped := time.Now()
	eventually(t, "the clone has ended", func() bool { return len(w.store.Progress()) == 0 && held.ended() > 0 })
	// Left alone, git gives up on a silent server after a minute.
	if took := time.Since(stopped); took > 30*time.Second {
		t.Errorf("the clone went on for %v", took)
	}
	if n := confinedProcesses(t, w.root); len(n) != 0 {
		t.Errorf("processes are left: %v", n)
	}
	w.nothingLeft()
	held.open()
	w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha})
}

func TestAServerThatStallsCostsTheTimeoutAndNoMore(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	held := newGate(t)
	server := w.https(&gitserver.HTTPS{Hold: held.hold})
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Timeout = 3 * time.Second })
	began := time.Now()
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.Timeout)
	if took := time.Since(began); took < 3*time.Second || took > time.Minute {
		t.Errorf("it took %v", took)
	}
	if n := confinedProcesses(t, w.root); len(n) != 0 {
		t.Errorf("processes are left: %v", n)
	}
}

// gate holds requests until it is opened.
type gate struct {
	once   sync.Once
	opened chan struct{}
	in     chan struct{}
	out    chan struct{}
}

func newGate(t *testing.T) *gate {
	g := &gate{opened: make(chan struct{}), in: make(chan struct{}, 1000), out: make(chan struct{}, 1000)}
	// A failed test must not leave the server waiting.
	t.Cleanup(g.open)
	return g
}

func (g *gate) hold(r *http.Request) {
	g.in <- struct{}{}
	select {
	case <-g.opened:
	case <-r.Context().Done():
	}
	g.out <- struct{}{}
}

func (g *gate) open()        { g.once.Do(func() { close(g.opened) }) }
func (g *gate) waiting() int { return len(g.in) - len(g.out) }
func (g *gate) ended() int   { return len(g.out) }
