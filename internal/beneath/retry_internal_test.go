package beneath

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestACallIsRepeatedWhileItIsInterruptedAndNotForEver(t *testing.T) {
	for _, again := range []error{unix.EINTR, unix.EAGAIN} {
		calls := 0
		fd, err := retry(func() (int, error) {
			if calls++; calls < 10 {
				return -1, again
			}
			return 7, nil
		})
		if fd != 7 || err != nil || calls != 10 {
			t.Errorf("%v: %d, %v after %d calls", again, fd, err, calls)
		}
		calls = 0
		_, err = retry(func() (int, error) { calls++; return -1, again })
		if !errors.Is(err, again) || calls < 100 || calls > 10_000 {
			t.Errorf("%v for ever: %v after %d calls", again, err, calls)
		}
	}
	calls := 0
	if _, err := retry(func() (int, error) { calls++; return -1, unix.ENOENT }); !errors.Is(err, unix.ENOENT) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}
