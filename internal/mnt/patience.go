package mnt

import (
	"context"
	"errors"
	"time"
)

// How often and how long an unmount is tried while it is busy. A tenant's
// process that reads a directory holds it for microseconds; one that keeps a
// file open holds it for ever.
const (
	firstPause = 5 * time.Millisecond
	patience   = time.Second
)

// UntilFree repeats an unmount while it answers ErrBusy, with growing pauses,
// for one second or until ctx ends. It returns the last answer.
func UntilFree(ctx context.Context, unmount func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := firstPause; ; pause *= 2 {
		err := unmount()
		if !errors.Is(err, ErrBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
