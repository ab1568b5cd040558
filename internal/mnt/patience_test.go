package mnt_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

var errHeld = fmt.Errorf("umount: %w: %w", mnt.ErrBusy, unix.EBUSY)

func TestAnUnmountIsRepeatedWhileItIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := mnt.UntilFree(t.Context(), func() error {
			if calls++; calls < 5 {
				return errHeld
			}
			return nil
		})
		if err != nil || calls != 5 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}

func TestAnUnmountThatStaysBusyIsGivenUpAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		err := mnt.UntilFree(t.Context(), func() error {
			at = append(at, time.Since(start))
			return errHeld
		})
		if !errors.Is(err, mnt.ErrBusy) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if len(at) < 5 || len(at) > 20 || at[0] != 0 {
			t.Errorf("tried at %v", at)
		}
		for i := 2; i < len(at); i++ {
			if at[i]-at[i-1] <= at[i-1]-at[i-2] {
				t.Errorf("the pauses do not grow: tried at %v", at)
			}
		}
	})
}

func TestAnUnmountThatFailsOtherwiseIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		err := mnt.UntilFree(t.Context(), func() error { calls++; return mnt.ErrNotMounted })
		if !errors.Is(err, mnt.ErrNotMounted) || calls != 1 || time.Since(start) != 0 {
			t.Errorf("%v after %d calls and %v", err, calls, time.Since(start))
		}
	})
}

func TestAnUnmountIsTriedOnceAlthoughTheTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start, calls := time.Now(), 0
		err := mnt.UntilFree(ctx, func() error { calls++; return errHeld })
		if !errors.Is(err, mnt.ErrBusy) || calls != 1 || time.Since(start) != 0 {
			t.Errorf("%v after %d calls and %v", err, calls, time.Since(start))
		}
	})
}
