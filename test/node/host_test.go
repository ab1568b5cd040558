package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhatIsLeftOnTheHostIsFound(t *testing.T) {
	before, err := ReadHost(os.Getpid())
	must(t, err)
	left := func() string {
		lines, err := before.Left(RunName(), "")
		must(t, err)
		return strings.Join(lines, "\n")
	}
	if got := left(); got != "" {
		t.Fatalf("before anything is: %s", got)
	}
	groups, err := hierarchies()
	must(t, err)
	dir := filepath.Join(groups[0].Dir, RunName())
	sleeper := exec.Command("sh", "-c", "mkdir "+dir+" && echo $$ > "+dir+"/cgroup.procs && exec sleep 1000")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	for _, c := range []struct {
		want       string
		make, take func() error
	}{
		{
			"mount added: ",
			func() error { return unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "") },
			func() error { return unix.Unmount("/mnt", 0) },
		},
		{
			"network device added: left0",
			func() error { return ip("link add left0 type veth peer name left1") },
			unplug,
		},
		{
			`/proc/sys/net/ipv4/ip_forward was "1" and is "0"`,
			func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) },
			func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) },
		},
		{
			"cgroup /",
			func() error {
				return groups[0].makeGroup(RunName())
			},
			func() error { return removeRun(RunName()) },
		},
		{
			": sleep 1000",
			func() error { return sleeper.Start() },
			func() error { return errors.Join(sleeper.Process.Kill(), ended(sleeper), removeRun(RunName())) },
		},
	} {
		must(t, c.make())
		waitFor(t, "what was made", func() error {
			if got := left(); !strings.Contains(got, c.want) {
				return fmt.Errorf("%q is not in %q", c.want, got)
			}
			return nil
		})
		must(t, c.take())
		if got := left(); got != "" {
			t.Errorf("taken away it is still found: %q", got)
		}
	}
}

func TestControllersAreFoundAmongTheOptionsOfTheirMount(t *testing.T) {
	own := "9:name=systemd:/\n5:cpu,cpuacct:/a\n4:memory:/b\n0::/\n"
	for super, want := range map[string]string{
		"rw,memory":               "memory",
		"rw,cpu,cpuacct":          "cpu,cpuacct",
		"rw,xattr,name=systemd\n": "none,name=systemd",
		"rw,cpuset":               "", // not one that this process is in
		"rw,cpu":                  "", // another hierarchy than the one that has both
	} {
		if got := mountedControllers(own, super); got != want {
			t.Errorf("%q: %q, not %q", super, got, want)
		}
	}
}

// ended waits for a process that was killed.
func ended(cmd *exec.Cmd) error {
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		return fmt.Errorf("it was to be killed: %w", err)
	}
	return nil
}

// TestHelperLeaves is a run for the test below: it passes, and leaves a process.
func TestHelperLeaves(t *testing.T) {
	file := os.Getenv("NODE_MOUNTS_NODE_TEST_PID")
	if file == "" {
		return // run with the others, it has nothing to do
	}
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	must(t, os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0o644))
}

func TestARunThatLeavesSomethingFailsAndSaysWhat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	cmd := helper(t, "TestHelperLeaves")
	cmd.Env = append(cmd.Env, "NODE_MOUNTS_NODE_TEST_PID="+file)
	out, err := cmd.Output()
	text, readErr := os.ReadFile(file)
	must(t, readErr)
	pid, readErr := strconv.Atoi(string(text))
	must(t, readErr)
	must(t, unix.Kill(pid, unix.SIGKILL))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "--- PASS: TestHelperLeaves") {
		t.Fatalf("a run whose tests pass: %v, %s", err, out)
	}
	if want := fmt.Sprintf("process %d: sleep 1000", pid); !strings.Contains(string(exit.Stderr), want) {
		t.Errorf("%q is not in %q", want, exit.Stderr)
	}
}
