package awscreds

import (
	"container/list"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/internal/secret"
)

// Path is where credentials are.
const Path = "/credentials"

// DefaultLifetime is how far ahead the served Expiration lies at most, where nothing
// else is asked for. The SDK for Go asks again in the last five minutes, for every
// request: with one minute more it asks once a minute.
const DefaultLifetime = 6 * time.Minute

// Bounds of what a process may make the server hold. A request is answered within
// patience, a connection has one request.
const (
	maxConnections = 512
	maxHeader      = 8 << 10 // bytes; net/http reads 4 KiB more
	headerTimeout  = 2 * time.Second
	writeTimeout   = headerTimeout + patience + 5*time.Second
	closeTimeout   = patience + time.Second
)

// Secrets reads Secrets for Pods. *secret.Reader is one.
type Secrets interface {
	Current(ctx context.Context, ref secret.Ref, keys ...string) (secret.Data, error)
}

// Server serves the sessions that are open. It may serve several listeners.
type Server struct {
	Secrets Secrets
	// Clock is the system's where it is nil.
	Clock clock.WithTicker
	// Log gets what net/http has to say, at level debug, and bugs.
	Log *slog.Logger
	// Lifetime is how far ahead the served Expiration lies at most, see the package's
	// words; 0 is DefaultLifetime.
	Lifetime time.Duration

	mu   sync.Mutex
	open []*opened
}

// NewToken is a token that nobody can guess: 43 characters that need no escape.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func (s *Server) clock() clock.WithTicker {
	if s.Clock == nil {
		return clock.RealClock{}
	}
	return s.Clock
}

// Open answers requests with this token from the Secret until close is called. tell
// hears nil when the Secret holds a usable session, else a *secret.RefusedError or
// an *ExpiredError: at once, which is when the Secret has been read, and at each
// change, also when nobody asks. While nothing can be found out, it hears nothing.
//
// tell is called from one goroutine, which reads the Secret too, so it should return
// soon. close does not wait for it: a call that has begun may end later. It may be
// called more than once. An empty token is never answered.
func (s *Server) Open(token string, ref secret.Ref, tell func(error)) (close func()) {
	ctx, cancel := context.WithCancel(context.Background())
	o := &opened{
		token: sha256.Sum256([]byte(token)), ref: ref, secrets: s.Secrets, clock: s.clock(), tell: tell, log: s.log(),
		ask: make(chan struct{}, 1), done: ctx.Done(), read: make(chan struct{}),
	}
	s.mu.Lock()
	s.open = append(s.open, o)
	s.mu.Unlock()
	go o.watch(ctx)
	return func() {
		o.mu.Lock()
		o.stopped, o.has = true, nil
		o.mu.Unlock()
		cancel()
		s.mu.Lock()
		s.open = slices.DeleteFunc(s.open, func(other *opened) bool { return other == o })
		s.mu.Unlock()
	}
}

// find is whose token it is, nil where nobody's. Each open session is compared, by
// hashes and without a branch: the time it takes says nothing of any token.
func (s *Server) find(token string) *opened {
	asked := sha256.Sum256([]byte(token))
	s.mu.Lock()
	defer s.mu.Unlock()
	at := -1
	for i, o := range s.open {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(asked[:], o.token[:]), i, at)
	}
	if at < 0 || token == "" {
		return nil
	}
	return s.open[at]
}

func (s *Server) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

// Serve answers on l until ctx ends, and closes l. It returns nil when ctx has ended.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(s.handle),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      writeTimeout,
		ErrorLog:          slog.NewLogLogger(s.log().Handler(), slog.LevelDebug),
		// OPTIONS * would be answered by net/http itself.
		DisableGeneralOptionsHandler: true,
	}
	server.SetKeepAlivesEnabled(false)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(&bounded{Listener: l, max: maxConnections, open: list.New()}) }()
	select {
	case err := <-ended:
		_ = server.Close() // the listener's error is what there is to tell
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close() // those that are left had their time
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.Path != Path {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	given := r.Header.Values("Authorization")
	var o *opened
	if len(given) == 1 {
		o = s.find(given[0])
	}
	if o == nil {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	status, body := s.reply(r.Context(), o)
	if body != nil {
		w.Header().Set("Content-Type", "application/json") // as it is: the SDK for Go compares
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // who has gone needs no answer
}

func (s *Server) reply(ctx context.Context, o *opened) (status int, body []byte) {
	session, err := o.current(ctx)
	var expired *ExpiredError
	var refused *secret.RefusedError
	switch {
	case errors.Is(err, errClosed):
		return http.StatusForbidden, nil
	case errors.As(err, &refused):
		return problem(http.StatusBadRequest, "SecretRefused", refused.Reason)
	case errors.As(err, &expired):
		return problem(http.StatusBadRequest, "SessionExpired", expired.Error())
	case err != nil:
		return problem(http.StatusServiceUnavailable, "SecretUnavailable", "the Secret could not be read yet: try again")
	}
	lifetime := s.Lifetime
	if lifetime <= 0 {
		lifetime = DefaultLifetime
	}
	body, err = session.answer(o.clock.Now().Add(lifetime))
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	return http.StatusOK, body
}

func problem(status int, code, message string) (int, []byte) {
	body, err := json.Marshal(map[string]string{"code": code, "message": message})
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	return status, body
}
