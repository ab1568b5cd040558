package keeper

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reapOrphans waits for the processes that the kernel gave to this one, the first of
// its pid namespace, until ctx ends.
func (s *spawner) reapOrphans(ctx context.Context) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	for {
		for s.reapOrphan() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-signals:
		case <-s.reaped: // it may have stood before an orphan
		}
	}
}

// zombie is the kernel's siginfo_t where it tells of a child, on a 64-bit machine.
type zombie struct {
	_   [4]int32
	pid int32
	_   [108]byte
}

// reapOrphan waits for one orphan that has ended. The kernel shows the first process
// that has ended; where that is one of ours, its own waiter takes it away and says so.
func (s *spawner) reapOrphan() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var z zombie
	err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&z)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || z.pid == 0 || s.known[int(z.pid)] {
		return false
	}
	_, err = unix.Wait4(int(z.pid), nil, unix.WNOHANG, nil)
	return err == nil || errors.Is(err, unix.EINTR)
}
