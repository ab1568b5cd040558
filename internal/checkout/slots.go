package checkout

import (
	"context"
	"sync"
)

// slots bound the jobs that run at the same time. One server that stalls takes its
// own share, not all.
type slots struct {
	all     chan struct{}
	perHost int
	hosts   *hostSlots
}

type hostSlots struct {
	mu     sync.Mutex
	byHost map[string]*hostSlot
}

type hostSlot struct {
	free  chan struct{}
	users int
}

func newSlots(all, perHost int) slots {
	return slots{make(chan struct{}, all), perHost, &hostSlots{byHost: map[string]*hostSlot{}}}
}

// take waits for a slot. The host's comes first: who waits for a slow server does
// not hold a slot of everybody meanwhile.
func (s slots) take(ctx context.Context, host string) (free func(), err error) {
	h := s.hosts.enter(host, s.perHost)
	select {
	case h.free <- struct{}{}:
	case <-ctx.Done():
		s.hosts.leave(host)
		return nil, context.Cause(ctx)
	}
	back := func() {
		<-h.free
		s.hosts.leave(host)
	}
	select {
	case s.all <- struct{}{}:
	case <-ctx.Done():
		back()
		return nil, context.Cause(ctx)
	}
	return func() {
		<-s.all
		back()
	}, nil
}

func (h *hostSlots) enter(host string, size int) *hostSlot {
	h.mu.Lock()
	defer h.mu.Unlock()
	slot := h.byHost[host]
	if slot == nil {
		slot = &hostSlot{free: make(chan struct{}, size)}
		h.byHost[host] = slot
	}
	slot.users++
	return slot
}

func (h *hostSlots) leave(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byHost[host].users--; h.byHost[host].users == 0 {
		delete(h.byHost, host)
	}
}
