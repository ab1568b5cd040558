package checkout_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/test/gitserver"
)

// other is a server that a test writes itself; trusts has a store trust it.
func other(t *testing.T, serve http.HandlerFunc) (server *httptest.Server, trusts func(*checkout.Config)) {
	t.Helper()
	server = httptest.NewTLSServer(serve)
	t.Cleanup(server.Close)
	return server, func(c *checkout.Config) {
		c.CA = append(c.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})...)
		c.Network.Allow = append(c.Network.Allow, netip.MustParseAddrPort(server.Listener.Addr().String()))
	}
}

// says answers every question with an error in the words that the path has.
func says(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	words := strings.ReplaceAll(strings.Split(r.URL.Path, "/")[1], "_", " ")
	packet := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
	_, _ = io.WriteString(w, packet("# service=git-upload-pack\n")+"0000"+packet("ERR "+words+"\n"))
}

func TestWhatAServerOrAFileNameSaysFailsItsOwnGrantAndNothingElse(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	server := w.https(&gitserver.HTTPS{})
	liar, trusts := other(t, says)
	w.open([]*gitserver.HTTPS{server}, trusts)
	var idle []string
	for i := range 3 {
		sha := repo.Files(fmt.Sprint("b", i), map[string]string{"f": noise(64 << 10)})
		idle = append(idle, w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: fmt.Sprint(i)}).Path)
		w.store.Release(fmt.Sprint(i))
	}
	for _, words := range []string{
		"no space left on device", "out of diskspace", "disk quota exceeded", "authentication failed", "permission denied", "file too large",
		"could not resolve host", "out of memory", "fsck error", "host key verification failed",
	} {
		t.Run(words, func(t *testing.T) {
			w := w.in(t)
			w.fails(checkout.Request{URL: liar.URL + "/" + strings.ReplaceAll(words, " ", "_") + "/r", Revision: strings.Repeat("ab", 20)}, checkout.Failed)
			// git says what it could not make by its name, and a line may begin in one.
			for _, name := range []string{words, "x\nfatal: " + words} {
				sha := repo.Commit("evil", repo.RawTree(gitserver.Entry{Mode: "120000", Name: name, ID: repo.Blob(noise(5000))}))
				_, err := w.get(checkout.Request{URL: server.URL(repo.Name), Revision: sha})
				if class := checkout.ClassOf(err); class != checkout.Invalid && class != checkout.TooLarge {
					t.Errorf("the name %q makes it %s: %v", name, class, err)
				}
				if !strings.Contains(err.Error(), words[:10]) {
					t.Errorf("the name is not in what git says: %v", err)
				}
			}
		})
	}
	for _, path := range idle {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("words of others removed a checkout: %v", err)
		}
	}
}

// guarded shows its branches to anybody, and objects to who has the password.
func guarded(w *world, asks func(r *http.Request) bool) http.HandlerFunc {
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{
		"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_PROJECT_ROOT=" + w.repos, "GIT_HTTP_EXPORT_ALL=1",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}}
	return func(rw http.ResponseWriter, r *http.Request) {
		// In the old protocol the branches come without a question.
		r.Header.Del("Git-Protocol")
		if _, password, _ := r.BasicAuth(); asks(r) && password != canary {
			rw.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(rw, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(rw, r)
	}
}

func TestACredentialIsProvenByTheCommitAndNotByTheBranches(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "secret\n"})
	server, trusts := other(t, guarded(w, func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/git-upload-pack") }))
	w.open(nil, trusts)
	ask := checkout.Request{URL: server.URL + "/" + repo.Name, Revision: sha, Credential: &checkout.Credential{Token: canary}, Use: "a"}
	first := w.mustGet(ask)
	ask.Use = "b"
	for _, c := range []*checkout.Credential{nil, {Token: "garbage"}, {Token: "garbage", Username: "ada"}} {
		ask.Credential = c
		w.fails(ask, checkout.AuthRefused)
	}
	ask.Credential = &checkout.Credential{Password: canary}
	ask.Credential.KnownHosts = []byte("another credential")
	if again := w.mustGet(ask); again.Path != first.Path {
		t.Error("the right credential does not open the checkout that is there")
	}
}

func TestARepositoryThatHasBecomePublicIsReadAgainWithoutTheCredential(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "hello\n"})
	var public atomic.Bool
	server, trusts := other(t, guarded(w, func(*http.Request) bool { return !public.Load() }))
	w.open(nil, trusts)
	ask := checkout.Request{URL: server.URL + "/" + repo.Name, Revision: sha, Credential: &checkout.Credential{Token: canary}, Use: "a"}
	first := w.mustGet(ask)
	public.Store(true)
	ask.Credential, ask.Use = &checkout.Credential{Token: "garbage"}, "b"
	second := w.mustGet(ask)
	if second.Path == first.Path {
		t.Error("a credential that nobody asked for opened the private checkout")
	}
	if got := content(t, second, "README"); got != "hello\n" {
		t.Errorf("README holds %q", got)
	}
	w.nothingLeft()
}

func TestAProofCostsTheCommitAloneWhereTheServerKnowsFilters(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"f": noise(8 << 20)})
	repo.Git("config", "uploadpack.allowFilter", "true")
	server := w.https(private(&gitserver.HTTPS{}))
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Bytes = 32 << 20 })
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha, Credential: &checkout.Credential{Token: canary}, Use: "a"}
	w.mustGet(ask)
	sent := server.Sent()
	ask.Credential, ask.Use = &checkout.Credential{Password: canary}, "b"
	ask.Credential.KnownHosts = []byte("another credential")
	w.mustGet(ask)
	if more := server.Sent() - sent; more > 64<<10 {
		t.Errorf("the proof cost %d bytes, the checkout %d", more, sent)
	}
}
