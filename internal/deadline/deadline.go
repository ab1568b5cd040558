// Package deadline puts a bound on calls that may never return.
//
// A stat, open or readdir on a filesystem whose server has gone blocks its
// thread in the kernel, and nothing can take it back. Such a call runs on a
// thread that may be lost; when the bound has passed, the caller goes on
// without it. Lost threads are budgeted, so that one dead filesystem costs a
// few threads and not the node.
package deadline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrHung says that the storage did not answer within the bound, or was not
// asked because too many earlier calls to it have not come back.
var ErrHung = errors.New("the storage does not answer")

// Key is something that threads are lost to, and how many it may have at once.
type Key struct {
	Name  string
	Limit int
}

// Budget counts the calls that are under way, by key. The zero value is ready.
type Budget struct {
	mu   sync.Mutex
	busy map[string]int
}

// Lost is how many calls have outlived their bound and not come back yet.
func (b *Budget) Lost() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy[lostKey]
}

const lostKey = ""

func (b *Budget) take(keys []Key) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy == nil {
		b.busy = make(map[string]int)
	}
	for _, k := range keys {
		if b.busy[k.Name] >= k.Limit {
			return fmt.Errorf("%w: %d earlier calls have not come back", ErrHung, b.busy[k.Name])
		}
	}
	for _, k := range keys {
		b.busy[k.Name]++
	}
	return nil
}

func (b *Budget) give(keys []Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if b.busy[k.Name]--; b.busy[k.Name] <= 0 {
			delete(b.busy, k.Name)
		}
	}
}

// Do runs call on a goroutine of its own and waits for it at most for bound, or
// until ctx ends. When call comes back too late its value goes to discard,
// which releases what it holds; discard may be nil.
func Do[T any](ctx context.Context, b *Budget, bound time.Duration, call func() (T, error), discard func(T), keys ...Key) (T, error) {
	var none T
	if err := b.take(keys); err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer b.give(keys)
		v, err := call()
		done <- result{v, err}
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	var late error
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
		late = fmt.Errorf("%w within %s", ErrHung, bound)
	case <-ctx.Done():
		late = ctx.Err()
	}
	b.reap(func() {
		if r := <-done; r.err == nil && discard != nil {
			discard(r.value)
		}
	})
	return none, late
}

// reap waits for a lost call in the background.
func (b *Budget) reap(wait func()) {
	lost := []Key{{Name: lostKey}}
	b.mu.Lock()
	b.busy[lostKey]++
	b.mu.Unlock()
	go func() {
		wait()
		b.give(lost)
	}()
}
