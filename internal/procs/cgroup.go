package procs

import (
	"bufio"
	"bytes"
	"strings"
)

// member is a process's place in a Pod, as the name of its cgroup says it.
type member struct {
	pod       string // the Pod's uid, as podKey makes it
	container string // "" where no component after the Pod's has an id
	// monitor: it is no process of the Pod's containers, but the program that
	// the runtime lets watch one.
	monitor bool
}

// membersIn reads a file in the format of /proc/PID/cgroup: a line for each
// hierarchy of cgroup v1, and one for v2. own has the reader's own paths.
func membersIn(r *bufio.Reader, own map[string]string) ([]member, error) {
	var found []member
	err := lines(r, func(line []byte) bool {
		// Most processes of a node are in no Pod: no memory is spent on them.
		if !bytes.Contains(line, []byte("pod")) {
			return true
		}
		controllers, path, ok := cutCgroup(string(line))
		if ok {
			found = merge(found, members(path, own[controllers]))
		}
		return true
	})
	for _, m := range found {
		if m.monitor {
			return nil, err
		}
	}
	return found, err
}

// merge adds what another hierarchy says. They agree, except that not every
// hierarchy need have a cgroup as deep as the container's.
func merge(all, more []member) []member {
next:
	for _, m := range more {
		for i := range all {
			if all[i].pod == m.pod {
				all[i].monitor = all[i].monitor || m.monitor
				if all[i].container == "" {
					all[i].container = m.container
				}
				continue next
			}
		}
		all = append(all, m)
	}
	return all
}

// cutCgroup splits "hierarchy:controllers:path". The path may have colons.
func cutCgroup(line string) (controllers, path string, ok bool) {
	_, rest, ok := strings.Cut(line, ":")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ":")
}

// members returns the Pods that a cgroup's path lies in, the outermost first.
// More than one are nested: a node that itself runs in a Pod (kind).
//
// A container that may make cgroups can give one the name of another Pod. So a
// Pod's component counts beneath a container of a Pod only if own, the reader's
// path in the same hierarchy, leads through that container too: then the reader
// is an agent of the inner node, and the names beneath are its kubelet's.
func members(path, own string) []member {
	parts := strings.Split(strings.TrimSuffix(path, " (deleted)"), "/")
	shared := commonPrefix(parts, strings.Split(own, "/"))
	var found []member
	enclosed := false // beneath a container whose Pod is not also the reader's
	for i, part := range parts {
		uid, rest, ok := podUID(part)
		if !ok {
			enclosed = enclosed || (i >= shared && len(found) > 0 && containerID(part) != "")
			continue
		}
		if enclosed {
			break
		}
		m := member{pod: strings.ReplaceAll(uid, "_", "-")}
		m.look(rest)
		enclosed = i >= shared && m.container != ""
		for _, below := range parts[i+1:] {
			m.look(below)
		}
		found = append(found, m)
	}
	return found
}

// look takes from a component beneath the Pod's what it says. The first id
// counts: what a container nests inside itself is still that container.
func (m *member) look(part string) {
	if m.container != "" || m.monitor {
		return
	}
	// CRI-O puts its monitor beside the container, as crio-conmon-ID[.scope].
	// No id starts with "conmon": "o" is no hexadecimal digit.
	m.monitor = strings.HasPrefix(part, "crio-conmon")
	if !m.monitor {
		m.container = containerID(part)
	}
}

// podUID takes the uid from the component that kubelet names after a Pod:
// "podUID" with the cgroupfs driver, "…-podUID.slice" with systemd's, where "-"
// in the uid is written "_". A runtime set to cgroupfs under a kubelet set to
// systemd makes one component, "…-podUID.slice:cri-containerd:ID"; rest is what
// follows the first colon.
func podUID(part string) (uid, rest string, ok bool) {
	name, rest, _ := strings.Cut(part, ":")
	stem, slice := strings.CutSuffix(name, ".slice")
	uid, ok = strings.CutPrefix(stem, "pod")
	if !ok && slice {
		// Behind the last "-": a slice's uid has none.
		if i := strings.LastIndexByte(stem, '-'); i >= 0 {
			uid, ok = strings.CutPrefix(stem[i+1:], "pod")
		}
	}
	if !ok || uid == "" || strings.ContainsFunc(uid, func(r rune) bool { return !uidRune(r) }) {
		return "", "", false
	}
	return uid, rest, true
}

// containerID takes the id from the component that a runtime names after a
// container: ID, cri-containerd-ID.scope, crio-ID.scope, docker-ID.scope, or
// "cri-containerd:ID".
func containerID(part string) string {
	const digits = 64
	name := strings.TrimSuffix(part, ".scope")
	if len(name) < digits {
		return ""
	}
	prefix, id := name[:len(name)-digits], name[len(name)-digits:]
	if prefix != "" && !strings.HasSuffix(prefix, "-") && !strings.HasSuffix(prefix, ":") && !strings.HasSuffix(prefix, "_") {
		return ""
	}
	if strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

func commonPrefix(a, b []string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
