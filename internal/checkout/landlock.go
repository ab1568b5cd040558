package checkout

import (
	"errors"
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	landlockRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// What a rule on something that is no folder may say.
	landlockFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	// Everything that ABI 2 has: the first in which a file may be renamed from one
	// folder to another at all.
	landlockAll = 1<<14 - 1
)

// hasLandlock tells whether the kernel has it: ENOSYS before 5.13, EOPNOTSUPP where it
// was left out, and before 5.19 one that is of no use here.
func hasLandlock() bool {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0 && abi >= 2
}

// landlock is a second fence, where the kernel has it: beside covering what is known to
// be secret, only what is known to be needed can be opened, and written to only in the
// job. It is put up by root, who can open what is allowed. Where there is none, git may
// read what everybody may in the agent's container, and write where everybody may.
func (s *spec) landlock() error {
	if !hasLandlock() {
		return nil
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockAll}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return fmt.Errorf("create: %w", errno)
	}
	fd := int(set)
	defer unix.Close(fd)
	read := []string{"/usr", "/bin", "/lib", "/lib64", "/etc", "/etc/resolv.conf", "/proc", "/dev", "/proc/self/exe", s.Argv[0]}
	for _, p := range append(read, s.Read...) {
		if err := allow(fd, p, landlockRead); err != nil {
			return err
		}
	}
	for _, p := range append([]string{"/dev/null"}, s.Write...) {
		if err := allow(fd, p, landlockAll); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0); errno != 0 {
		return fmt.Errorf("restrict: %w", errno)
	}
	return nil
}

// allow adds a rule for a path and what is beneath it; a path that is not there
// needs none.
func allow(set int, p string, access uint64) error {
	fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", p, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", p, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= landlockFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("allow %s: %w", p, errno)
	}
	return nil
}
