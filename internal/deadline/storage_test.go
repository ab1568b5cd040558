package deadline_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/datalayer/node-mounts/internal/deadline"
)

const bound = 5 * time.Second

// storage is one that hangs until it is let go, place by place, and counts what it was
// asked.
type storage struct {
	mu    sync.Mutex
	hangs chan struct{} // nil while it answers
	asked int
}

func (s *storage) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = make(chan struct{})
}

// recover has it answer again; what waits comes back.
func (s *storage) recover() {
	close(s.heal())
	synctest.Wait()
}

// heal has it answer again; what waits is lost for ever.
func (s *storage) heal() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	hangs := s.hangs
	s.hangs = nil
	return hangs
}

func (s *storage) call() (int, error) {
	s.mu.Lock()
	hangs := s.hangs
	s.asked++
	s.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	return 1, nil
}

func (s *storage) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

var shared = deadline.Key{Name: "fs", Limit: 6, AtOnce: 4}

// all asks the storage about many places at once, and returns what came of each.
func all(t *testing.T, b *deadline.Budget, n int, call func() (int, error)) []error {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, errs[i] = deadline.Do(t.Context(), b, bound, call, nil, deadline.Key{Name: fmt.Sprint("place ", i), Limit: 1}, shared)
		})
	}
	wg.Wait()
	return errs
}

func mustHang(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if !errors.Is(err, deadline.ErrHung) || errors.Is(err, deadline.ErrNoTurn) {
			t.Errorf("place %d: %v, expected that it hangs", i, err)
		}
	}
}

func mustAnswer(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("place %d: %v", i, err)
		}
	}
}

func ask(t *testing.T, b *deadline.Budget, s *storage) error {
	t.Helper()
	_, err := deadline.Do(t.Context(), b, bound, s.call, nil, shared)
	return err
}

func TestManyPlacesOfAHungStorageCostOneBoundAndAFewThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		s := &storage{}
		s.hang()
		began := time.Now()
		mustHang(t, all(t, &b, 60, s.call))
		if took := time.Since(began); took != bound || b.Lost() != 4 || b.LostTo("fs") != 4 {
			t.Errorf("it took %s and %d threads, want %s and 4", took, b.Lost(), bound)
		}
		began = time.Now()
		mustHang(t, all(t, &b, 60, s.call))
		if took := time.Since(began); took != 0 || s.count() != 4 {
			t.Errorf("once it is known to hang, it takes %s and was asked %d times", took, s.count())
		}
		s.recover()
		mustAnswer(t, all(t, &b, 60, s.call))
		if b.Lost() != 0 {
			t.Errorf("%d threads are lost", b.Lost())
		}
	})
}

func TestAHungStorageIsAskedByOneCallNowAndThenAndNeverBeyondTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		s := &storage{}
		s.hang()
		defer s.recover()
		mustHang(t, all(t, &b, 60, s.call))
		for probes := range 2 {
			<-time.After(deadline.Pause - time.Nanosecond)
			mustHang(t, all(t, &b, 60, s.call))
			if got := s.count(); got != 4+probes {
				t.Fatalf("asked %d times before the pause is over", got)
			}
			<-time.After(time.Nanosecond)
			mustHang(t, all(t, &b, 60, s.call))
			if got := s.count(); got != 5+probes {
				t.Fatalf("asked %d times after the pause", got)
			}
		}
		<-time.After(time.Hour)
		mustHang(t, all(t, &b, 60, s.call))
		if s.count() != shared.Limit || b.Lost() != shared.Limit {
			t.Errorf("asked %d times, %d threads are lost", s.count(), b.Lost())
		}
	})
}

func TestASingleCallThatTakesLongIsTheOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		s := &storage{}
		s.hang()
		defer s.recover()
		mustHang(t, all(t, &b, 60, s.call))
		<-time.After(deadline.Pause)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = deadline.Do(t.Context(), &b, 3*deadline.Pause, s.call, nil, shared) })
		synctest.Wait()
		<-time.After(2 * deadline.Pause)
		if err := ask(t, &b, s); !errors.Is(err, deadline.ErrHung) || s.count() != 5 {
			t.Errorf("%v, asked %d times", err, s.count())
		}
		wg.Wait()
	})
}

