package bug

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestAPanicIsItsCallsErrorAndLoggedOnceWithItsStack(t *testing.T) {
	var lines bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&lines, nil))
	far := func() error {
		caught := make(chan error, 1)
		go func() { caught <- Catch(func() error { return []error{}[len(t.Name())] }) }()
		return fmt.Errorf("on its way: %w", <-caught)
	}
	err := Guard(log, func() error { return Guard(log, far, "target", "ada") }, "pod", "p")
	if err == nil || !strings.Contains(err.Error(), "a bug") || strings.Contains(err.Error(), "out of range") {
		t.Errorf("%v", err)
	}
	got := lines.String()
	for _, want := range []string{`"target":"ada"`, "index out of range", "bug_test.go"} {
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("%s\nhas no %s, or is not one line", got, want)
		}
	}
}

func TestWhatDoesNotPanicStaysAsItIs(t *testing.T) {
	var lines bytes.Buffer
	log, want := slog.New(slog.NewJSONHandler(&lines, nil)), errors.New("no")
	for _, e := range []error{nil, want} {
		if err := Guard(log, func() error { return e }); !errors.Is(err, e) {
			t.Errorf("%v, want %v", err, e)
		}
	}
	if lines.Len() > 0 {
		t.Error(lines.String())
	}
}
