package deadline_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/deadline"
)

func TestACallInTimeReturnsItsAnswer(t *testing.T) {
	var b deadline.Budget
	v, err := deadline.Do(t.Context(), &b, time.Minute, func() (int, error) { return 7, nil }, nil)
	if v != 7 || err != nil {
		t.Fatalf("got %d, %v", v, err)
	}
	want := errors.New("no")
	if _, err := deadline.Do(t.Context(), &b, time.Minute, func() (int, error) { return 0, want }, nil); !errors.Is(err, want) {
		t.Fatalf("got %v", err)
	}
	if b.Lost() != 0 {
		t.Errorf("%d calls are counted as lost", b.Lost())
	}
}

func TestALateAnswerIsDiscardedAndItsPlaceGivenBack(t *testing.T) {
	var b deadline.Budget
	key := deadline.Key{Name: "fs", Limit: 1}
	release, discarded := make(chan struct{}), make(chan int)
	_, err := deadline.Do(t.Context(), &b, time.Millisecond,
		func() (int, error) { <-release; return 7, nil }, func(v int) { discarded <- v }, key)
	if !errors.Is(err, deadline.ErrHung) {
		t.Fatalf("got %v", err)
	}
	if b.Lost() != 1 || b.LostTo("fs") != 1 || b.LostTo("other") != 0 {
		t.Errorf("lost = %d, to the key %d, to another %d, want 1, 1, 0", b.Lost(), b.LostTo("fs"), b.LostTo("other"))
	}
	_, err = deadline.Do(t.Context(), &b, time.Minute, func() (int, error) {
		t.Error("asked although the budget is used up")
		return 0, nil
	}, nil, key)
	if !errors.Is(err, deadline.ErrHung) {
		t.Fatalf("beyond the budget: got %v", err)
	}
	close(release)
	if v := <-discarded; v != 7 {
		t.Errorf("discarded %d", v)
	}
	if b.Lost() != 0 {
		t.Error("the call is still counted as lost")
	}
	if _, err := deadline.Do(t.Context(), &b, time.Minute, func() (int, error) { return 1, nil }, nil, key); err != nil {
		t.Errorf("after the call came back: %v", err)
	}
}

func TestOneKeyBeingFullLeavesOthersAlone(t *testing.T) {
	var b deadline.Budget
	release := make(chan struct{})
	defer close(release)
	hung := func() (int, error) { <-release; return 0, nil }
	dead, alive := deadline.Key{Name: "dead", Limit: 2}, deadline.Key{Name: "alive", Limit: 2}
	for range 3 {
		if _, err := deadline.Do(t.Context(), &b, time.Millisecond, hung, nil, dead); !errors.Is(err, deadline.ErrHung) {
			t.Fatalf("got %v", err)
		}
	}
	if b.Lost() != 2 {
		t.Errorf("lost = %d, want the budget of 2", b.Lost())
	}
	if _, err := deadline.Do(t.Context(), &b, time.Minute, func() (int, error) { return 1, nil }, nil, alive); err != nil {
		t.Errorf("the other key: %v", err)
	}
}

func TestCallsThatAreInTimeDoNotCountAgainstEachOther(t *testing.T) {
	var b deadline.Budget
	key := deadline.Key{Name: "dataset", Limit: 1}
	const pods = 10
	var started, wg sync.WaitGroup
	started.Add(pods)
	for range pods {
		wg.Go(func() {
			_, err := deadline.Do(t.Context(), &b, time.Minute, func() (int, error) {
				started.Done()
				started.Wait() // all of them are under way at once
				return 1, nil
			}, nil, key)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestTheEndOfTheContextEndsTheWait(t *testing.T) {
	var b deadline.Budget
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	_, err := deadline.Do(ctx, &b, time.Minute, func() (int, error) { cancel(); <-release; return 0, nil }, nil)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}
