// Package deadline puts a bound on calls that may never return.
//
// A stat, open or readdir on a filesystem whose server has gone blocks its
// thread in the kernel, and nothing can take it back. Such a call runs on a
// thread that may be lost; when the bound has passed, the caller goes on
// without it. Lost threads are budgeted, so that one dead filesystem costs a
// few threads and a few bounds, and not the node.
package deadline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/datalayer/node-mounts/internal/bug"
)

// ErrHung says that the storage did not answer within the bound, or was not
// asked because earlier calls to it have not come back.
var ErrHung = errors.New("the storage does not answer")

// ErrNoTurn is ErrHung for a call that was not made, where nobody has found that
// the storage hangs: earlier calls take their time, or too many are lost in some
// places of it. It says nothing of the place that was to be asked.
var ErrNoTurn = fmt.Errorf("%w: earlier calls have not come back", ErrHung)

// Key is something that calls hang on, and how many may be lost to it before it
// is called hung without being asked. Calls that are under way and still in
// time do not count: they may overshoot the limit together, once.
type Key struct {
	Name  string
	Limit int
	// AtOnce, where it is not 0, says that the key is one storage with many places:
	// a filesystem, or a server. That many calls are under way at once, the others
	// wait for their turn, and no call overshoots the limit. When one is lost, and
	// none was answered since it began, the storage has been found hung: who waits is
	// told so at once, and who comes as well, except for a single call every Pause,
	// until that is answered or a lost one comes back. Of the keys of a call one can be
	// such a storage. AtOnce is less than Limit, which leaves room for the single calls.
	AtOnce int
	// Scattered, where it is more than Limit, is how many may be lost in some places of
	// a storage while others of it answer: those that do go on to be asked.
	Scattered int
	// Kept says that the call may be answered without the storage, by what the kernel
	// keeps of it: it ends no finding.
	Kept bool
}

// most is how many may be lost while the storage is not found hung.
func (k Key) most() int { return max(k.Limit, k.Scattered) }

// Pause is how long a storage that was found hung is left alone before one call is
// let through again. It is longer than a pass waits, so that no pass that found it
// hung is the next to ask.
const Pause = 10 * time.Second

// Do runs call on a goroutine of its own and waits for it at most for bound, or
// until ctx ends. Before, where a key asks for that, it waits for its turn, half as long
// again at most.
// When call comes back too late its value goes to discard, which releases what it
// holds; discard may be nil.
func Do[T any](ctx context.Context, b *Budget, bound time.Duration, call func() (T, error), discard func(T), keys ...Key) (T, error) {
	t, err := b.enter(ctx, bound, keys)
	if err != nil {
		var none T
		return none, err
	}
	return run(ctx, b, bound, call, discard, t)
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
	t, err := b.enter(ctx, bound, keys)
	if err != nil {
		return none, err
	}
	own, err := on.Dup()
	if err != nil {
		b.unused(t)
		return none, err
	}
	return run(ctx, b, bound, func() (T, error) {
		defer own.Close()
		return call(own)
	}, nil, t)
}

func run[T any](ctx context.Context, b *Budget, bound time.Duration, call func() (T, error), discard func(T), t ticket) (T, error) {
	var none T
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = bug.Catch(func() (err error) {
			r.value, err = call()
			return err
		})
		done <- r
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	var late error
	select {
	case r := <-done:
		b.answered(t)
		return r.value, r.err
	case <-timer.C:
		late = fmt.Errorf("%w within %s", ErrHung, bound)
	case <-ctx.Done():
		late = ctx.Err()
	}
	hung := errors.Is(late, ErrHung)
	b.lose(t, hung)
	go func() {
		r := <-done
		b.comeBack(t, hung)
		if r.err == nil && discard != nil {
			discard(r.value)
		}
	}()
	return none, late
}
