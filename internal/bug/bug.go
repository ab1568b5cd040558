// Package bug makes errors of panics. A panic in any goroutine ends the process, and
// with the agent the care for the mounts of every Pod on its node ends: what one grant
// brings out is to be that grant's error.
package bug

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
)

// Error is a panic that was caught. What it was is for the log alone: there may be
// anything in it, and errors get into answers.
type Error struct {
	value any
	stack string
	told  atomic.Bool
}

func (*Error) Error() string { return "a bug of the agent: its log has the place" }

// Catch is call, with a panic in it as its error. It is for goroutines that have an
// error to hand over and no log: where that is guarded, it is told.
func Catch(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Error{value: v, stack: string(debug.Stack())} // the stack is known only here
		}
	}()
	return call()
}

// Guard is Catch, and logs the panic with its stack, also one that was caught in
// another goroutine before. Each is logged once. about says whose call it was, as the
// arguments of a line do.
func Guard(log *slog.Logger, call func() error, about ...any) error {
	err := Catch(call)
	if caught, ok := errors.AsType[*Error](err); ok && !caught.told.Swap(true) {
		log.Error("a bug: a panic was caught", append(about, "panic", fmt.Sprint(caught.value), "stack", caught.stack)...)
	}
	return err
}
