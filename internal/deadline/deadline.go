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

// Key is something that calls hang on, and how many may be lost to it before it
// is called hung without being asked. Calls that are under way and still in
// time do not count: they may overshoot the limit together, once.
type Key struct {
	Name  string
	Limit int
}

// Budget counts the lost calls, by key. The zero value is ready.
type Budget struct {
	mu    sync.Mutex
	lost  map[string]int
	total int
}

// Lost is how many calls have outlived their bound and not come back yet.
func (b *Budget) Lost() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// LostTo is how many of them are charged to the key with this name.
func (b *Budget) LostTo(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost[name]
}

func (b *Budget) check(keys []Key) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if n := b.lost[k.Name]; n >= k.Limit {
			return fmt.Errorf("%w: %d earlier calls have not come back", ErrHung, n)
		}
	}
	return nil
}

// count adds one lost call (1) or takes one back (-1).
func (b *Budget) count(keys []Key, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost == nil {
		b.lost = make(map[string]int)
	}
	b.total += n
	for _, k := range keys {
		if b.lost[k.Name] += n; b.lost[k.Name] == 0 {
			delete(b.lost, k.Name)
		}
	}
}

// Do runs call on a goroutine of its own and waits for it at most for bound, or
// until ctx ends. When call comes back too late its value goes to discard,
// which releases what it holds; discard may be nil.
func Do[T any](ctx context.Context, b *Budget, bound time.Duration, call func() (T, error), discard func(T), keys ...Key) (T, error) {
	if err := b.check(keys); err != nil {
		var none T
		return none, err
	}
	return run(ctx, b, bound, call, discard, keys)
}

// Lent is what calls are given a copy of: a descriptor.
type Lent[D any] interface {
	Dup() (D, error)
	Close()
}

// On is Do for a call on something that the caller may close in the meantime.
// The call has a copy of its own, which is closed when it comes back, however
// late: a number that was closed and used again would lead it elsewhere.
func On[T any, D Lent[D]](ctx context.Context, b *Budget, bound time.Duration, on D, call func(D) (T, error), keys ...Key) (T, error) {
	var none T
	if err := b.check(keys); err != nil {
		return none, err
	}
	own, err := on.Dup()
	if err != nil {
		return none, err
	}
	return run(ctx, b, bound, func() (T, error) {
		defer own.Close()
		return call(own)
	}, nil, keys)
}

func run[T any](ctx context.Context, b *Budget, bound time.Duration, call func() (T, error), discard func(T), keys []Key) (T, error) {
	var none T
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
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
	b.count(keys, 1)
	go func() {
		r := <-done
		b.count(keys, -1)
		if r.err == nil && discard != nil {
			discard(r.value)
		}
	}()
	return none, late
}
