package simnode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestEnterGivesTheProgramANamespaceNothingLeaksOutOf(t *testing.T) {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	check(t, err)
	parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	check(t, err)
	if ours == parents {
		t.Error("the tests run in the mount namespace of the program that started them")
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	if bytes.Contains(table, []byte(" shared:")) {
		t.Errorf("a mount is shared with the machine:\n%s", table)
	}
	check(t, simnode.Enter())
}

func TestAProcessStartedForAnUnknownRoleFails(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "NODE_MOUNTS_SIMNODE_ROLE=nobody")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "nobody") {
		t.Errorf("it ended with %v and wrote %q", err, out)
	}
}

func TestHostAndAgentSeeEachOthersMounts(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	var st unix.Statfs_t
	check(t, unix.Statfs(p.VolumePath(), &st))
	if st.Type != unix.TMPFS_MAGIC || st.Blocks*uint64(st.Bsize) != 1<<20 {
		t.Errorf("the agent sees a volume of type %#x and %d bytes", st.Type, st.Blocks*uint64(st.Bsize))
	}
	dir := filepath.Join(n.Root, "mounted")
	check(t, os.Mkdir(dir, 0o755))
	check(t, unix.Mount("agents", dir, "tmpfs", 0, ""))
	ms, err := n.Mounts()
	if got := at(t, ms, err, dir); len(got) != 1 || got[0].Source != "agents" {
		t.Errorf("the host sees %v at %s", got, dir)
	}
}

func TestOnAPrivateKubeletDirectoryNothingArrives(t *testing.T) {
	n := newNode(t, simnode.Options{Private: true})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	on := grant(t, p, folder(t, n, "a"), "t", 0)
	if _, err := os.ReadFile(filepath.Join(on, "f")); err != nil {
		t.Errorf("the grant succeeds on the node, yet %v", err)
	}
	if _, err := c.ReadFile("/mnt/datalayer/t/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the container reads the grant: %v", err)
	}
	ms, err := n.Mounts()
	if got := at(t, ms, err, n.Kubelet); len(got) != 1 || got[0].Peer != 0 || got[0].Master != 0 {
		t.Errorf("kubelet's directory is %+v", got)
	}
}

func TestCloseLeavesTheMountTableAsItWas(t *testing.T) {
	before := ownMounts(t)
	n, err := simnode.New(simnode.Options{})
	check(t, err)
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	check(t, c.PinPrivate("/mnt/datalayer"))
	dir := folder(t, n, "a")
	on := grant(t, p, dir, "t", unix.MOUNT_ATTR_RDONLY)
	// Mounts that another one hides, and one stacked on the volume.
	check(t, unix.Mount("hidden", n.Root, "tmpfs", 0, ""))
	check(t, os.Mkdir(filepath.Join(n.Root, "sub"), 0o755))
	check(t, unix.Mount("sub", filepath.Join(n.Root, "sub"), "tmpfs", 0, ""))
	check(t, unix.Mount("over", n.Root, "tmpfs", 0, ""))
	grant(t, p, on, ".", 0)
	if ownMounts(t) <= before+6 {
		t.Error("the test has not mounted what it means to")
	}
	check(t, n.Close())
	if after := ownMounts(t); after != before {
		table, _ := os.ReadFile("/proc/self/mountinfo")
		t.Errorf("%d mounts before, %d after:\n%s", before, after, table)
	}
	if _, err := os.Stat(n.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestCloseNamesAMountThatIsInUseAndDetachesIt(t *testing.T) {
	before := ownMounts(t)
	dir := t.TempDir()
	n, err := simnode.New(simnode.Options{Dir: dir})
	check(t, err)
	folder(t, n, "a")
	f, err := os.Open(filepath.Join(n.Claim, "a", "f"))
	check(t, err)
	defer f.Close()
	err = n.Close()
	if err == nil || !strings.Contains(err.Error(), n.Claim+" (tmpfs") || !strings.Contains(err.Error(), "busy") {
		t.Errorf("Close says %v", err)
	}
	if after := ownMounts(t); after != before {
		t.Errorf("%d mounts before, %d after", before, after)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a directory that was there before is gone: %v", err)
	}
}

func TestTheCgroupOfAContainerIsSeenByTheAgentAlone(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	before := ownMounts(t)
	pause := startContainer(t, p, simnode.ContainerOptions{Sandbox: true})
	c := startContainer(t, p, simnode.ContainerOptions{ID: strings.Repeat("ab", 32)})
	check(t, c.PinPrivate("/"))
	want := "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(podUID, "-", "_") +
		".slice/cri-containerd-" + c.ID() + ".scope\n"
	for what, pid := range map[string]int{"first process": c.PID(), "user": c.AsUser(1000, 100).PID(), "pin": c.Pinned().PID()} {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || string(got) != want {
			t.Errorf("%s %d: the agent reads %q, %v; want %q", what, pid, got, err, want)
		}
		real, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/%d/cgroup", n.HostPID(), pid))
		if err != nil || strings.Contains(string(real), "kubepods-burstable-pod") {
			t.Errorf("%s %d: the host reads %q, %v", what, pid, real, err)
		}
	}
	if pause.ID() == c.ID() || len(pause.ID()) != 64 {
		t.Errorf("the sandbox has the id %q", pause.ID())
	}
	if _, err := pause.Stat(simnode.DefaultMountPath); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the sandbox has the volume: %v", err)
	}
	check(t, c.Stop())
	check(t, pause.Stop())
	if after := ownMounts(t); after != before {
		t.Errorf("%d mounts before the containers, %d after", before, after)
	}
}

// program is a node in a process of its own, and in a namespace of its own.
type program struct {
	*exec.Cmd
	pids []int // its own, and those of the node's processes
	end  func()
}

// startProgram starts one that has its temporary folders in temp.
func startProgram(t *testing.T, path, temp string) *program {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), victimEnv+"=1", "NODE_MOUNTS_SIMNODE_NAMESPACE=", "TMPDIR="+temp)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // ends it with us
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	p := &program{Cmd: cmd, end: sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
		stdin.Close()
	})}
	t.Cleanup(p.end)
	if err := json.NewDecoder(stdout).Decode(&p.pids); err != nil || len(p.pids) != 5 || p.pids[0] != cmd.Process.Pid {
		t.Fatalf("the program (pid %d) says it has %v, %v", cmd.Process.Pid, p.pids, err)
	}
	return p
}

