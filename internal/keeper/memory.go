package keeper

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// watchMemory ends children whose resident memory is beyond their limit. The keeper's
// container has no limit of its own: the kernel would end all children for one.
func (s *service) watchMemory(ctx context.Context) {
	ticker := time.NewTicker(pollTime)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		children := slices.Clone(s.children)
		s.mu.Unlock()
		for _, k := range children {
			if k.memory > 0 {
				s.checkMemory(k)
			}
		}
	}
}

func (s *service) checkMemory(k *child) {
	// The number of one that has ended may be another's; signal knows.
	used, err := resident(k.pid)
	if err != nil || used <= k.memory || k.dead() {
		return
	}
	k.tooBig.Store(true)
	s.Log.Warn("a child uses more memory than it may and is killed", "use", k.use, "id", k.id, "bytes", used, "limit", k.memory)
	k.signal(unix.SIGKILL)
}

// resident is the resident memory of a process, in bytes (proc_pid_statm(5)).
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm of process %d: %q", pid, b)
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}
