package awscreds_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/secret"
)

func TestATokenGetsItsOwnSessionInTheFormOfSDKs(t *testing.T) {
	w := start(t)
	ends := w.clock.Now().Add(time.Hour)
	w.api.put("ada", keys("ADA", ends))
	w.api.put("eve", keys("EVE", time.Time{}))
	ada, eve := awscreds.NewToken(), awscreds.NewToken()
	if ada == eve || len(ada) < 40 {
		t.Fatalf("tokens %q and %q", ada, eve)
	}
	heard, _ := w.open(ada, "ada")
	w.open(eve, "eve")
	got := w.serves("ada", ada, "ADA")
	if got.header.Get("Content-Type") != "application/json" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", got.header)
	}
	if !strings.Contains(got.body, `"Expiration":"2026-03-01T10:06:00Z"`) {
		t.Errorf("a session of an hour is served as one for another time than 6 minutes: %s", got.body)
	}
	w.serves("eve, whose session does not expire", eve, "EVE")
	w.open("", "eve")
	if err := w.next("ada", heard); err != nil {
		t.Errorf("told %v of a usable session", err)
	}
	for what, tokens := range map[string][]string{
		"none": nil, "an empty one": {""}, "another": {awscreds.NewToken()}, "half of one": {ada[:20]}, "one and more": {ada + "x"},
		"in other case": {strings.ToLower(ada)}, "with a scheme": {"Bearer " + ada}, "two": {ada, eve},
	} {
		if got := w.ask(http.MethodGet, w.url, tokens...); got.status != http.StatusForbidden || got.body != "" {
			t.Errorf("%s: %d %q", what, got.status, got.body)
		}
	}
	base := strings.TrimSuffix(w.url, awscreds.Path)
	for _, path := range []string{"/", "/credentials/", "/Credentials", "//credentials", "/x/../credentials", "/metrics", "/debug/pprof/"} {
		if got := w.ask(http.MethodGet, base+path, ada); got.status != http.StatusNotFound || got.body != "" {
			t.Errorf("%s: %d %q", path, got.status, got.body)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodOptions} {
		if got := w.ask(method, w.url, ada); got.status != http.StatusMethodNotAllowed || got.body != "" {
			t.Errorf("%s: %d %q", method, got.status, got.body)
		}
	}
}

