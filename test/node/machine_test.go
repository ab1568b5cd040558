package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAMachineHasARootOfItsOwn(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var spec machineSpec
	m, _ := testMachine(t, func(s *machineSpec) { spec = *s })
	if got := m.run(t, "cat", "/proc/1/cmdline"); got != "init\x00" {
		t.Errorf("its first process is %q", got)
	}
	if got := m.run(t, "cat", bootIDFile); got != spec.BootID+"\n" {
		t.Errorf("its boot id is %q, not %q", got, spec.BootID)
	}
	m.run(t, "sh", "-c", "echo kept > /srv-file && echo gone > /run/file && ! touch /usr/file 2>/dev/null")
	if b, err := os.ReadFile(filepath.Join(spec.Disk, "srv-file")); err != nil || string(b) != "kept\n" {
		t.Errorf("what it writes is not on the disk: %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(spec.Disk, "run/file")); !os.IsNotExist(err) {
		t.Errorf("what it writes in /run is on the disk: %v", err)
	}
	table := m.run(t, "cat", "/proc/self/mountinfo")
	for line := range strings.Lines(table) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, spec.Disk) {
			t.Errorf("it sees a mount of the outside: %s", line)
		}
		// Devices, kernel files and the disk alike: kubelet's folder may be anywhere.
		if !strings.Contains(line, " shared:") {
			t.Errorf("not shared: %s", line)
		}
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if string(after) != string(before) {
		t.Errorf("mounts of the lab were\n%s\nand are\n%s", before, after)
	}
}

func TestAMachineWithPrivateMountsSharesNone(t *testing.T) {
	m, _ := testMachine(t, func(s *machineSpec) { s.Private = true })
	if got := m.run(t, "cat", "/proc/self/mountinfo"); strings.Contains(got, "shared:") {
		t.Errorf("it shares some:\n%s", got)
	}
}

func TestKubeletsSysctlsAreNotTheHosts(t *testing.T) {
	before, err := ReadHost(os.Getpid())
	must(t, err)
	m, _ := testMachine(t, nil)
	for _, name := range kubeletSysctls() {
		if got := strings.TrimSpace(m.run(t, "cat", name)); got != kubeletWants(name) {
			t.Fatalf("%s is %q in the machine: it is the host's, and nothing is written", name, got)
		}
		m.run(t, "sh", "-c", "echo 7 > "+name)
	}
	after, err := ReadHost(os.Getpid())
	must(t, err)
	for name, was := range before.values {
		if after.values[name] != was {
			t.Errorf("%s was %q and is %q", name, was, after.values[name])
		}
	}
}

// A container runtime finds its cgroups by what a process says of itself.
func TestAMachineSeesItsOwnCgroupAsTheRoot(t *testing.T) {
	m, _ := testMachine(t, nil)
	for _, line := range strings.Split(strings.TrimSpace(m.run(t, "cat", "/proc/1/cgroup")), "\n") {
		if fields := strings.SplitN(line, ":", 3); fields[2] != "/" && fields[2] != "/init" {
			t.Errorf("its first process is in %s", line)
		}
	}
	groups, err := hierarchies()
	must(t, err)
	for _, h := range groups {
		m.run(t, "mkdir", "/sys/fs/cgroup/"+h.Name+"/pod")
		if _, err := os.Stat(filepath.Join(h.Dir, RunName(), "pod")); err != nil {
			t.Errorf("a cgroup made in it: %v", err)
		}
	}
}

func TestAComponentEndsWhenAskedAndIsKilledWhenItDoesNot(t *testing.T) {
	m, logs := testMachine(t, nil)
	m.start(t, "polite", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
	waitFor(t, "its first line", contains(filepath.Join(logs, "polite.log"), "up"))
	_, err := m.tell(t.Context(), order{Do: "end", Name: "polite", Signal: syscall.SIGTERM, Patience: 10 * time.Second})
	must(t, err)
	must(t, contains(filepath.Join(logs, "polite.log"), "bye")())

	pid := m.start(t, "deaf", "trap '' TERM; echo up; while :; do sleep 0.05; done")
	waitFor(t, "its first line", contains(filepath.Join(logs, "deaf.log"), "up"))
	if _, err := m.tell(t.Context(), order{Do: "start", Name: "deaf", Args: []string{"/bin/true"}, Log: logDir + "/deaf.log"}); err == nil {
		t.Error("it was started twice")
	}
	_, err = m.tell(t.Context(), order{Do: "end", Name: "deaf", Signal: syscall.SIGTERM, Patience: 100 * time.Millisecond})
	must(t, err)
	must(t, contains(filepath.Join(logs, "machine.log"), fmt.Sprintf("deaf (process %d) ended: exit -1, signal 9", pid))())
	if _, err := m.tell(t.Context(), order{Do: "end", Name: "deaf", Signal: syscall.SIGTERM}); err == nil {
		t.Error("what has ended could be ended again")
	}
	m.start(t, "deaf", "exit 0")
}

// Shims of a container runtime outlive it, and are the first process's then.
func TestOrphansAreWaitedFor(t *testing.T) {
	m, logs := testMachine(t, nil)
	m.start(t, "parent", "sh -c 'sleep 0.2; exit 7' & echo orphan $!; exit 0")
	log := filepath.Join(logs, "parent.log")
	waitFor(t, "the orphan's pid", contains(log, "orphan"))
	b, err := os.ReadFile(log)
	must(t, err)
	orphan := strings.TrimSpace(strings.TrimPrefix(string(b), "orphan "))
	waitFor(t, "the orphan to be gone", func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/proc/%s", m.pid(), orphan)); err == nil {
			return fmt.Errorf("process %s is there", orphan)
		}
		return nil
	})
}

