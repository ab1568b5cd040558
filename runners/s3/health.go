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
)

// health is whether the server lists the bucket. However many ask, one request is under
// way at a time.
type health struct {
	ask    func(context.Context) error
	report *reporter

	mu     sync.Mutex
	last   error
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
	h.mu.Lock()
	for time.Now().After(h.until) {
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

func (h *health) request(done chan struct{}) {
	err := h.ask(context.Background()) // not the caller's: others wait for it too
	if err != nil {
		h.report.say("statfs", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.until, h.asking = err, time.Now().Add(goodFor), nil
	if err != nil {
		h.until = time.Now().Add(badFor)
	}
	close(done)
}
