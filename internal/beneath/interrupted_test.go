package beneath_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

func TestAnInterruptedCallIsMadeAgainAndNotForEver(t *testing.T) {
	calls := 0
	err := beneath.Uninterrupted(func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.EROFS
	})
	if calls != 3 || !errors.Is(err, unix.EROFS) {
		t.Errorf("%d calls, %v", calls, err)
	}
	if err := beneath.Uninterrupted(func() error { return unix.EINTR }); !errors.Is(err, unix.EINTR) {
		t.Errorf("a server that always says so: %v", err)
	}
}
