package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/simnode"
)

// sight is when something became visible in a container.
type sight struct {
	at  time.Time
	err error
}

// look waits until the mount at target is visible in the Pod's container and says
// when. It looks through /proc, as the container and from outside: no pipe, and no
// process of the container takes part. Between two looks it waits for the kernel to
// say that the container's mount table has changed (poll(2) on mountinfo), because
// a loop without pause would take one of the machine's processors from what is
// measured.
func (p *remotePod) look(target string) <-chan sight {
	out := make(chan sight, 1)
	pid := p.container.PID()
	go func() {
		at, err := appears(pid, target)
		out <- sight{at, err}
	}()
	return out
}

func appears(pid int, target string) (time.Time, error) {
	table, err := unix.Open(fmt.Sprintf("/proc/%d/mountinfo", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return time.Time{}, err
	}
	defer unix.Close(table)
	file := fmt.Sprintf("/proc/%d/root%s/%s/%s", pid, simnode.DefaultMountPath, target, witness)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		_, err := os.Stat(file)
		if err == nil {
			return time.Now(), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return time.Time{}, err
		}
		// A change between the look and this call is reported at once: the kernel
		// counts from when the table was opened or last polled.
		fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}}
		if _, err := unix.Poll(fds, int(time.Second/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return time.Time{}, err
		}
	}
	return time.Time{}, fmt.Errorf("%s did not appear", file)
}
