package agentcmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/datalayer/node-mounts/internal/procs"
)

// BootID names this boot of the node, in "boot_id+ticks". Mounts end with a boot,
// so a record of another one describes nothing that stands.
//
// The kernel's boot_id alone does not tell. A node may be a container (kind, k3d,
// minikube on Docker): it is started again on a kernel that runs on, and every mount
// it had is gone. Its first process is another one then, and field 22 of
// proc_pid_stat(5) says when that started, in clock ticks after the kernel. proc is
// therefore the node's own (hostPID). An init that executes itself anew keeps its
// start.
func BootID(proc string) (string, error) {
	b, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("read the boot id: %s is empty", filepath.Join(proc, "sys/kernel/random/boot_id"))
	}
	start, err := procs.New(proc).Started(1)
	if err != nil {
		return "", fmt.Errorf("read when the node's first process started: %w", err)
	}
	return fmt.Sprintf("%s+%d", id, start), nil
}

// selinux tells whether the node's kernel enforces or logs by SELinux. It asks
// /proc, which a container shares with the node, and not for a mounted
// selinuxfs, which it may not see. The kernel registers that filesystem only
// where SELinux is on, and labels every process "kernel" until a policy is
// loaded.
func selinux(proc string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(proc, "filesystems"))
	if err != nil {
		return false, fmt.Errorf("look for SELinux: %w", err)
	}
	registered := false
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		registered = registered || len(fields) > 0 && fields[len(fields)-1] == "selinuxfs"
	}
	if !registered {
		return false, nil
	}
	b, err = os.ReadFile(filepath.Join(proc, "self/attr/current"))
	if err != nil {
		return true, nil // it is on, and whether it has a policy is not known
	}
	return strings.TrimRight(string(b), "\x00\n") != "kernel", nil
}
