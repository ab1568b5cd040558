package awscreds_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/secret"
)

const canary = "canary-5be20c"

// soon bounds a wait for what must happen.
const soon = 30 * time.Second

// api is Secrets in memory, by name, all of the Pod uid-1 in the namespace sandboxes.
type api struct {
	mu   sync.Mutex
	has  map[string]map[string]string
	err  error
	hang chan struct{} // readings wait until it is closed
	asks int
}

func (a *api) Secret(ctx context.Context, _, name string) (secret.Stored, error) {
	a.mu.Lock()
	a.asks++
	values, ok := a.has[name]
	err, hang := a.err, a.hang
	a.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return secret.Stored{}, ctx.Err()
		}
	}
	switch {
	case err != nil:
		return secret.Stored{}, err
	case !ok:
		return secret.Stored{}, secret.ErrNotFound
	}
	data := map[string][]byte{}
	for k, v := range values {
		data[k] = []byte(v)
	}
	return secret.Stored{Owners: []secret.Owner{{APIVersion: "v1", Kind: "Pod", UID: "uid-1"}}, Data: secret.NewData(data)}, nil
}

func (a *api) put(name string, values map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.has[name] = values
}

func (a *api) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.has, name)
}

func (a *api) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *api) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asks
}

// keys are the values of a session that ends at a time, or never.
func keys(id string, ends time.Time) map[string]string {
	v := map[string]string{"access-key-id": id, "secret-access-key": canary + id, "session-token": "token-of-" + id}
	if !ends.IsZero() {
		v["expiration"] = ends.Format(time.RFC3339)
	}
	return v
}

// world is a server over HTTP.
type world struct {
	*testing.T
	api    *api
	clock  *clocktesting.FakeClock
	server *awscreds.Server
	url    string
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{
		T: t, api: &api{has: map[string]map[string]string{}},
		clock: clocktesting.NewFakeClock(time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)),
	}
	w.server = &awscreds.Server{
		Secrets: &secret.Reader{Source: w.api}, Clock: w.clock, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	l := listen(t)
	w.url = "http://" + l.Addr().String() + awscreds.Path
	w.serve(l)
	return w
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve serves until the returned function is called, or the test ends.
func (w *world) serve(l net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("serving ended by %v", err)
		}
	})
	w.Cleanup(stop)
	return stop
}

// told is what was told, in order.
type told chan error

// open opens a session for the Secret of this name.
func (w *world) open(token, name string) (heard told, closeIt func()) {
	heard = make(told, 100)
	closeIt = w.server.Open(token, secret.Ref{Namespace: "sandboxes", PodUID: "uid-1", Name: name}, func(err error) { heard <- err })
	w.Cleanup(closeIt)
	return heard, closeIt
}

func (w *world) next(what string, heard told) error {
	w.Helper()
	select {
	case err := <-heard:
		return err
	case <-time.After(soon):
		w.Fatalf("%s: nothing was told", what)
		return nil
	}
}

// well: the next that is told is that all is well.
func (w *world) well(what string, heard told) {
	w.Helper()
	if err := w.next(what, heard); err != nil {
		w.Fatalf("%s: told %v", what, err)
	}
}

// quiet: nothing more has been told. The clock stands still, so nothing will be.
func (w *world) quiet(what string, heard told) {
	w.Helper()
	select {
	case err := <-heard:
		w.Fatalf("%s: told %v", what, err)
	default:
	}
}

// step lets time pass once everybody waits for it to.
func (w *world) step(d time.Duration) {
	w.Helper()
	w.until("nobody waits for time to pass", w.clock.HasWaiters)
	w.clock.Step(d)
}

func (w *world) until(what string, done func() bool) {
	w.Helper()
	deadline := time.After(soon)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			w.Fatal(what)
		}
	}
}

// reply is an answer, with the fields as SDKs name them.
type reply struct {
	status int
	body   string
	header http.Header

	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string
	Token           string
	Expiration      time.Time
	Code, Message   string
}

func (w *world) get(token string) reply {
	w.Helper()
	return w.ask(http.MethodGet, w.url, token)
}

func (w *world) ask(method, url string, tokens ...string) reply {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, url, nil)
	if err != nil {
		w.Fatal(err)
	}
	req.Header["Authorization"] = tokens
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.Fatal(err)
	}
	got := reply{status: res.StatusCode, body: string(body), header: res.Header}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &got); err != nil {
			w.Fatalf("%q: %v", body, err)
		}
	}
	return got
}

// serves: the token gets the keys of this id.
func (w *world) serves(what, token, id string) reply {
	w.Helper()
	got := w.get(token)
	if got.status != http.StatusOK || got.AccessKeyID != id || got.SecretAccessKey != canary+id || got.Token != "token-of-"+id {
		w.Fatalf("%s: %d %s, want the keys of %s", what, got.status, got.body, id)
	}
	return got
}
