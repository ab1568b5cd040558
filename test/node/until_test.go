package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAWaitThatRunsOutOfTimeSaysWhatWasWrongLast(t *testing.T) {
	held := errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")
	for name, c := range map[string]struct {
		errs []error // by call; the last one from then on
		says string
	}{
		"what was wrong":                   {[]error{errors.New("one"), errors.New("two")}, "two"},
		"what came before a held question": {[]error{errors.New("one"), held}, "one"},
		"nothing else":                     {[]error{held}, "rate limiter"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				calls := 0
				err := Until(ctx, "it", func(context.Context) error {
					calls++
					return c.errs[min(calls, len(c.errs))-1]
				})
				if err == nil || !strings.Contains(err.Error(), "waited 300ms for it: ") || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %q", err, c.says)
				}
			})
		})
	}
}
