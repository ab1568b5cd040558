package simnode

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// rootfs says what a container sees. Paths are the host's, except where they
// name a place in the container.
type rootfs struct {
	Scratch string            `json:"scratch"`          // an empty directory to build it on
	Volume  string            `json:"volume,omitempty"` // "" for none
	Mount   string            `json:"mount,omitempty"`  // where the volume is, in the container
	Private bool              `json:"private,omitempty"`
	Binds   map[string]string `json:"binds,omitempty"` // host path to path in the container
}

// enter makes r the root of this process's mount namespace, in the order in
// which a container runtime does it: everything becomes a slave first, so that
// what the host mounts arrives and what is done here stays here.
func (r rootfs) enter() error {
	if err := mountAll([]mountStep{
		{on: "/", flags: unix.MS_REC | unix.MS_SLAVE},
		{from: "rootfs", on: r.Scratch, fstype: "tmpfs", data: "mode=0755"},
	}); err != nil {
		return err
	}
	for dir, mode := range map[string]fs.FileMode{"proc": 0o555, "dev": 0o755, "old": 0o700, "tmp": 0o777 | fs.ModeSticky} {
		if err := mkdir(filepath.Join(r.Scratch, dir), mode); err != nil {
			return err
		}
	}
	if err := r.mountSystem(); err != nil {
		return err
	}
	if r.Volume != "" {
		propagation := uintptr(unix.MS_SLAVE) // mountPropagation: HostToContainer
		if r.Private {
			propagation = unix.MS_PRIVATE // mountPropagation: None
		}
		if err := r.bind(r.Volume, r.Mount, propagation); err != nil {
			return err
		}
	}
	files, err := programFiles()
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := r.bind(file, file, unix.MS_PRIVATE); err != nil {
			return err
		}
	}
	for from, to := range r.Binds {
		if err := r.bind(from, to, unix.MS_PRIVATE); err != nil {
			return err
		}
	}
	return r.pivot()
}

// programFiles are the files that this program needs to be executed once more:
// none where it is static. Built with cgo (the race detector, or a plain `go
// test` on a machine with a C compiler) it has a loader and libraries, which are
// found where they are on the host.
func programFiles() ([]string, error) {
	f, err := elf.Open(self)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	section := f.Section(".interp")
	if section == nil {
		return nil, nil
	}
	loader, err := section.Data()
	if err != nil {
		return nil, err
	}
	exe, err := os.Readlink(self)
	if err != nil {
		return nil, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	files := []string{string(bytes.TrimRight(loader, "\x00"))}
	for line := range strings.Lines(string(maps)) {
		// address, permissions, offset, device, inode, path
		fields := strings.Fields(line)
		if len(fields) == 6 && strings.HasPrefix(fields[5], "/") && fields[5] != exe && !slices.Contains(files, fields[5]) {
			files = append(files, fields[5])
		}
	}
	return files, nil
}

// mountSystem mounts a /proc of this pid namespace and /dev/null. The device is
// bound, not made: a user namespace may not make one.
func (r rootfs) mountSystem() error {
	if err := mountAll([]mountStep{{
		from: "proc", on: filepath.Join(r.Scratch, "proc"), fstype: "proc",
		flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC,
	}}); err != nil {
		return err
	}
	return r.bind("/dev/null", "/dev/null", unix.MS_PRIVATE)
}

// bind makes the directory or file from appear at to in the container.
func (r rootfs) bind(from, to string, propagation uintptr) error {
	on := filepath.Join(r.Scratch, to)
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(on, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(on), 0o755); err == nil {
		err = os.WriteFile(on, nil, 0o644)
	}
	if err != nil {
		return err
	}
	return mountAll([]mountStep{
		{from: from, on: on, flags: unix.MS_BIND | unix.MS_REC},
		{on: on, flags: unix.MS_REC | propagation},
	})
}

// pivot leaves the old root behind. Once it is detached nothing of the host is
// reachable by a path, as in a container.
func (r rootfs) pivot() error {
	if err := unix.PivotRoot(r.Scratch, filepath.Join(r.Scratch, "old")); err != nil {
		return &fs.PathError{Op: "pivot_root", Path: r.Scratch, Err: err}
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return &fs.PathError{Op: "umount", Path: "/old", Err: err}
	}
	return os.Remove("/old")
}

// mountStep is one call of mount(2).
type mountStep struct {
	from, on, fstype string
	flags            uintptr
	data             string
}

func mountAll(steps []mountStep) error {
	for _, s := range steps {
		if err := unix.Mount(s.from, s.on, s.fstype, s.flags, s.data); err != nil {
			return &fs.PathError{Op: fmt.Sprintf("mount(%q, %q, %#x)", s.from, s.fstype, s.flags), Path: s.on, Err: err}
		}
	}
	return nil
}

// mkdir makes a directory with exactly this mode, whatever the umask.
func mkdir(path string, mode fs.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
