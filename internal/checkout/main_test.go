package checkout_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/checkout/checkouttest"
	"github.com/datalayer/node-mounts/test/gitserver"
	"github.com/datalayer/node-mounts/test/textlog"
)

func TestMain(m *testing.M) {
	// The test binary plays the agent: it is also the confined child and askpass.
	if os.Args[0] == checkout.ConfinedName {
		// The agent starts with a heap that is collected at any moment: so does this one,
		// and what nothing in the program refers to any more is gone.
		go func() {
			for {
				runtime.GC()
			}
		}()
	}
	if code, ours := checkout.Main(os.Args); ours {
		os.Exit(code)
	}
	if filepath.Base(os.Args[0]) == probeName {
		os.Exit(probe(os.Args[1:]))
	}
	if root := os.Getenv(victimVariable); root != "" {
		os.Exit(victim(root))
	}
	if root := os.Getenv(fullVariable); root != "" {
		os.Exit(fillDisk(root))
	}
	if errno := os.Getenv(fencelessVariable); errno != "" {
		if err := refuseLandlock(errno); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// nobody runs git in these tests, ada owns what is published.
const nobody, ada, users = 65534, 1000, 100

type world struct {
	t     *testing.T
	repos string
	store *checkout.Store
	root  string
	log   *textlog.Log
	clock *clock
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "co")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{
		t: t, repos: shortDir(t), root: filepath.Join(shortDir(t), "s"), log: &textlog.Log{},
		clock: &clock{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)},
	}
}

func (w *world) config() checkout.Config {
	limits := checkouttest.Limits()
	limits.Timeout = 20 * time.Minute
	return checkout.Config{
		Root: w.root, Boot: "this boot", User: nobody, Group: nobody, Owner: checkout.Owner{UID: ada, GID: users},
		Now: w.clock.Now, Log: slog.New(slog.NewTextHandler(w.log, nil)),
		Limits: limits,
	}
}

// in is the same world in a subtest.
func (w *world) in(t *testing.T) *world {
	c := *w
	c.t = t
	return &c
}

// open opens the store, trusting the servers, with changes to its settings.
func (w *world) open(servers []*gitserver.HTTPS, change ...func(*checkout.Config)) {
	w.t.Helper()
	c := w.config()
	for _, s := range servers {
		c.CA = append(c.CA, s.CA()...)
		c.Network.Allow = append(c.Network.Allow, s.Address())
	}
	for _, f := range change {
		f(&c)
	}
	var err error
	if w.store, err = checkout.Open(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.store.Close)
	w.store.Recover(nil)
}

func (w *world) https(s *gitserver.HTTPS) *gitserver.HTTPS {
	w.t.Helper()
	s.Start(w.t, w.repos)
	return s
}

func (w *world) repository() *gitserver.Repository {
	w.t.Helper()
	return gitserver.NewRepository(w.t, w.repos, "team/tutorial.git")
}

func (w *world) get(r checkout.Request) (*checkout.Checkout, error) {
	w.t.Helper()
	if r.Use == "" {
		r.Use = "pod/target"
	}
	ctx, stop := context.WithTimeout(w.t.Context(), 3*time.Minute)
	defer stop()
	return w.store.Get(ctx, r)
}

func (w *world) mustGet(r checkout.Request) *checkout.Checkout {
	w.t.Helper()
	c, err := w.get(r)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	return c
}

func (w *world) failure(r checkout.Request, class checkout.Class) error {
	w.t.Helper()
	c, err := w.get(r)
	if err == nil {
		w.t.Fatalf("a checkout at %s where %s was expected", c.Path, class)
	}
	if got := checkout.ClassOf(err); got != class {
		w.t.Fatalf("class %s, expected %s: %v", got, class, err)
	}
	w.nothingLeft()
	return err
}

func (w *world) fails(r checkout.Request, class checkout.Class) {
	w.t.Helper()
	_ = w.failure(r, class)
}

// nothingLeft looks for half a checkout.
func (w *world) nothingLeft() {
	w.t.Helper()
	if names := list(w.t, filepath.Join(w.root, "jobs")); len(names) != 0 {
		w.t.Errorf("left behind: %v", names)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func content(t *testing.T, c *checkout.Checkout, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Path, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eventually waits for a condition that another process brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	late := time.After(2 * time.Minute)
	for !holds() {
		select {
		case <-ticker.C:
		case <-late:
			t.Fatalf("%s: not within two minutes", what)
		}
	}
}

func loopback(a netip.AddrPort) func(*checkout.Config) {
	return func(c *checkout.Config) { c.Network.Allow = append(c.Network.Allow, a) }
}
