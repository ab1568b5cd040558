package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Host is what a run could leave behind on the host, as it was at one time.
type Host struct {
	pid    int
	mounts []string          // lines of mountinfo
	links  []string          // network devices
	values map[string]string // sysctls and paths, and what was there
}

// ReadHost looks at the host through one of its processes.
func ReadHost(pid int) (Host, error) {
	h := Host{pid: pid, values: map[string]string{}}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return Host{}, err
	}
	h.mounts = strings.Split(strings.TrimSpace(string(b)), "\n")
	if h.links, err = links(pid); err != nil {
		return Host{}, err
	}
	// What kubelet, containerd and the network plugins change on a machine of theirs.
	for _, name := range append(kubeletSysctls(), "/proc/sys/net/ipv4/ip_forward") {
		b, err := os.ReadFile(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), name))
		if err != nil && !os.IsNotExist(err) {
			return Host{}, err
		}
		// Network settings are those of the reader, wherever the path leads.
		if strings.Contains(name, "/net/") && pid != os.Getpid() {
			continue
		}
		h.values[name] = strings.TrimSpace(string(b))
	}
	for _, name := range []string{
		"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/etcd", "/etc/cni", "/etc/kubernetes", "/run/containerd", "/run/netns",
		"/var/log/pods", "/var/log/containers", "/usr/libexec/kubernetes", "/opt/kubernetes", "/opt/debian",
	} {
		h.values[name] = "absent"
		if _, err := os.Lstat(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), name)); err == nil {
			h.values[name] = "present"
		}
	}
	return h, nil
}

// links lists the network devices a process sees.
func links(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// Left looks at the host again and says what is different, one line each; and
// which processes of the run still run, and which of its cgroups are there. netns
// is the lab's network namespace, and "" to leave its processes out.
func (h Host) Left(run, netns string) ([]string, error) {
	now, err := ReadHost(h.pid)
	if err != nil {
		return nil, err
	}
	left := difference("mount", h.mounts, now.mounts)
	left = append(left, difference("network device", h.links, now.links)...)
	for name, was := range h.values {
		if is := now.values[name]; is != was {
			left = append(left, fmt.Sprintf("%s was %q and is %q", name, was, is))
		}
	}
	processes, err := processesOf(run, netns)
	if err != nil {
		return nil, err
	}
	left = append(left, processes...)
	groups, err := groupsOf(func(name string) bool { return name == run })
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		left = append(left, "cgroup "+g)
	}
	slices.Sort(left)
	return left, nil
}

func difference(what string, was, is []string) []string {
	var lines []string
	for _, s := range is {
		if !slices.Contains(was, s) {
			lines = append(lines, what+" added: "+s)
		}
	}
	for _, s := range was {
		if !slices.Contains(is, s) {
			lines = append(lines, what+" taken away: "+s)
		}
	}
	return lines
}

// processesOf lists the processes in a cgroup of the run and, where netns is
// given, in the lab's network. Containers have networks of their own, and the lab
// itself is in no cgroup of the run: each is found by one of the two.
func processesOf(run, netns string) ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, dir := range dirs {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) {
			continue
		}
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue // it has ended
		}
		ns, _ := os.Readlink(filepath.Join(dir, "ns/net"))
		if bytes.Contains(groups, []byte("/"+run)) || netns != "" && ns == netns {
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			found = append(found, fmt.Sprintf("process %s: %s", filepath.Base(dir), bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found, nil
}
