package advice_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/datalayer/node-mounts/internal/advice"
)

var errPlain = errors.New("e")

func TestAnErrorEndsInItsStatusHoweverItIsWrapped(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("wrapped: %w", err) }
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"none":                          {nil, advice.StatusOK},
		"one of no special sort":        {errPlain, advice.StatusError},
		"with a hint":                   {advice.With(errPlain, "h"), advice.StatusError},
		"of usage":                      {advice.Usage(errPlain, ""), advice.StatusUsage},
		"of usage, with a hint around":  {wrapped(advice.With(advice.Usage(errPlain, ""), "h")), advice.StatusUsage},
		"a check":                       {wrapped(advice.Failing(errPlain, "")), advice.StatusChecks},
		"too late":                      {wrapped(advice.Late(errPlain, "")), advice.StatusTimeout},
		"too late, beside another one":  {advice.Several{advice.With(errPlain, "h"), advice.Late(errPlain, "h")}, advice.StatusTimeout},
		"too late, and a check":         {errors.Join(advice.Failing(errPlain, ""), advice.Late(errPlain, "")), advice.StatusTimeout},
		"too late, of usage, and both":  {fmt.Errorf("%w, %w", advice.Late(errPlain, ""), advice.Usage(errPlain, "")), advice.StatusUsage},
		"a check that was not the last": {advice.Several{errPlain, wrapped(advice.Failing(errPlain, "")), errPlain}, advice.StatusChecks},
	} {
		if got := advice.Status(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestAnErrorSaysWhatToDoByTheOutermostThatKnows(t *testing.T) {
	for want, err := range map[string]error{
		"":      fmt.Errorf("e: %w", advice.Usage(errPlain, "")),
		"outer": advice.With(fmt.Errorf("e: %w", advice.With(errPlain, "inner")), "outer"),
		"inner": advice.Late(advice.With(errPlain, "inner"), ""),
		"later": advice.Several{advice.Failing(errPlain, ""), advice.With(errPlain, "later")},
	} {
		if got := advice.Hint(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if advice.Hint(nil) != "" || advice.Hint(errPlain) != "" {
		t.Error("an error that knows nothing says what to do")
	}
}

func TestAnErrorIsWhatItWasMadeOf(t *testing.T) {
	var hinted interface{ Hint() string }
	err := advice.With(advice.Usage(errPlain, "h"), "")
	if !errors.As(err, &hinted) || hinted.Hint() != "h" || !errors.Is(err, errPlain) || err.Error() != "e" {
		t.Errorf("%v: %v", err, hinted)
	}
}

func TestWhatIsToldIsSafeForATerminalAndEachThingIsToldOnce(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{advice.Several{}, ""},
		{errPlain, "error: e\n"},
		{errors.New("two\nlines \x1b[31m"), "error: two; lines \uFFFD[31m\n"},
		{errors.New("one\n\n two;\n"), "error: one; two;\n"},
		{errors.New("it is not there.\n\nSee:\nthe page"), "error: it is not there. See: the page\n"},
		{advice.Usage(errPlain, "h"), "error: e\nhint: h\n"},
		{
			fmt.Errorf("in a file: %w", advice.Several{advice.With(errors.New("a"), "h"), advice.With(errors.New("b"), "h"), errors.New("a")}),
			"error: a\nerror: b\nhint: h\n",
		},
	} {
		var out bytes.Buffer
		if advice.Print(&out, c.err, advice.Hint); out.String() != c.want {
			t.Errorf("%v: %q, want %q", c.err, out.String(), c.want)
		}
	}
}
