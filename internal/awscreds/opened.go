package awscreds

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/secret"
)

// How old a copy of a Secret may be when it is served, and how soon it is read again.
const (
	fresh = 5 * time.Second
	// nearEnd is how long before its end a session is looked for in the Secret as
	// often as is allowed.
	nearEnd = time.Minute
	// pause is the shortest time from one reading to the next, however many ask.
	pause = time.Second
	// patience is how long a request waits for a reading.
	patience = 2 * time.Second
	// readTimeout bounds one reading.
	readTimeout = 10 * time.Second
)

// known is what a Secret was found to hold.
type known struct {
	session Session
	refused *secret.RefusedError // instead of a session
}

// opened is one token and its Secret. A goroutine of its own reads the Secret, so
// that there is one reading at a time.
type opened struct {
	token   [sha256.Size]byte // its hash
	ref     secret.Ref
	secrets Secrets
	clock   clock.WithTicker
	tell    func(error)
	log     *slog.Logger

	ask  chan struct{} // with room for one: somebody waits
	done <-chan struct{}

	mu      sync.Mutex
	read    chan struct{} // closed at the end of the next reading
	began   time.Time     // of the reading that is under way, else zero
	ended   time.Time     // of the last one, zero where there was none
	missed  bool          // the last one found nothing out
	has     *known        // nil: nothing is known yet
	stopped bool
}

// due tells whether the Secret is to be read again for somebody who asks.
func (o *opened) due(now time.Time) bool {
	if o.ended.IsZero() {
		return true
	}
	age := now.Sub(o.ended)
	if age < 0 { // the clock was set back
		return true
	}
	usable := o.usable(now)
	switch {
	case !usable:
		return age >= pause
	case o.missed:
		return age >= fresh
	case !o.has.session.Expiration.IsZero() && o.has.session.Expiration.Sub(now) < nearEnd:
		return age >= pause
	}
	return age >= fresh
}

func (o *opened) usable(now time.Time) bool {
	return o.has != nil && o.verdict(now) == nil
}

// verdict is what tell is told of what is known.
func (o *opened) verdict(now time.Time) error {
	switch {
	case o.has.refused != nil:
		return o.has.refused
	case o.has.session.expired(now):
		return &ExpiredError{Secret: o.ref.Name, At: o.has.session.Expiration}
	}
	return nil
}

// errClosed: nobody may have the session any more.
var errClosed = errors.New("closed")

// current is the session, as new as is promised. Errors: what tell is told,
// secret.ErrUnavailable, errClosed, ctx's.
func (o *opened) current(ctx context.Context) (Session, error) {
	o.mu.Lock()
	now := o.clock.Now()
	if o.due(now) && !o.stopped {
		// Where the API has kept others waiting already, what is there must do.
		if slow := !o.began.IsZero() && now.Sub(o.began) >= patience; !slow || !o.usable(now) {
			read := o.read
			select {
			case o.ask <- struct{}{}:
			default:
			}
			o.mu.Unlock()
			timer := o.clock.NewTimer(patience)
			defer timer.Stop()
			select {
			case <-read:
			case <-timer.C():
			case <-o.done:
			case <-ctx.Done():
				return Session{}, ctx.Err()
			}
			o.mu.Lock()
		}
	}
	defer o.mu.Unlock()
	switch {
	case o.stopped:
		return Session{}, errClosed
	case o.has == nil:
		return Session{}, secret.ErrUnavailable
	}
	if err := o.verdict(o.clock.Now()); err != nil {
		return Session{}, err
	}
	return o.has.session, nil
}

// watch reads the Secret until ctx ends: at once, where somebody asks and it is due,
// and often enough to tell of a change that nobody asked about.
func (o *opened) watch(ctx context.Context) {
	var told bool
	var last string
	for {
		o.look(ctx)
		o.mu.Lock()
		now := o.clock.Now()
		next, has := fresh, o.has != nil // fresh: while nothing is known
		var verdict error
		if has {
			verdict = o.verdict(now)
			next = secret.PollInterval
			if left := o.has.session.Expiration.Sub(now); verdict == nil && left > 0 && left < next {
				next = left
			}
		}
		stopped := o.stopped
		o.mu.Unlock()
		if stopped {
			return
		}
		if has && (!told || text(verdict) != last) {
			told, last = true, text(verdict)
			o.tell(verdict)
		}
		if !o.wait(ctx, next) {
			return
		}
	}
}

// wait returns when the Secret is to be read again, and tells whether it is.
func (o *opened) wait(ctx context.Context, next time.Duration) bool {
	timer := o.clock.NewTimer(next)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C():
			return true
		case <-o.ask:
			o.mu.Lock()
			due := o.due(o.clock.Now())
			o.mu.Unlock()
			if due {
				return true
			}
		}
	}
}

// look reads the Secret once.
func (o *opened) look(ctx context.Context) {
	o.mu.Lock()
	o.began = o.clock.Now()
	o.mu.Unlock()
	timed, cancel := context.WithTimeout(ctx, readTimeout)
	found := &known{}
	err := bug.Guard(o.log, func() error {
		data, err := o.secrets.Current(timed, o.ref, required()...)
		if err == nil {
			found.session, err = Parse(data, o.ref.Name)
		}
		return err
	}, "secret", o.ref.Name)
	cancel()
	refused := (*secret.RefusedError)(nil)
	if errors.As(err, &refused) {
		found.refused, err = refused, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.missed = err != nil; !o.missed {
		o.has = found
	}
	o.began, o.ended = time.Time{}, o.clock.Now()
	close(o.read)
	o.read = make(chan struct{})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
