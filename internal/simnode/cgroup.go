package simnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Enroll puts every process of the node's containers that is there when it is
// called into its container's cgroup. The kernel does that for real ones as they
// are forked; here a process that a container's program forks by itself shows no
// cgroup until somebody looks. An agent under test calls it before each look, so
// that a tenant cannot leave its cgroup by a fork.
func (n *Node) Enroll() error {
	n.mu.Lock()
	containers := slices.Clone(n.containers)
	n.mu.Unlock()
	of := make(map[string]*core, len(containers))
	for _, c := range containers {
		if !c.ended() { // its namespace's number may be another's by now
			of[c.pidNS] = c
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if c := containerOf(pid, of); c != nil {
			errs = append(errs, c.enroll(pid))
		}
	}
	return errors.Join(errs...)
}

// containerOf finds the container by the pid namespace that it was started in, or
// by one that the process's lies in: any user may make those. nil for a process
// that is none's, or has ended.
func containerOf(pid int, of map[string]*core) *core {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil
	}
	defer func() { ns.Close() }()
	for {
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
		if err != nil {
			return nil
		}
		if c := of[name]; c != nil {
			return c
		}
		// EPERM where the namespace above is not beneath ours (ioctl_ns(2)).
		up, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_PARENT)
		if err != nil {
			return nil
		}
		ns.Close()
		ns = os.NewFile(uintptr(up), "pid namespace")
	}
}

func (c *core) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// enroll marks the process unless it is, or has ended.
func (c *core) enroll(pid int) error {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err == nil && string(line) != c.cgroupLine() {
		err = c.mark(pid)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// cgroupFile is what the processes of the container have for a cgroup.
func (c *core) cgroupFile() string { return filepath.Join(c.node.Dir, "run", c.id+".cgroup") }

// cgroupLine is what they would have on a node with containerd and the systemd
// driver.
func (c *core) cgroupLine() string {
	return fmt.Sprintf("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-%s.scope\n",
		strings.ReplaceAll(c.pod, "-", "_"), c.id)
}

// describe writes the container's line, once, before any process shows it: a
// reader never finds half of it.
func (c *core) describe() error {
	return os.WriteFile(c.cgroupFile(), []byte(c.cgroupLine()), 0o444)
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
