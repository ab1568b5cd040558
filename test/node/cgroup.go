package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runPrefix begins the names of the cgroups of a run; the pid of its outermost
// process ends them.
const runPrefix = "node-mounts-"

// hierarchy is one cgroup hierarchy that the host has mounted. Others are never
// mounted: that would claim a controller for all of the machine.
type hierarchy struct {
	Dir     string // where the host has it
	Name    string // the folder below /sys/fs/cgroup
	Options string // of its mount: the controllers
	V2      bool
}

// hierarchies reads the cgroup mounts of this process: version 1 where there are
// any with controllers, and the unified one where there are none.
func hierarchies() ([]hierarchy, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var v1, v2 []hierarchy
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(line, " - ")
		place, what := strings.Fields(before), strings.Fields(after)
		if !ok || len(place) < 5 || len(what) < 3 {
			continue
		}
		h := hierarchy{Dir: place[4], Name: filepath.Base(place[4])}
		switch what[0] {
		case "cgroup2":
			h.V2 = true
			v2 = append(v2, h)
		case "cgroup":
			h.Options = mountedControllers(string(own), what[2])
			if h.Options != "" {
				v1 = append(v1, h)
			}
		}
	}
	if len(v1) > 0 {
		return v1, nil
	}
	if len(v2) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	return v2[:1], nil
}

// mountedControllers are the options that mount a hierarchy again, from those of
// its superblock, which holds others ("rw", "xattr") too.
func mountedControllers(own, super string) string {
	for line := range strings.Lines(own) {
		_, rest, _ := strings.Cut(line, ":")
		names, _, ok := strings.Cut(rest, ":")
		if !ok || names == "" {
			continue
		}
		all := true
		for _, name := range strings.Split(names, ",") {
			all = all && strings.Contains(","+strings.TrimSpace(super)+",", ","+name+",")
		}
		if !all {
			continue
		}
		if strings.HasPrefix(names, "name=") {
			return "none," + names
		}
		return names
	}
	return ""
}

// makeGroup makes the run's cgroup in a hierarchy.
func (h hierarchy) makeGroup(run string) error {
	dir := filepath.Join(h.Dir, run)
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	// A version 1 cpuset takes no process before it has CPUs and memory.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(h.Dir, name))
		if h.V2 || os.IsNotExist(err) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), value, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// join moves this process into the run's cgroup.
func (h hierarchy) join(run string) error {
	return os.WriteFile(filepath.Join(h.Dir, run, "cgroup.procs"), []byte("0"), 0)
}

// mount mounts the hierarchy below root, seen from this thread's cgroup
// namespace. Without it containers would be put where the host's root is.
func (h hierarchy) mount(root string) error {
	at := filepath.Join(root, h.Name)
	kind := "cgroup"
	if h.V2 {
		at, kind = root, "cgroup2"
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, at, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, h.Options); err != nil {
		return fmt.Errorf("mount -t %s -o %s: %w", kind, h.Options, err)
	}
	if !h.V2 {
		return nil
	}
	// A cgroup of version 2 that hands controllers down may hold no process: the
	// root of this namespace, which is not the machine's, does.
	if err := os.MkdirAll(filepath.Join(at, "init"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(at, "init/cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	names, err := os.ReadFile(filepath.Join(at, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(names)) {
		if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("handing down %s: %w", name, err)
		}
	}
	return nil
}

// groupsOf lists the cgroups of runs whose name is wanted.
func groupsOf(wanted func(name string) bool) ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, h := range all {
		entries, err := os.ReadDir(h.Dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), runPrefix) && wanted(e.Name()) {
				found = append(found, filepath.Join(h.Dir, e.Name()))
			}
		}
	}
	return found, nil
}

// removeRun removes the run's cgroups, which hold no process any more.
func removeRun(run string) error {
	return removeGroups(func(name string) bool { return name == run })
}

// sweepRuns removes the cgroups of runs that were killed so hard that nobody was
// left to do it.
func sweepRuns() error {
	return removeGroups(func(name string) bool {
		pid, err := strconv.Atoi(strings.TrimPrefix(name, runPrefix))
		return err == nil && unix.Kill(pid, 0) == unix.ESRCH
	})
}

func removeGroups(wanted func(name string) bool) error {
	found, err := groupsOf(wanted)
	if err != nil {
		return err
	}
	for _, dir := range found {
		if err := removeGroup(dir); err != nil {
			return err
		}
	}
	return nil
}

// removeGroup removes a cgroup and those in it, deepest first.
func removeGroup(dir string) error {
	// A process that has ended leaves its cgroup a moment later.
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := removeEmpty(dir)
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func removeEmpty(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := unix.Rmdir(dirs[i]); err != nil && err != unix.ENOENT {
			return &os.PathError{Op: "rmdir", Path: dirs[i], Err: err}
		}
	}
	return nil
}
