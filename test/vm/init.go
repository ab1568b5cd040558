package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/netaddr/netaddrtest"
)

// Init is for TestMain: where this process is the first of a virtual machine it
// carries out the order and turns the machine off. Elsewhere it does nothing.
func Init() {
	if os.Getpid() != 1 || filepath.Clean(os.Args[0]) != "/init" {
		return
	}
	if err := carryOut(); err != nil {
		fmt.Println("init:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	os.Exit(1) // the kernel panics, and the machine ends by panic=-1
}

func carryOut() error {
	text, err := os.ReadFile(orderPath)
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	// A root that can be moved and shared: the first one, rootfs, can be neither.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, m := range []struct{ kind, on string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"},
	} {
		if err := unix.Mount(m.kind, m.on, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.on, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the root: %w", err)
	}
	for _, file := range o.Modules {
		if err := load("/" + file); err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	if err := netaddrtest.Loopback(true); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	fmt.Println(beginLine(o.Nonce))
	cmd := exec.Command(o.Command[0], o.Command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp"}
	err = cmd.Run()
	exit := cmd.ProcessState.ExitCode()
	if cmd.ProcessState == nil {
		fmt.Println(err)
		exit = 127
	}
	fmt.Println(endLine(o.Nonce), exit)
	return nil
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	const compressed = 4 // MODULE_INIT_COMPRESSED_FILE, 5.17
	flags := 0
	if ext := filepath.Ext(file); ext != ".ko" {
		flags = compressed
	}
	err = unix.FinitModule(int(f.Fd()), "", flags)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// endWithParent is for children that must not outlive the test.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
