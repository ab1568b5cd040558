package agentcmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// bootID names this boot of the kernel. Mounts end with a boot, so a record of
// another one describes nothing that stands.
func bootID(proc string) (string, error) {
	b, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("read the boot id: %s is empty", filepath.Join(proc, "sys/kernel/random/boot_id"))
	}
	return id, nil
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
