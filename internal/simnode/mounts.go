package simnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// Mounts is the host's mount table, from Dir downwards.
func (n *Node) Mounts() ([]mnt.Mount, error) {
	ms, err := mountsOf(n.HostPID())
	return below(ms, n.Dir), err
}

// mountsOf reads the mount table of a process. Paths in it are that process's.
func mountsOf(pid int) ([]mnt.Mount, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mnt.ParseMountinfo(f)
}

func below(ms []mnt.Mount, dir string) []mnt.Mount {
	return slices.DeleteFunc(ms, func(m mnt.Mount) bool {
		return m.Point != dir && !strings.HasPrefix(m.Point, dir+"/")
	})
}

var errParent = errors.New("mounts stand beneath it")

// unmountBelow takes the mounts at and below dir out of our namespace, leaves
// first. Each round reads the table anew: with one mount its copies elsewhere in
// the table go as well, and mounts that others hid become reachable.
func unmountBelow(dir string) error {
	end := time.Now().Add(time.Second)
	for {
		ms, err := mountsOf(os.Getpid())
		if err != nil {
			return err
		}
		ms = below(ms, dir)
		if len(ms) == 0 {
			return nil
		}
		parents := map[int]bool{}
		for _, m := range ms {
			parents[m.Parent] = true
		}
		progress := false
		var stuck []string
		for _, m := range slices.Backward(ms) {
			err := errParent
			if !parents[m.ID] {
				err = unmountExactly(m)
			}
			if err == nil {
				progress = true
				continue
			}
			stuck = append(stuck, fmt.Sprintf("%s (%s, root %s, %s): %v", m.Point, m.FSType, m.Root, m.Flags, err))
		}
		if progress {
			continue
		}
		// A child that is being started has our descriptors until it executes its
		// program, and a mount is busy for that long.
		if time.Now().After(end) {
			return detach(dir, stuck)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// unmountExactly unmounts m, and not another mount that hides it: the path is
// believed only if it leads to the mount with this id.
func unmountExactly(m mnt.Mount) error {
	var st unix.Statx_t
	// No question to the filesystem, which may be dead.
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, m.Point, flags, unix.STATX_MNT_ID, &st); err != nil {
		return err
	}
	if st.Mnt_id != uint64(m.ID) {
		return fmt.Errorf("hidden by another mount: %w", unix.EBUSY)
	}
	return unix.Unmount(m.Point, unix.UMOUNT_NOFOLLOW)
}

func detach(dir string, stuck []string) error {
	err := fmt.Errorf("%d mounts were still in use: %s", len(stuck), strings.Join(stuck, "; "))
	if e := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
		return fmt.Errorf("%w; detaching them: %w", err, e)
	}
	return err
}

// cgroupFile is what the processes of the container have for a cgroup.
func (c *core) cgroupFile() string { return filepath.Join(c.node.Dir, "run", c.id+".cgroup") }

// describe writes the cgroup line that the container's processes would have on a
// node with containerd and the systemd driver. It is written once, before any of
// them shows it: a reader never finds half of it.
func (c *core) describe() error {
	line := fmt.Sprintf("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-%s.scope\n",
		strings.ReplaceAll(c.pod, "-", "_"), c.id)
	return os.WriteFile(c.cgroupFile(), []byte(line), 0o444)
}

// mark shows that line for a process, in the agent's view alone: the file is
// bound over /proc/<pid>/cgroup in the agent's own namespace. The machine's
// cgroups are not touched, and the mount goes with the process, because its
// directory in /proc does.
func (c *core) mark(pid int) error {
	on := fmt.Sprintf("/proc/%d/cgroup", pid)
	return mountAll([]mountStep{
		{from: c.cgroupFile(), on: on, flags: unix.MS_BIND},
		{on: on, flags: unix.MS_PRIVATE},
	})
}

// markInner marks the process that the container names by the pid inner, and
// answers the agent's name for it.
func (c *core) markInner(inner int) (int, error) {
	pid, err := c.outerPID(inner)
	if err != nil {
		return 0, err
	}
	return pid, c.mark(pid)
}

// outerPID looks for the process of the container's pid namespace that has the
// pid inner there.
func (c *core) outerPID(inner int) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		// A process that ends while we look is not the one, which waits for us.
		if ns, err := pidNamespace(pid); err != nil || ns != c.pidNS {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && innermost(string(status)) == fmt.Sprint(inner) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("process %d of the container: %w", inner, ErrEnded)
}

// innermost is the last number of the NSpid line: the pid that a process has in
// its own pid namespace.
func innermost(status string) string {
	for line := range strings.Lines(status) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			fields := strings.Fields(pids)
			return fields[len(fields)-1]
		}
	}
	return ""
}

func pidNamespace(pid int) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
}
