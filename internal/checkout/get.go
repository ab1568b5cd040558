package checkout

import (
	"context"
	"errors"
	"time"

	"github.com/datalayer/node-mounts/internal/bug"
)

// flightKey is what two requests share when they can share the work.
type flightKey struct {
	url, revision string
	credential    string // its digest; empty: none
}

// flight is work that callers wait for.
type flight struct {
	job     *job
	turn    *turn
	began   time.Time
	waiting int // the store's lock guards it
	cancel  context.CancelCauseFunc
	done    chan struct{}
	// Set before done is closed.
	key string
	err error
}

var errNobodyWaits = errors.New("nobody waits for the checkout any more")

// Get returns the checkout of a commit, and makes it where there is none. Callers
// that ask for the same at the same time wait for the same clone; when the last of
// them gives up, it ends. The error is *Error, or that of ctx.
func (s *Store) Get(ctx context.Context, r Request) (*Checkout, error) {
	where, err := parseRemote(r.URL)
	if err != nil {
		return nil, err
	}
	if !fullSHA.MatchString(r.Revision) {
		return nil, fail(Invalid, "the revision is not a full commit id of 40 hex digits in lower case")
	}
	if r.Use == "" {
		return nil, fail(Invalid, "the request does not say who uses the checkout")
	}
	if err := r.Credential.usable(where.transport); err != nil {
		return nil, err
	}
	// Somebody may remove a checkout by hand before it is claimed: it is worth another.
	for range 3 {
		if found := s.find(where, r); found != nil {
			return found, nil
		}
		f, err := s.join(where, r)
		if err != nil {
			return nil, err
		}
		found, err := s.await(ctx, f, r)
		if found != nil || err != nil {
			return found, err
		}
	}
	return nil, fail(Failed, "somebody removes the checkouts of this node as they are made")
}

// find claims a checkout that is there and that this request may have without
// asking the server.
func (s *Store) find(where remote, r Request) *Checkout {
	if found := s.claim(contentKey(where, r.Revision, false), r.Use); found != nil {
		return found
	}
	key := contentKey(where, r.Revision, true)
	if r.Credential == nil || !s.proven(key, r.Credential) {
		return nil
	}
	return s.claim(key, r.Use)
}

// proven says whether the server has accepted this credential for this checkout a
// moment ago.
func (s *Store) proven(key string, c *Credential) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.ready[key]
	return p != nil && s.config.Now().Before(p.proofs[c.digest(s.salt)])
}

func (s *Store) notePrivate(key string, c *Credential) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	p := s.ready[key]
	if p == nil {
		return
	}
	for digest, until := range p.proofs {
		if !now.Before(until) {
			delete(p.proofs, digest)
		}
	}
	p.proofs[c.digest(s.salt)] = now.Add(proofLife)
}

