package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/demo"
)

func TestErrorsBecomeExitStatusesInOnePlace(t *testing.T) {
	for want, err := range map[int]error{
		advice.StatusOK:      nil,
		advice.StatusError:   errors.New("e"),
		advice.StatusUsage:   fmt.Errorf("wrapped: %w", advice.With(advice.Usage(errors.New("e"), ""), "h")),
		advice.StatusChecks:  fmt.Errorf("wrapped: %w", demo.ErrFailed),
		advice.StatusTimeout: fmt.Errorf("wrapped: %w", advice.Late(errors.New("e"), "")),
	} {
		if got := exitStatus(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

func TestWhatIsReportedIsSafeForATerminalAndComplete(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("two\nlines \x1b[31m"), "error: two; lines \uFFFD[31m\n"},
		{errors.New("one\n\n two;\n"), "error: one; two;\n"},
		{errors.New("it is not there.\n\nSee:\nthe page"), "error: it is not there. See: the page\n"},
		{advice.With(errors.New("e"), "run `node-mounts x`, and node-mounts y"), "error: e\nhint: run `kubectl node-mounts x`, and node-mounts y\n"},
		{fmt.Errorf("in a file: %w", advice.Several{advice.With(errors.New("a"), "h"), advice.With(errors.New("b"), "h"), errors.New("a")}), "error: a\nerror: b\nhint: h\n"},
		{fmt.Errorf("waiting: %w", context.Canceled), "error: interrupted\n"},
		{errors.Join(context.Canceled, errors.New("something is left")), "error: interrupted\nerror: something is left\n"},
	} {
		var out bytes.Buffer
		if report(&out, "kubectl node-mounts", c.err); out.String() != c.want {
			t.Errorf("%v: %q, want %q", c.err, out.String(), c.want)
		}
	}
}
