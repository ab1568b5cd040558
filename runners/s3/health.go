package main

import (
	"context"
	"sync"
	"syscall"
	"time"
)

const (
	// goodFor is for how long an answer of the server counts, badFor for how long the
	// lack of one does.
	goodFor = 10 * time.Second
	badFor  = time.Second
	// healthTimeout bounds statfs(2): whoever watches the mount asks it.
	healthTimeout = 4 * time.Second
	// gateTimeout bounds the wait for an answer where the last did not come.
	gateTimeout = time.Second
)

// health is whether the server lists the bucket. However many ask, one request is under
// way at a time.
type health struct {
	ask    func(context.Context) error
	report *reporter

	mu     sync.Mutex
	last   error
	begun  time.Time     // when the request was made that last answers
	until  time.Time     // for how long last counts
	asking chan struct{} // closed when the request that is under way has been answered
}

func newHealth(b *bucket, report *reporter) *health {
	return &health{report: report, ask: func(ctx context.Context) error {
		_, err := b.ask(ctx, healthTimeout)
		return err
	}, until: time.Now().Add(goodFor)} // it was asked when the process started
}

// errno is EIO where the server does not answer, the bucket is gone, or the credential
// is refused.
func (h *health) errno(ctx context.Context) syscall.Errno {
	given, stop := givenUp(ctx)
	defer stop()
	return h.since(time.Time{}, given)
}

// since is by a request that is not older than that; EINTR where given is closed.
func (h *health) since(oldest time.Time, given <-chan struct{}) syscall.Errno {
	h.mu.Lock()
	for time.Now().After(h.until) || h.begun.Before(oldest) {
		asking := h.asking
		if asking == nil {
			asking = make(chan struct{})
			h.asking = asking
			go h.request(asking)
		}
		h.mu.Unlock()
		select {
		case <-asking:
		case <-given:
			return syscall.EINTR
		}
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if h.last != nil {
		return syscall.EIO
	}
	return 0
}

// gate is errno where the server did not answer when it was last asked, and 0 otherwise:
// calls that the kernel has come one after the other would each wait as long as the first.
func (h *health) gate() syscall.Errno {
	if h.isGood() {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), gateTimeout)
	defer cancel()
	if h.since(time.Time{}, ctx.Done()) != 0 {
		return syscall.EIO
	}
	return 0
}

func (h *health) isGood() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last == nil
}

// doubt has the server asked before it is used again: it did not answer.
func (h *health) doubt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		h.last, h.until = errLate, time.Time{}
	}
}

func (h *health) request(done chan struct{}) {
	begun := time.Now()
	err := h.ask(context.Background()) // not the caller's: others wait for it too
	if err != nil {
		h.report.say("statfs", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.begun, h.until, h.asking = err, begun, time.Now().Add(goodFor), nil
	if err != nil {
		h.until = time.Now().Add(badFor)
	}
	close(done)
}