func TestASessionWithoutATokenOfItsOwnAndNearItsEndIsServedAsItIs(t *testing.T) {
	w := start(t)
	static := keys("ADA", w.clock.Now().Add(90*time.Second))
	delete(static, "session-token")
	w.api.put("s", static)
	w.open("t", "s")
	got := w.get("t")
	if got.status != http.StatusOK || strings.Contains(got.body, "Token") || !got.Expiration.Equal(w.clock.Now().Add(90*time.Second)) {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestTheLifetimeThatIsAskedForIsServed(t *testing.T) {
	w := start(t)
	w.server.Lifetime = time.Minute
	w.api.put("s", keys("ADA", time.Time{}))
	w.open("t", "s")
	if got := w.get("t"); !got.Expiration.Equal(w.clock.Now().Add(time.Minute)) {
		t.Errorf("%s", got.body)
	}
}

func TestARotatedSecretIsServedWithinSeconds(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	heard, _ := w.open("t", "s")
	w.serves("at first", "t", "ONE")
	w.well("at first", heard)
	w.api.put("s", keys("TWO", time.Time{}))
	w.step(4 * time.Second)
	w.serves("after 4 seconds a copy is good enough", "t", "ONE")
	w.step(time.Second)
	w.serves("after 5 seconds", "t", "TWO")
	w.quiet("a usable session took the place of another", heard)
}

func TestARefusedSecretIsToldAndAnswersWithoutIt(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	heard, _ := w.open("t", "s")
	w.well("at first", heard)
	w.api.remove("s")
	w.step(5 * time.Second)
	refused := func(what, says string) {
		t.Helper()
		got := w.get("t")
		if got.status != http.StatusBadRequest || got.Code != "SecretRefused" || !strings.Contains(got.Message, says) || got.AccessKeyID != "" ||
			got.header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %d %s", what, got.status, got.body)
		}
		err := w.next(what, heard)
		if refusal, ok := errors.AsType[*secret.RefusedError](err); !ok || !strings.Contains(refusal.Reason, says) {
			t.Fatalf("%s: told %v", what, err)
		}
	}
	refused("deleted", "does not exist")
	broken := keys("TWO", time.Time{})
	delete(broken, "secret-access-key")
	w.api.put("s", broken)
	w.step(time.Second) // what is refused is looked at again soon
	refused("half a key", `no "secret-access-key"`)
	broken = keys("TWO", time.Time{})
	broken["expiration"] = canary
	w.api.put("s", broken)
	w.step(time.Second)
	refused("no time", "RFC 3339")
	w.api.put("s", keys("TWO", time.Time{}))
	w.step(time.Second)
	w.serves("right again", "t", "TWO")
	if err := w.next("right again", heard); err != nil {
		t.Errorf("told %v", err)
	}
}

func TestAnExpiredSessionIsToldAtItsEndAndRefreshed(t *testing.T) {
	w := start(t)
	ends := w.clock.Now().Add(8 * time.Second)
	w.api.put("s", keys("ONE", ends))
	heard, _ := w.open("t", "s")
	w.well("at first", heard)
	w.step(8 * time.Second)
	err := w.next("at the end", heard) // and nobody had to ask
	if expired, ok := errors.AsType[*awscreds.ExpiredError](err); !ok || !expired.At.Equal(ends) {
		t.Fatalf("told %v", err)
	}
	if got := w.get("t"); got.status != http.StatusBadRequest || got.Code != "SessionExpired" || got.AccessKeyID != "" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	w.api.put("s", keys("TWO", w.clock.Now().Add(8*time.Second)))
	w.step(time.Second)
	w.serves("refreshed", "t", "TWO")
	if err := w.next("refreshed", heard); err != nil {
		t.Errorf("told %v", err)
	}
	// Refreshed before its end, it is not told at all.
	w.api.put("s", keys("THREE", w.clock.Now().Add(time.Hour)))
	w.step(time.Second)
	w.serves("in time", "t", "THREE")
	w.step(time.Minute)
	w.serves("beyond the end of the one before", "t", "THREE")
	w.quiet("refreshed in time", heard)
}

func TestAChangeIsToldAlsoWhenNobodyAsks(t *testing.T) {
	w := start(t)
	heard, _ := w.open("t", "s")
	if err := w.next("at first", heard); err == nil {
		t.Fatal("told of a usable session in a Secret that does not exist")
	}
	w.api.put("s", keys("ONE", time.Time{}))
	w.step(secret.PollInterval)
	if err := w.next("made", heard); err != nil {
		t.Fatalf("told %v", err)
	}
	w.api.remove("s")
	w.step(secret.PollInterval)
	if err := w.next("deleted", heard); err == nil {
		t.Fatal("told of a usable session")
	}
}

func TestTheLastSessionIsServedWhileTheAPIIsAwayUntilItExpires(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", w.clock.Now().Add(10*time.Minute)))
	heard, _ := w.open("t", "s")
	w.well("at first", heard)
	w.api.fail(errors.New("connection refused"))
	for range 9 {
		w.step(time.Minute)
		w.serves("while the API is away", "t", "ONE")
	}
	w.quiet("while the API is away", heard)
	w.step(time.Minute)
	if err := w.next("at the end", heard); err == nil {
		t.Fatal("told of a usable session")
	}
	if got := w.get("t"); got.Code != "SessionExpired" {
		t.Fatalf("%d %s", got.status, got.body)
	}
}

func TestBeforeAnythingIsKnownSDKsAreToldToTryAgain(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	w.api.fail(errors.New("connection refused"))
	heard, _ := w.open("t", "s")
	if got := w.get("t"); got.status != http.StatusServiceUnavailable || got.Code != "SecretUnavailable" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	w.quiet("nothing is known", heard)
	w.api.fail(nil)
	w.step(5 * time.Second) // and nobody asks
	if err := w.next("the API is back", heard); err != nil {
		t.Fatal(err)
	}
	w.serves("the API is back", "t", "ONE")
}

func TestHoweverManyAskASecretIsReadOnceASecond(t *testing.T) {
	for what, prepare := range map[string]func(w *world){
		"near its end": func(w *world) { w.api.put("s", keys("ONE", w.clock.Now().Add(30*time.Second))) },
		"expired":      func(w *world) { w.api.put("s", keys("ONE", w.clock.Now())) },
		"refused":      func(*world) {},
	} {
		w := start(t)
		prepare(w)
		heard, _ := w.open("t", "s")
		_ = w.next(what, heard) // each has its own word
		for i := range 5 {
			before := w.api.asked()
			w.step(time.Second)
			var all sync.WaitGroup
			for range 40 {
				all.Go(func() { w.get("t") })
			}
			all.Wait()
			if n := w.api.asked() - before; n != 1 {
				t.Fatalf("%s, second %d: read %d times for 40 requests", what, i, n)
			}
		}
	}
}

func TestAnAPIThatIsAwayIsAskedAsRarelyAsWhereAllIsWell(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", w.clock.Now().Add(30*time.Second)))
	heard, _ := w.open("t", "s")
	w.well("at first", heard)
	w.api.fail(errors.New("connection refused"))
	before := w.api.asked()
	for range 11 {
		w.step(time.Second)
		w.serves("while the API is away", "t", "ONE")
	}
	// After 1, 6 and 11 seconds.
	if n := w.api.asked() - before; n != 3 {
		t.Errorf("asked %d times in 11 seconds", n)
	}
}

func TestAnAPIThatHangsKeepsNobodyWaitingWhoseSessionIsGood(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	heard, _ := w.open("t", "s")
	w.well("at first", heard)
	hang := make(chan struct{})
	w.api.mu.Lock()
	w.api.hang = hang
	w.api.mu.Unlock()
	before := w.api.asked()
	w.step(5 * time.Second)
	first := make(chan reply, 1)
	go func() { first <- w.get("t") }()
	w.until("the Secret is not read", func() bool { return w.api.asked() > before })
	w.step(2 * time.Second)
	if got := <-first; got.AccessKeyID != "ONE" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	w.serves("the next, at once: the clock stands still", "t", "ONE")
	close(hang)
}

func TestAClosedSessionAnswersNobodyAndTellsNothing(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	w.api.put("other", keys("TWO", time.Time{}))
	heard, closeIt := w.open("t", "s")
	w.open("u", "other")
	w.well("at first", heard)
	w.serves("open", "t", "ONE")
	closeIt()
	closeIt()
	if got := w.get("t"); got.status != http.StatusForbidden || got.body != "" {
		t.Errorf("closed: %d %s", got.status, got.body)
	}
	w.serves("the other one", "u", "TWO")
	w.api.remove("s")
	before := w.api.asked()
	w.step(secret.PollInterval)
	w.until("the other one is not polled", func() bool { return w.api.asked() > before })
	w.quiet("closed", heard)
	// The same token may be opened again: an agent that comes back adopts it.
	w.open("t", "other")
	w.serves("opened again", "t", "TWO")
}

func TestARequestThatWaitsWhenItsSessionIsClosedGetsNothing(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	hang := make(chan struct{})
	w.api.hang = hang
	_, closeIt := w.open("t", "s")
	got := make(chan reply, 1)
	go func() { got <- w.get("t") }()
	w.until("nobody waits", func() bool { return w.clock.HasWaiters() })
	closeIt()
	if r := <-got; r.status != http.StatusForbidden || r.body != "" {
		t.Errorf("%d %s", r.status, r.body)
	}
	close(hang)
}

func TestSessionsAreOpenedAskedAndClosedByMany(t *testing.T) {
	w := start(t)
	var all sync.WaitGroup
	for _, id := range strings.Fields("A B C D E F G H") {
		w.api.put(id, keys(id, time.Time{}))
		all.Go(func() {
			for range 10 {
				token := awscreds.NewToken()
				_, closeIt := w.open(token, id)
				w.serves("mine", token, id)
				closeIt()
				if got := w.get(token); got.status != http.StatusForbidden {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	all.Wait()
}

// A listener is handed over as a descriptor: a connection that is made while nobody
// serves waits for the next one who does.
func TestAConnectionWaitsForTheNextWhoServes(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	w.open("t", "s")
	kept, ok := listen(t).(*net.TCPListener)
	if !ok {
		t.Fatal("no TCP")
	}
	t.Cleanup(func() { _ = kept.Close() })
	copyOf := func() net.Listener {
		f, err := kept.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	w.url = "http://" + kept.Addr().String() + awscreds.Path
	stop := w.serve(copyOf())
	w.serves("the first", "t", "ONE")
	stop()
	waiting, err := net.Dial("tcp", kept.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	if _, err := waiting.Write([]byte("GET " + awscreds.Path + " HTTP/1.1\r\nHost: h\r\nAuthorization: t\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	w.serve(copyOf())
	answer := make([]byte, len("HTTP/1.1 200 OK"))
	_ = waiting.SetReadDeadline(time.Now().Add(soon))
	if _, err := waiting.Read(answer); err != nil || string(answer) != "HTTP/1.1 200 OK" {
		t.Errorf("%q %v", answer, err)
	}
}

func TestServingEndsWithAnErrorWhereTheListenerFails(t *testing.T) {
	l := listen(t)
	_ = l.Close()
	if err := (&awscreds.Server{}).Serve(context.Background(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestProcessesThatHoldConnectionsKeepNobodyFromTheirs(t *testing.T) {
	w := start(t)
	w.api.put("s", keys("ONE", time.Time{}))
	w.open("t", "s")
	address := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), awscreds.Path)
	held := make([]net.Conn, 600)
	for i := range held {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write([]byte("GET /cre")); err != nil {
			t.Fatal(err)
		}
		held[i] = c
	}
	w.serves("among 600 that say nothing", "t", "ONE")
	// The oldest went first. The last one is given up on in its turn: a request that
	// never ends is cut off.
	for what, c := range map[string]net.Conn{"the oldest": held[0], "the newest": held[len(held)-1]} {
		_ = c.SetReadDeadline(time.Now().Add(soon))
		b := make([]byte, 1024)
		n, err := c.Read(b)
		for err == nil {
			n, err = c.Read(b)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s is still held (%d bytes)", what, n)
		}
	}
	long, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = long.Close() }()
	// It may be cut off before all is written, with or without a word.
	_, _ = long.Write([]byte("GET " + awscreds.Path + " HTTP/1.1\r\nHost: h\r\nAuthorization: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"))
	_ = long.SetReadDeadline(time.Now().Add(soon))
	got, err := io.ReadAll(long)
	if errors.Is(err, os.ErrDeadlineExceeded) || len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 431 ") {
		t.Errorf("a header of 64 KiB: %q %v", got, err)
	}
	w.serves("after all of that", "t", "ONE")
}
