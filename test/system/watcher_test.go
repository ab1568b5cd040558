package system_test

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watchedCalls are the system calls that change the mount table, the journal or the
// claim, in the agent's process whoever of it makes them. Between two of them the
// next agent may find any state; what else it does changes nothing.
func watchedCalls() map[uintptr]string {
	return map[uintptr]string{
		unix.SYS_FSOPEN: "fsopen", unix.SYS_FSCONFIG: "fsconfig", unix.SYS_FSMOUNT: "fsmount",
		unix.SYS_OPEN_TREE: "open_tree", unix.SYS_MOUNT_SETATTR: "mount_setattr", unix.SYS_MOVE_MOUNT: "move_mount",
		unix.SYS_UMOUNT2: "umount2", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_UNLINKAT: "unlinkat",
		unix.SYS_RENAMEAT: "renameat", unix.SYS_FCHOWNAT: "fchownat", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHMODAT2: "fchmodat2",
	}
}

// Lines of the trace about mount tables that were opened.
const (
	wholeTable   = "opens the node's mount table"
	processTable = "opens a process's mount table"
)

// watchCalls has the kernel stop every thread of this process at the watched calls,
// and at each opening of a file, and tells the tracer of them before they are made:
// no part of the agent can get past, and the agent knows nothing of it.
func watchCalls(w *tracer) error {
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return err
	}
	listener, err := notifyOf(append(numbers(watchedCalls()), unix.SYS_OPENAT, unix.SYS_OPENAT2))
	if err != nil {
		return fmt.Errorf("watching system calls: %w", err)
	}
	go func() {
		// This thread makes none of these calls, or it would wait for itself.
		runtime.LockOSThread()
		for {
			if err := nextCall(listener, memory, w); err != nil {
				fmt.Fprintln(os.Stderr, "watching system calls:", err)
				die()
			}
		}
	}()
	return nil
}

func numbers(calls map[uintptr]string) []uintptr {
	var out []uintptr
	for nr := range calls {
		out = append(out, nr)
	}
	slices.Sort(out)
	return out
}

// notification is struct seccomp_notif, and reply struct seccomp_notif_resp.
type notification struct {
	ID    uint64
	PID   uint32
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

type reply struct {
	ID    uint64
	Val   int64
	Error int32
	Flags uint32
}

// From linux/seccomp.h.
const (
	seccompNotifRecv  = 0xc0502100
	seccompNotifSend  = 0xc0182101
	notifFlagContinue = 1
	retUserNotif      = 0x7fc00000
	retAllow          = 0x7fff0000
	setModeFilter     = 1
	flagTSync         = 1 << 0
	flagNewListener   = 1 << 3
	flagTSyncESRCH    = 1 << 4
	flagWaitKillable  = 1 << 5 // Linux 5.19: no call is told of twice because of a signal
	offsetOfNr        = 0
)

// notifyOf installs a filter in all threads and returns the descriptor that tells
// of these calls.
func notifyOf(calls []uintptr) (int, error) {
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetOfNr}}
	for i, nr := range calls {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jt: uint8(len(calls) - i)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: retAllow}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: retUserNotif})
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, flagTSync|flagNewListener|flagTSyncESRCH|flagWaitKillable, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// nextCall waits for a call, tells of it, and lets it be made.
func nextCall(listener int, memory *os.File, w *tracer) error {
	var n notification
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), seccompNotifRecv, uintptr(unsafe.Pointer(&n))); errno != 0 {
		if errno == unix.EINTR || errno == unix.ENOENT { // interrupted; the thread has gone
			return nil
		}
		return errno
	}
	if err := tellOf(n, memory, w); err != nil {
		return err
	}
	r := reply{ID: n.ID, Flags: notifFlagContinue}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), seccompNotifSend, uintptr(unsafe.Pointer(&r)))
	if errno != 0 && errno != unix.ENOENT {
		return errno
	}
	return nil
}

func tellOf(n notification, memory *os.File, w *tracer) error {
	if name, watched := watchedCalls()[uintptr(n.Nr)]; watched {
		return w.around(name, func() error { return nil })
	}
	var text [256]byte
	size, err := unix.Pread(int(memory.Fd()), text[:], int64(n.Args[1]))
	if err != nil && !errors.Is(err, unix.EIO) {
		return err
	}
	name, _, _ := strings.Cut(string(text[:size]), "\x00")
	switch file := path.Base(name); {
	case file != "mountinfo" && file != "mounts" && file != "mountstats":
		return nil
	case name == "/proc/self/mountinfo", name == "/proc/1/mountinfo", name == "/proc/mounts", name == "/proc/self/mounts":
		return w.around(wholeTable, func() error { return nil })
	}
	return w.around(processTable, func() error { return nil })
}
