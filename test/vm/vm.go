// Package vm boots a kernel of a test's choice in a small virtual machine and runs
// a program of the test in it: for kernels older than the machine's own, and for
// what its kernel was built without. It needs qemu-system-x86_64 and works without
// KVM; a boot then takes 15 to 50 seconds.
//
// The machine has no network and no disk, only what the test puts into its initial
// file system. Its first process is the test binary itself: TestMain calls Init.
package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Machine is a virtual machine that runs one command and ends.
type Machine struct {
	// Kernel is a Debian kernel package, unpacked: boot/vmlinuz-* and
	// lib/modules/*.
	Kernel string
	// Modules are loaded with what they depend on, in this order, before the
	// command starts.
	Modules []string
	// Files are put into the machine: path there -> path here. Directories are
	// taken whole.
	Files map[string]string
	// Command is run there as root, with PATH and with /proc, /sys, /dev, /run and
	// /tmp mounted. The root is shared, as systemd makes it.
	Command []string
	// MemoryMiB is 768 unless it is set.
	MemoryMiB int
}

// Result is what came of the command.
type Result struct {
	Output string // standard output and error together
	Exit   int
}

// order is what Init finds in the machine.
type order struct {
	Modules []string `json:"modules"` // paths, dependencies first
	Command []string `json:"command"`
	// Nonce marks the lines on the console that are Init's, not the command's.
	Nonce string `json:"nonce"`
}

const orderPath = "/order.json"

// Run boots the machine and waits for the command to end. A command that fails is
// no error; a machine that does not boot, panics or outlives ctx is, with the
// console's last lines.
func (m Machine) Run(ctx context.Context) (Result, error) {
	dir, err := os.MkdirTemp("", "vm-")
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	vmlinuz, err := one(filepath.Join(m.Kernel, "boot", "vmlinuz-*"))
	if err != nil {
		return Result{}, err
	}
	nonce := filepath.Base(dir)
	initrd := filepath.Join(dir, "initrd")
	if err := m.writeInitrd(initrd, nonce); err != nil {
		return Result{}, fmt.Errorf("make the machine's file system: %w", err)
	}
	memory := m.MemoryMiB
	if memory == 0 {
		memory = 768
	}
	// max: with fewer features than the host's processor has, kernels for clouds do
	// not boot. The rest of the options spare an emulated boot some seconds.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-M", "pc", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max", "-smp", "1", "-m", strconv.Itoa(memory),
		"-nographic", "-nodefaults", "-serial", "stdio", "-no-reboot",
		"-kernel", vmlinuz, "-initrd", initrd,
		"-append", "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable no_timer_check")
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.SysProcAttr = endWithParent()
	if err := cmd.Run(); err != nil {
		return Result{}, fmt.Errorf("run the virtual machine: %w (%w)\n%s", err, context.Cause(ctx), tail(console.String()))
	}
	return parse(console.String(), nonce)
}

// parse finds the command's output between the two lines that Init wrote.
func parse(console, nonce string) (Result, error) {
	console = strings.ReplaceAll(console, "\r\n", "\n")
	_, rest, ok := strings.Cut(console, beginLine(nonce)+"\n")
	if !ok {
		return Result{}, fmt.Errorf("the command was not started in the virtual machine:\n%s", tail(console))
	}
	output, rest, ok := strings.Cut(rest, endLine(nonce))
	if !ok {
		return Result{}, fmt.Errorf("the virtual machine ended before the command did:\n%s", tail(console))
	}
	line, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	exit, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return Result{}, fmt.Errorf("how the command ended cannot be read: %q", line)
	}
	return Result{Output: output, Exit: exit}, nil
}

func beginLine(nonce string) string { return "== " + nonce + " begin" }
func endLine(nonce string) string   { return "== " + nonce + " end" }

func tail(s string) string {
	const most = 4000
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}

func one(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("want one %s, found %d", pattern, len(found))
	}
	return found[0], nil
}

func (o order) encode() ([]byte, error) {
	if len(o.Command) == 0 {
		return nil, errors.New("the machine has no command")
	}
	return json.Marshal(o)
}
