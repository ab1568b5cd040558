package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// machineSpec is what the machine is made of. It comes as the first line of its
// standard input.
type machineSpec struct {
	Run      string
	Disk     string            // becomes the root filesystem, and keeps what is written there
	Programs map[string]string // folders mounted read-only: where, and from where
	Folders  map[string]string // folders mounted as they are
	BootID   string
	Private  bool // mounts of the machine do not propagate
}

// Where things are inside the machine.
const (
	kubernetesDir = "/opt/kubernetes"
	debianDir     = "/opt/debian"
	logDir        = "/var/log/machine"

	// Kubectl is in the machine too. Its folder may be given to Pods.
	Kubectl = kubernetesDir + "/kubectl"

	bootIDFile = "/proc/sys/kernel/random/boot_id"
)

// kubeletSysctls are settings of the whole kernel that kubelet makes on a machine
// of its own. Here it finds files in their places that hold what it wants.
func kubeletSysctls() []string {
	return []string{
		"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops",
		"/proc/sys/kernel/keys/root_maxkeys", "/proc/sys/kernel/keys/root_maxbytes",
	}
}

// kubeletWants is the value of each of kubeletSysctls.
func kubeletWants(name string) string {
	return map[string]string{
		"overcommit_memory": "1", "panic_on_oom": "0", "panic": "10", "panic_on_oops": "1", "root_maxkeys": "1000000", "root_maxbytes": "25000000",
	}[filepath.Base(name)]
}

// buildMachine runs as process 1 of a new pid namespace. It makes the machine's
// cgroup namespace and root, and becomes its first process; so it returns only
// what went wrong.
func buildMachine() error {
	// The cgroup namespace is the thread's until exec makes it the process's.
	runtime.LockOSThread()
	var spec machineSpec
	// Byte by byte: what follows is for the process this one becomes.
	line, err := readLine(os.Stdin)
	if err == nil {
		err = json.Unmarshal(line, &spec)
	}
	if err != nil {
		return fmt.Errorf("reading what to make: %w", err)
	}
	groups, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range groups {
		if err := h.join(spec.Run); err != nil {
			return fmt.Errorf("joining the cgroup: %w", err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare the cgroup namespace: %w", err)
	}
	if err := spec.mountRoot(groups); err != nil {
		return err
	}
	if err := spec.pivot(); err != nil {
		return err
	}
	env := []string{
		roleEnv + "=" + roleInit, "HOME=/root", "LANG=C.UTF-8",
		"PATH=" + machinePath(),
	}
	return fmt.Errorf("exec: %w", syscall.Exec(self, []string{"init"}, env))
}

func machinePath() string {
	return strings.Join([]string{
		kubernetesDir, debianDir + "/usr/bin", debianDir + "/usr/sbin", debianDir + "/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
	}, ":")
}

// mountRoot mounts on the disk what a root filesystem has.
func (s machineSpec) mountRoot(groups []hierarchy) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount --make-rprivate /: %w", err)
	}
	if err := bind(s.Disk, s.Disk, false); err != nil {
		return err
	}
	if err := s.systemFolders(); err != nil {
		return err
	}
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""}, // of the lab's network
		{"tmpfs", "/sys/fs/cgroup", "mode=755"},
		{"tmpfs", "/run", "mode=755"},
		{"tmpfs", "/tmp", "mode=1777"},
	} {
		at := s.Disk + m.at
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("mount -t %s on %s: %w", m.kind, m.at, err)
		}
	}
	for _, h := range groups {
		if err := h.mount(s.Disk + "/sys/fs/cgroup"); err != nil {
			return err
		}
	}
	return s.kernelFiles()
}

// systemFolders gives the machine the host's programs and devices.
func (s machineSpec) systemFolders() error {
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"} {
		target, err := os.Readlink("/" + name)
		if err == nil {
			if err := os.Symlink(target, filepath.Join(s.Disk, name)); err != nil && !os.IsExist(err) {
				return err
			}
			continue
		}
		if _, err := os.Lstat("/" + name); os.IsNotExist(err) {
			continue
		}
		if err := bind("/"+name, filepath.Join(s.Disk, name), true); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.Disk+"/dev", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev", s.Disk+"/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount --rbind /dev: %w", err)
	}
	for at, from := range s.Programs {
		if err := bind(from, s.Disk+at, true); err != nil {
			return err
		}
	}
	for at, from := range s.Folders {
		if err := bind(from, s.Disk+at, false); err != nil {
			return err
		}
	}
	return nil
}

// kernelFiles puts files of the machine's own in the place of settings that are
// the whole kernel's.
func (s machineSpec) kernelFiles() error {
	values := map[string]string{bootIDFile: s.BootID}
	for _, name := range kubeletSysctls() {
		values[name] = kubeletWants(name)
	}
	dir := s.Disk + "/run/kernel"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for at, value := range values {
		if _, err := os.Lstat(s.Disk + at); os.IsNotExist(err) {
			continue
		}
		file := filepath.Join(dir, filepath.Base(at))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, s.Disk+at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount --bind on %s: %w", at, err)
		}
	}
	return nil
}

// bind mounts a folder on another, which it makes.
func bind(from, at string, readOnly bool) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount --bind %s %s: %w", from, at, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount -o remount,bind,ro %s: %w", at, err)
	}
	return nil
}

// pivot makes the disk the root.
func (s machineSpec) pivot() error {
	err := os.Chdir(s.Disk)
	if err == nil {
		err = unix.PivotRoot(".", ".")
	}
	if err == nil {
		// The old root lies on the new one now, and "." is the old one.
		err = unix.Unmount(".", unix.MNT_DETACH)
	}
	if err == nil {
		err = os.Chdir("/")
	}
	if err != nil {
		return fmt.Errorf("making %s the root: %w", s.Disk, err)
	}
	if s.Private {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("mount --make-rshared /: %w", err)
	}
	return nil
}

func readLine(f *os.File) ([]byte, error) {
	var line []byte
	one := make([]byte, 1)
	for {
		n, err := f.Read(one)
		if n == 1 && one[0] == '\n' {
			return line, nil
		}
		if err != nil {
			return nil, errors.Join(errors.New("the line does not end"), err)
		}
		line = append(line, one[:n]...)
	}
}
