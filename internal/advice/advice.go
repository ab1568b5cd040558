// Package advice is how a program ends that could not do what it was asked for: an
// error, what to do about it, and the exit status. All programs have the same ones,
// so a script that reads the status of one can read that of any.
package advice

import (
	"errors"
	"iter"
)

// Exit statuses.
const (
	StatusOK = iota
	StatusError
	StatusUsage
	StatusChecks
	StatusTimeout
)

// With is an error with what to do about it.
func With(err error, hint string) error { return &advised{err, hint, StatusError} }

// Usage is a command line, or an environment, that asks for what cannot be. The hint
// is "" where nothing better is known than to look at the command's help.
func Usage(err error, hint string) error { return &advised{err, hint, StatusUsage} }

// Failing is that something which was looked at is not as it must be.
func Failing(err error, hint string) error { return &advised{err, hint, StatusChecks} }

// Late is an answer that did not come in time.
func Late(err error, hint string) error { return &advised{err, hint, StatusTimeout} }

// advised is an error with a hint, "" for none, and the status that it ends in.
type advised struct {
	error
	hint   string
	status int
}

func (a *advised) Unwrap() error { return a.error }

// Hint is what to do, for who has the error alone.
func (a *advised) Hint() string { return Hint(a) }

// Hint is what to do about an error, "" where it does not say.
func Hint(err error) string {
	for a := range within(err) {
		if a.hint != "" {
			return a.hint
		}
	}
	return ""
}

// Status is the exit status that an error ends in. Of several that it is made of,
// that nothing was understood outweighs that an answer is missing, and this that one
// came which is not good.
func Status(err error) int {
	if err == nil {
		return StatusOK
	}
	is := map[int]bool{}
	for a := range within(err) {
		is[a.status] = true
	}
	for _, status := range []int{StatusUsage, StatusTimeout, StatusChecks} {
		if is[status] {
			return status
		}
	}
	return StatusError
}

// within are those that an error is or wraps, from the outside in.
func within(err error) iter.Seq[*advised] {
	return func(yield func(*advised) bool) { walk(err, yield) }
}

func walk(err error, yield func(*advised) bool) bool {
	if a, ok := err.(*advised); ok && !yield(a) { //nolint:errorlint // what it wraps comes next
		return false
	}
	switch w := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		return walk(w.Unwrap(), yield)
	case interface{ Unwrap() []error }:
		for _, one := range w.Unwrap() {
			if !walk(one, yield) {
				return false
			}
		}
	}
	return true
}

// Several are errors that are told one by one.
type Several []error

func (s Several) Error() string   { return errors.Join(s...).Error() }
func (s Several) Unwrap() []error { return s }