func TestASingleCallThatIsAnsweredEndsTheFindingAlthoughThreadsStayLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		s := &storage{}
		s.hang()
		mustHang(t, all(t, &b, 60, s.call))
		forgotten := s.heal()
		if err := ask(t, &b, s); !errors.Is(err, deadline.ErrHung) {
			t.Errorf("before the pause is over: %v", err)
		}
		<-time.After(deadline.Pause)
		kept := shared
		kept.Kept = true
		if _, err := deadline.Do(t.Context(), &b, bound, s.call, nil, kept); !errors.Is(err, deadline.ErrHung) || s.count() != 4 {
			t.Errorf("a call that the kernel may answer is no question: %v, asked %d times", err, s.count())
		}
		if err := ask(t, &b, s); err != nil {
			t.Errorf("the single call: %v", err)
		}
		mustAnswer(t, []error{ask(t, &b, s), ask(t, &b, s)})
		if b.LostTo("fs") != 4 {
			t.Errorf("%d threads are lost", b.LostTo("fs"))
		}
		close(forgotten)
		synctest.Wait()
	})
}

func TestOnePlaceThatHangsIsNotTheStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		bad, good := &storage{}, &storage{}
		bad.hang()
		defer bad.recover()
		var wg sync.WaitGroup
		var err error
		wg.Go(func() { err = ask(t, &b, bad) })
		synctest.Wait()
		<-time.After(time.Second)
		mustAnswer(t, []error{ask(t, &b, good)})
		wg.Wait()
		mustHang(t, []error{err})
		mustAnswer(t, all(t, &b, 60, good.call))
	})
}

func TestWhatTheKernelKeepsIsNoAnswerOfTheStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		bad, kernel := &storage{}, &storage{}
		bad.hang()
		defer bad.recover()
		var wg sync.WaitGroup
		wg.Go(func() { _ = ask(t, &b, bad) })
		synctest.Wait()
		<-time.After(time.Second)
		kept := shared
		kept.Kept = true
		if _, err := deadline.Do(t.Context(), &b, bound, kernel.call, nil, kept); err != nil {
			t.Error(err)
		}
		wg.Wait()
		mustHang(t, []error{ask(t, &b, bad)})
		if bad.count() != 1 {
			t.Errorf("asked %d times", bad.count())
		}
	})
}

func TestManyPlacesThatHangLeaveTheOthersWithoutATurnAndNotHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		bad, good := &storage{}, &storage{}
		bad.hang()
		var wg sync.WaitGroup
		for range shared.Limit {
			wg.Go(func() { _ = ask(t, &b, bad) })
			synctest.Wait()
			<-time.After(bound - time.Second)
			began := time.Now()
			_ = ask(t, &b, good) // whoever waits while the last thread is lost waits no longer
			if took := time.Since(began); took > time.Second {
				t.Errorf("another place was waited for for %s", took)
			}
			<-time.After(2 * time.Second)
		}
		wg.Wait()
		if b.Lost() != shared.Limit {
			t.Fatalf("%d threads are lost", b.Lost())
		}
		began := time.Now()
		if err := ask(t, &b, good); !errors.Is(err, deadline.ErrNoTurn) || time.Since(began) != 0 {
			t.Errorf("with no thread left: %v after %s", err, time.Since(began))
		}
		bad.recover()
		mustAnswer(t, []error{ask(t, &b, good)})
	})
}

func TestPlacesThatAnswerAreAskedBesideManyThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		scattered := shared
		scattered.Scattered = 4 * shared.Limit
		bad, good := &storage{}, &storage{}
		bad.hang()
		of := func(s *storage) error {
			_, err := deadline.Do(t.Context(), &b, bound, s.call, nil, scattered)
			return err
		}
		var wg sync.WaitGroup
		for range scattered.Scattered - 2 {
			wg.Go(func() { _ = of(bad) })
			synctest.Wait()
			<-time.After(time.Second)
			mustAnswer(t, []error{of(good)})
		}
		wg.Wait()
		if b.Lost() != scattered.Scattered-2 {
			t.Fatalf("%d threads are lost", b.Lost())
		}
		for range 60 {
			<-time.After(time.Minute)
			mustAnswer(t, []error{of(good)})
		}
		// Where none answers any more it is hung, and is not asked beyond Limit.
		mustHang(t, []error{of(bad)})
		<-time.After(10 * deadline.Pause)
		mustHang(t, []error{of(bad)})
		if bad.count() != scattered.Scattered-1 {
			t.Errorf("asked %d times", bad.count())
		}
		bad.recover()
		mustAnswer(t, []error{of(good), of(bad)})
	})
}