func TestNothingSurvivesTheDeathOfTheProgram(t *testing.T) {
	// A binary that only root may read: the user in the container runs it all the
	// same.
	path := filepath.Join(t.TempDir(), "program")
	data, err := os.ReadFile("/proc/self/exe")
	check(t, err)
	check(t, os.WriteFile(path, data, 0o700))
	p := startProgram(t, path, t.TempDir())
	fds := pidfds(t, p.pids)
	p.end()
	for pid, fd := range fds {
		awaitEnd(t, pid, fd)
	}
}

func TestANewNodeRemovesWhatKilledProgramsHaveLeftAndNothingElse(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	long := time.Now().Add(-time.Hour)
	age := func(names ...string) {
		t.Helper()
		for _, name := range names {
			check(t, os.Chtimes(filepath.Join(temp, name), long, long))
		}
	}
	stays := []string{"node-mounts-1", "node-mounts-2", "node-mounts-3", "node-mounts-", "node-mounts-x4", "node-mounts-5x", "other-6"}
	for _, name := range append(stays, "node-mounts-7") {
		check(t, os.Mkdir(filepath.Join(temp, name), 0o755))
	}
	check(t, os.Mkdir(filepath.Join(temp, "node-mounts-1", "in-use"), 0o755))
	check(t, os.Chown(filepath.Join(temp, "node-mounts-2"), 1000, 100))
	age("node-mounts-1", "node-mounts-2", "node-mounts-", "node-mounts-x4", "node-mounts-5x", "other-6", "node-mounts-7")
	target := filepath.Join(t.TempDir(), "target")
	check(t, os.Mkdir(target, 0o755))
	check(t, os.Symlink(target, filepath.Join(temp, "node-mounts-8")))
	check(t, os.WriteFile(filepath.Join(temp, "node-mounts-9"), nil, 0o644))
	age("node-mounts-9")
	stays = append(stays, "node-mounts-8", "node-mounts-9")
	// One that runs looks the same from outside its namespace.
	p := startProgram(t, "/proc/self/exe", temp)
	running := ""
	for _, name := range names(t, temp) {
		if !slices.Contains(stays, name) && name != "node-mounts-7" {
			running = name
		}
	}
	age(running)

	mustLeave := func(want []string) {
		t.Helper()
		n, err := simnode.New(simnode.Options{})
		check(t, err)
		check(t, n.Close())
		if got := names(t, temp); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("after a node there are %v, want %v", got, want)
		}
	}
	mustLeave(append(stays, running))
	p.end()
	age(running)
	mustLeave(stays)
	check(t, os.Remove(target)) // still there
}

// names are what a folder has in it, sorted.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
