// Package privilege is how a process becomes nobody for good. It acts on the calling
// thread alone, which must be locked and is the one that executes a program then: the
// kernel ends the others.
package privilege

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Drop makes the thread an unprivileged user without groups and capabilities, and
// without a way back.
func Drop(uid, gid int) error {
	if uid <= 0 || gid <= 0 {
		return fmt.Errorf("%d:%d may be root: want another user and group", uid, gid)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if err := dropBounding(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("leave the groups: %w", err)
	}
	if err := unix.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("become group %d: %w", gid, err)
	}
	if err := unix.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	var none [2]unix.CapUserData
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&head, &none[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

// dropBounding empties the bounding set. That takes CAP_SETPCAP; without it, what is
// left there cannot be gained, because no program that is executed after
// PR_SET_NO_NEW_PRIVS brings a capability along.
func dropBounding() error {
	var have [2]unix.CapUserData
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&head, &have[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	if have[0].Effective&(1<<unix.CAP_SETPCAP) == 0 {
		return nil
	}
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		// An older kernel may know fewer capabilities than this program: EINVAL.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}

// ErrAlone says that the parent has ended.
var ErrAlone = errors.New("the process that started this one has gone")

// EndWithParent has the kernel kill the process when its parent ends. The kernel
// forgets that at a change of user, so it is asked for after Drop. A parent that ended
// before sends no signal any more, but its end of the pipe, or socket, link has gone.
func EndWithParent(link int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ask for the parent's end: %w", err)
	}
	poll := []unix.PollFd{{Fd: int32(link)}}
	_, err := unix.Poll(poll, 0)
	for errors.Is(err, unix.EINTR) { // Go's own signals
		_, err = unix.Poll(poll, 0)
	}
	if err != nil {
		return fmt.Errorf("look after the parent: %w", err)
	}
	if poll[0].Revents != 0 {
		return ErrAlone
	}
	return nil
}
