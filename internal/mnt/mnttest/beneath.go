package mnttest

import (
	"errors"

	"golang.org/x/sys/unix"
)

// MountsBeneath tells whether the kernel can put a mount beneath another (Linux 6.5):
// without that, a mount whose place another one takes leaves a gap.
func MountsBeneath() bool {
	const moveMountBeneath = 0x200
	// Flags that it does not know are refused before the descriptors are looked at.
	err := unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveMountBeneath)
	return errors.Is(err, unix.EBADF)
}