func TestCallsBeginAgainWhenTheFirstLostOneComesBackAndStayWithinTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, kept := range map[string]bool{"a question": false, "a look": true} {
			var b deadline.Budget
			first, others := &storage{}, &storage{}
			first.hang()
			others.hang()
			var wg sync.WaitGroup
			k := shared
			k.Kept = kept
			wg.Go(func() { _, _ = deadline.Do(t.Context(), &b, bound, first.call, nil, k) })
			synctest.Wait()
			mustHang(t, all(t, &b, 60, others.call))
			wg.Wait()
			first.recover()
			// It goes on to hang for the others: as many are lost as may be.
			for i := range 3 {
				if err := all(t, &b, 60, others.call)[0]; !errors.Is(err, deadline.ErrHung) {
					t.Errorf("%s: %v", name, err)
				}
				if others.count() != shared.Limit || b.LostTo("fs") != shared.Limit {
					t.Errorf("%s, round %d: %d calls, %d lost", name, i, others.count(), b.LostTo("fs"))
				}
			}
			others.recover()
			mustAnswer(t, all(t, &b, 60, others.call))
		}
	})
}

func TestWhoWaitsForASlowStorageHasATurnAndNotForLongerThanABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		slow := func() (int, error) { <-time.After(2 * time.Second); return 1, nil }
		mustAnswer(t, all(t, &b, 3*shared.AtOnce, slow)) // the last begin after 4 s
		began, none := time.Now(), 0
		for _, err := range all(t, &b, 10*shared.AtOnce, slow) {
			if errors.Is(err, deadline.ErrNoTurn) {
				none++
			} else if err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > 5*bound/2 || none != 6*shared.AtOnce {
			t.Errorf("it took %s, and %d had no turn", took, none)
		}
		if b.Lost() != 0 {
			t.Errorf("%d threads are lost", b.Lost())
		}
		mustAnswer(t, all(t, &b, shared.AtOnce, slow))
	})
}

func TestTheEndOfTheContextEndsTheWaitForATurnAndFindsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		s := &storage{}
		s.hang()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 * shared.AtOnce {
			wg.Go(func() {
				if _, err := deadline.Do(ctx, &b, bound, s.call, nil, shared); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		if s.count() != shared.AtOnce {
			t.Errorf("asked %d times", s.count())
		}
		forgotten := s.heal()
		mustAnswer(t, []error{ask(t, &b, s)})
		close(forgotten)
		synctest.Wait()
	})
}

// lent is a descriptor that cannot be copied.
type lent struct{}

var errNoCopy = errors.New("no copy")

func (lent) Dup() (lent, error) { return lent{}, errNoCopy }
func (lent) Close()             {}

func TestACallThatIsNotMadeTakesNobodysTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		for range 2 * shared.AtOnce {
			_, err := deadline.On(t.Context(), &b, bound, lent{}, func(lent) (int, error) { return 0, nil }, shared)
			if !errors.Is(err, errNoCopy) {
				t.Fatal(err)
			}
		}
		mustAnswer(t, []error{ask(t, &b, &storage{})})
	})
}

func TestStoragesDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b deadline.Budget
		s := &storage{}
		s.hang()
		defer s.recover()
		var wg sync.WaitGroup
		wg.Go(func() { all(t, &b, 60, s.call) })
		synctest.Wait()
		began := time.Now()
		_, err := deadline.Do(t.Context(), &b, bound, (&storage{}).call, nil, deadline.Key{Name: "other", Limit: 2, AtOnce: 1})
		if err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		wg.Wait()
	})
}