func TestAnEndedMachineLeavesNoProcessAndNoMount(t *testing.T) {
	before, err := ReadHost(os.Getpid())
	must(t, err)
	m, _ := testMachine(t, nil)
	m.start(t, "component", "setsid sleep 1000 & exec setsid sleep 1000")
	m.run(t, "mount", "-t", "tmpfs", "tmpfs", "/tmp")
	if now, err := processesOf(RunName(), ""); err != nil || len(now) < 2 {
		t.Errorf("while it runs its processes are %q, %v", now, err)
	}
	m.kill()
	must(t, removeRun(RunName()))
	left, err := before.Left(RunName(), "")
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// The input is what tells the machine that the lab is there.
func TestAMachineEndsWithItsInput(t *testing.T) {
	m, _ := testMachine(t, nil)
	m.start(t, "component", "exec sleep 1000")
	must(t, m.input.Close())
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	select {
	case <-m.ended:
	case <-patience.C:
		t.Error("it runs on")
	}
}

func TestWhatGoesWrongIsSaidByTheStart(t *testing.T) {
	runGroup(t)
	spec := machineSpec{Run: RunName(), Disk: t.TempDir(), Programs: map[string]string{"/opt/x": "/no/such/folder"}}
	m, err := startMachine(t.Context(), spec, filepath.Join(t.TempDir(), "log"))
	if err == nil {
		m.kill()
	}
	if err == nil || !strings.Contains(err.Error(), "/no/such/folder") {
		t.Errorf("it says %v", err)
	}
}

// TestHelperMachine is a run for the test below: it starts a machine and waits to
// be killed.
func TestHelperMachine(t *testing.T) {
	ready := os.Getenv("NODE_MOUNTS_NODE_TEST_READY")
	if ready == "" {
		return // run with the others, it has nothing to do
	}
	m, _ := testMachine(t, nil)
	m.start(t, "component", "exec sleep 1000")
	must(t, os.WriteFile(ready, []byte(RunName()), 0o644))
	select {}
}

func TestARunThatIsKilledLeavesNoProcessAndTheNextOneTakesItsCgroups(t *testing.T) {
	runGroup(t)
	ready := filepath.Join(t.TempDir(), "ready")
	cmd := helper(t, "TestHelperMachine")
	cmd.Env = append(cmd.Env, "NODE_MOUNTS_NODE_TEST_READY="+ready)
	must(t, cmd.Start())
	waitFor(t, "the machine", contains(ready, runPrefix))
	run := fmt.Sprintf("%s%d", runPrefix, cmd.Process.Pid)
	must(t, contains(ready, run)())
	if now, err := processesOf(run, ""); err != nil || len(now) != 2 {
		t.Errorf("while it runs its processes are %q, %v", now, err)
	}
	must(t, unix.Kill(cmd.Process.Pid, unix.SIGKILL))
	_ = cmd.Wait()
	waitFor(t, "its processes to end", func() error {
		now, err := processesOf(run, "")
		if err == nil && len(now) > 0 {
			err = fmt.Errorf("they are %q", now)
		}
		return err
	})
	groups, err := groupsOf(func(name string) bool { return name == run })
	must(t, err)
	if len(groups) == 0 {
		t.Error("nothing is left that could be swept")
	}
	must(t, sweepRuns())
	groups, err = groupsOf(func(name string) bool { return name == run })
	must(t, err)
	if len(groups) != 0 {
		t.Errorf("after the sweep there are %q", groups)
	}
	groups, err = groupsOf(func(name string) bool { return name == RunName() })
	must(t, err)
	if len(groups) == 0 {
		t.Error("the sweep took those of a run that lives")
	}
}