// join takes part in the flight for a request, or starts it.
func (s *Store) join(where remote, r Request) (*flight, error) {
	key := flightKey{where.url, r.Revision, r.Credential.digest(s.salt)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[key]; f != nil && f.waiting > 0 {
		f.waiting++
		s.slots.join(f.turn, r.Pod)
		return f, nil
	}
	if s.ctx.Err() != nil {
		return nil, fail(Failed, "the agent is stopping")
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	f := &flight{
		job: &job{store: s, remote: where, revision: r.Revision, credential: r.Credential, order: s.begun},
		// Whether the content is private, only the work tells: requests with credentials
		// and without are one work.
		turn:  s.slots.enter(where.host, record{URL: where.url, Revision: r.Revision}.work(), r.Pod),
		began: s.config.Now(), waiting: 1, cancel: cancel, done: make(chan struct{}),
	}
	s.begun++
	f.job.enter(PhaseWaiting)
	s.flights[key] = f
	s.working.Go(func() {
		ctx, stop := context.WithTimeoutCause(ctx, s.config.Limits.Timeout,
			fail(Timeout, "the checkout was not complete within "+s.config.Limits.Timeout.String()))
		defer stop()
		var made string
		err := bug.Guard(s.config.Log, func() (err error) {
			made, err = s.fly(ctx, f)
			return err
		})
		cancel(nil)
		s.mu.Lock()
		f.key, f.err = made, err
		if s.flights[key] == f {
			delete(s.flights, key)
		}
		if err == nil && f.waiting > 0 {
			s.landed[f] = true
		}
		s.mu.Unlock()
		// Until here its checkout is kept by its turn, from here on by who waits for it.
		s.slots.leave(f.turn)
		close(f.done)
	})
	return f, nil
}

// await waits for a flight as long as its caller does, and claims what it has made;
// nil when that is not there any more.
func (s *Store) await(ctx context.Context, f *flight, r Request) (*Checkout, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots.part(f.turn, r.Pod)
	defer func() {
		if f.waiting--; f.waiting == 0 {
			// Too late for a flight that has ended.
			f.cancel(errNobodyWaits)
			delete(s.landed, f)
		}
	}()
	select {
	case <-f.done:
	default:
		return nil, context.Cause(ctx)
	}
	if f.err != nil {
		return nil, f.err
	}
	return s.claimLocked(f.key, r.Use), nil
}

// fly does the work of one flight when its turn has come. Work on one commit of one
// repository is done once at a time: who comes second finds it there, and has to prove
// no more than its credential.
func (s *Store) fly(ctx context.Context, f *flight) (key string, err error) {
	if err := s.slots.wait(ctx, f.turn); err != nil {
		return "", err
	}
	key, err = s.attempt(ctx, f.job)
	if ClassOf(err) == DiskFull && (s.dropIdle(ctx, 0) > 0 || f.job.freed.Load()) {
		key, err = s.attempt(ctx, s.anew(f))
	}
	if errors.Is(err, errNowPublic) {
		key, err = s.attempt(ctx, s.anew(f))
	}
	return key, err
}

// anew gives a flight a job that has done nothing yet.
func (s *Store) anew(f *flight) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := f.job
	f.job = &job{
		store: s, remote: was.remote, revision: was.revision, credential: was.credential, order: was.order, unproven: was.unproven,
	}
	f.job.enter(PhaseResolving)
	return f.job
}

// errNowPublic says that a private checkout is there, and that the server shows it to
// anybody by now. What was read without a credential is another checkout.
var errNowPublic = errors.New("the server did not ask for the credential")

func (s *Store) attempt(ctx context.Context, j *job) (key string, err error) {
	if public := contentKey(j.remote, j.revision, false); s.isReady(public) {
		return public, nil
	}
	defer func() {
		if err := j.discard(); err != nil {
			s.config.Log.Error("the folder of a checkout cannot be removed", "folder", j.path, "error", err)
		}
	}()
	if err := j.prepare(ctx); err != nil {
		return "", err
	}
	if private := contentKey(j.remote, j.revision, true); j.credential != nil && !j.unproven && s.isReady(private) {
		if err := j.prove(ctx); err != nil {
			return "", err
		}
		if !j.used.Load() {
			j.unproven = true
			return "", errNowPublic
		}
		s.notePrivate(private, j.credential)
		return private, nil
	}
	if err := j.clone(ctx); err != nil {
		return "", err
	}
	// A server that never asked for the credential shows this to anybody.
	private := j.used.Load()
	key = contentKey(j.remote, j.revision, private)
	if !s.isReady(key) {
		r, err := j.publish(key, private)
		if err != nil {
			return "", err
		}
		s.mu.Lock()
		s.ready[key] = &published{
			key: key, record: *r, users: map[string]bool{}, idle: s.config.Now(), proofs: map[string]time.Time{},
		}
		j.bytes.Store(0) // counted by its record from now on
		s.mu.Unlock()
	}
	if private {
		s.notePrivate(key, j.credential)
	}
	return key, nil
}

func (s *Store) isReady(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready[key] != nil
}
