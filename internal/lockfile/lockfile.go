// Package lockfile keeps a folder for one process at a time, by a lock on a file in it.
package lockfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTaken: another process has the file.
var ErrTaken = errors.New("another process has the lock")

// Take makes the file at path where there is none, and takes it for this process, until
// Release or the end of the process. The file stays: without it, two processes could hold
// locks on two files of the same name. It may be one to read only.
//
// A process that was killed and cannot end, because a thread of it is in a call that the
// storage does not answer, has its locks until that call comes back, and does nothing any
// more: its file is replaced by one with the same content, where the disk has room for it.
//
// Errors: ErrTaken.
func Take(path string) (*os.File, error) {
	// Locked too, or two who find a killed holder would both replace its file.
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer Release(folder)
	if err := flock(folder, unix.LOCK_EX); err != nil {
		return nil, err
	}
	for until := time.Now().Add(endPatience); ; time.Sleep(endPause) {
		f, err := take(path)
		if !errors.Is(err, ErrTaken) {
			return f, err
		}
		switch some, all := isKilled(holder(path)); {
		case all:
			return replace(path)
		case !some || time.Now().After(until):
			return nil, err
		}
	}
}

// endPatience is how long those threads of a killed process may take to end that do not
// hang. In between they are neither killed nor ended.
const (
	endPatience = 2 * time.Second
	endPause    = 10 * time.Millisecond
)

// Release gives the file up and closes it. It says so explicitly: a child that is being
// started has the descriptor too until it executes its program, and the lock with it.
func Release(f *os.File) {
	_ = flock(f, unix.LOCK_UN) // closing it is what is left
	f.Close()
}

func take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.EROFS) {
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func replace(path string) (*os.File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	f, err := take(path)
	if err != nil {
		return nil, err
	}
	_, _ = f.WriteAt(content, 0) // a full disk keeps nobody from the folder
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("%s: %w", f.Name(), ErrTaken)
		case err != nil:
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		default:
			return nil
		}
	}
}

// holder is the process that took the lock, 0 where that cannot be seen: it is of another
// pid namespace, or the filesystem has other numbers in stat(2) than in /proc/locks.
func holder(path string) (pid int) {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Stat(path, &st) != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF
		if w := strings.Fields(line); len(w) > 5 && w[1] == "FLOCK" && w[5] == file {
			pid, _ = strconv.Atoi(w[4])
			return pid
		}
	}
	return 0
}

// isKilled tells whether some thread of the process has ended, or will when its call comes
// back, and whether all have or will. One that cannot be seen is alive.
func isKilled(pid int) (some, all bool) {
	if pid <= 0 {
		return false, false
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	all = err == nil && len(threads) > 0
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		is := err == nil && ends(string(status))
		some, all = some || is, all && is
	}
	return some, all
}

// ends reads the status of a thread (proc_pid_status(5)).
func ends(status string) bool {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd", "ShdPnd":
			if pending, err := strconv.ParseUint(value, 16, 64); err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}
