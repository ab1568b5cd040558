package procs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// doubtPause is between two scans while processes cannot be looked into. It
// passes at no other time: the end of a process wakes the waiter.
const doubtPause = 200 * time.Millisecond

// WaitEnded returns nil when the Pod has no process any more. It is meant for
// a Pod that is being deleted: between two containers of one that goes on there
// may be none either. Processes that start while it waits are waited for too.
// It holds one descriptor at a time and blocks no thread, and it signals
// nothing.
//
// Errors: the context's, with ErrCannotTell where that was what kept it; those
// of Of.
func (f *Finder) WaitEnded(ctx context.Context, podUID string) error {
	// A process may start another and end between the moments at which a scan
	// passes the two, if pids have just wrapped: one empty scan is no proof.
	for empty := 0; empty < 2; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("waiting for the pod %s to end: %w", podUID, err)
		}
		ps, err := f.Of(podUID)
		if err != nil && !errors.Is(err, ErrCannotTell) {
			return err
		}
		switch {
		case len(ps) > 0:
			empty = 0
			if err := f.waitAll(ctx, ps); err != nil {
				return fmt.Errorf("waiting for the pod %s to end: %w", podUID, err)
			}
		case err != nil:
			empty = 0
			if ctxErr := pause(ctx, doubtPause); ctxErr != nil {
				return fmt.Errorf("waiting for the pod %s to end: %w: %w", podUID, ctxErr, err)
			}
		default:
			empty++
		}
	}
	return nil
}

// waitAll waits for one process after the other: all have to end, so the order
// does not matter.
func (f *Finder) waitAll(ctx context.Context, ps []Process) error {
	for _, p := range ps {
		if err := f.waitOne(ctx, p); err != nil {
			return fmt.Errorf("process %d: %w", p.PID, err)
		}
	}
	return nil
}

func (f *Finder) waitOne(ctx context.Context, p Process) error {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // it has ended, or the number is a thread's by now
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	// Only now is the number known to be still, or no longer, that process's.
	d, err := f.reopen(p)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	d.close()
	return Ended(ctx, pidfd)
}

// Ended waits until the process of a pidfd has ended. The pidfd may be of another
// pid namespace, and is made non-blocking.
func Ended(ctx context.Context, pidfd *os.File) error {
	own, err := unix.FcntlInt(pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(own, true)
	}
	if err != nil {
		return os.NewSyscallError("dup pidfd", err)
	}
	f := os.NewFile(uintptr(own), "pidfd") // which the poller takes, as it does not block
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var polled error
	err = conn.Read(func(fd uintptr) bool {
		var ended bool
		ended, polled = readable(int(fd))
		return ended || polled != nil
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return errors.Join(err, polled)
}

// readable asks without waiting. A pidfd is readable when its process, with
// all of its threads, has ended.
func readable(fd int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, os.NewSyscallError("poll", err)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
