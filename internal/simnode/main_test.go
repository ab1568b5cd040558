package simnode_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// victimEnv makes the test binary a program that makes a node, says which
// processes it has, and waits to be killed.
const victimEnv = "SIMNODE_TEST_VICTIM"

const podUID = "3f2c9a10-5b7d-4e21-9c44-0d1e2f3a4b5c"

func TestMain(m *testing.M) {
	simnode.Main()
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(victimEnv) != "" {
		if err := victim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// victim prints its pids and ends when it is killed, or when its standard input
// does.
func victim() error {
	n, err := simnode.New(simnode.Options{})
	if err != nil {
		return err
	}
	p := n.NewPod(podUID)
	if err := p.SetUpVolume(false); err != nil {
		return err
	}
	c, err := p.StartContainer(simnode.ContainerOptions{})
	if err != nil {
		return err
	}
	if err := c.PinPrivate("/"); err != nil {
		return err
	}
	user := c.AsUser(1000, 100)
	if _, err := user.Stat("/"); err != nil {
		return err
	}
	pids := []int{os.Getpid(), n.HostPID(), c.PID(), user.PID(), c.Pinned().PID()}
	if err := json.NewEncoder(os.Stdout).Encode(pids); err != nil {
		return err
	}
	_, err = os.Stdin.Read(make([]byte, 1))
	return err
}

// check fails the test at once: what follows would fail for another reason.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newNode(t *testing.T, o simnode.Options) *simnode.Node {
	t.Helper()
	n, err := simnode.New(o)
	check(t, err)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// newPod has a memory-backed volume already.
func newPod(t *testing.T, n *simnode.Node) *simnode.Pod {
	t.Helper()
	p := n.NewPod(podUID)
	check(t, p.SetUpVolume(false))
	return p
}

func startContainer(t *testing.T, p *simnode.Pod, o simnode.ContainerOptions) *simnode.Container {
	t.Helper()
	c, err := p.StartContainer(o)
	check(t, err)
	return c
}

// folder makes a folder on the claim with one file in it.
func folder(t *testing.T, n *simnode.Node, name string) string {
	t.Helper()
	dir := filepath.Join(n.Claim, name)
	check(t, os.Mkdir(dir, 0o755))
	check(t, os.WriteFile(filepath.Join(dir, "f"), []byte("content of "+name), 0o644))
	return dir
}

// grant binds dir at the name target in the Pod's volume, as simply as it can
// be done: what the agent does better is not what is tested here. The copy is
// private and has its flags before it is attached.
func grant(t *testing.T, p *simnode.Pod, dir, target string, flags uint64) string {
	t.Helper()
	on := filepath.Join(p.VolumePath(), target)
	check(t, os.MkdirAll(on, 0o755))
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	check(t, err)
	defer unix.Close(tree)
	check(t, unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: flags, Propagation: unix.MS_PRIVATE}))
	check(t, unix.MoveMount(tree, "", unix.AT_FDCWD, on, unix.MOVE_MOUNT_F_EMPTY_PATH))
	return on
}

func read(t *testing.T, c *simnode.Container, path, want string) {
	t.Helper()
	got, err := c.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s reads %q, %v; want %q", path, got, err, want)
	}
}

// at lists the mounts at point.
func at(t *testing.T, ms []mnt.Mount, err error, point string) []mnt.Mount {
	t.Helper()
	check(t, err)
	return slices.DeleteFunc(ms, func(m mnt.Mount) bool { return m.Point != point })
}

// ownMounts counts the mounts of this process's namespace.
func ownMounts(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	return strings.Count(string(data), "\n")
}

// awaitEnd waits until the process behind pidfd has ended.
func awaitEnd(t *testing.T, pid, pidfd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 30_000)
		if err == unix.EINTR {
			continue
		}
		check(t, err)
		if n == 0 {
			t.Errorf("process %d is still there", pid)
		}
		return
	}
}

func pidfds(t *testing.T, pids []int) map[int]int {
	t.Helper()
	fds := map[int]int{}
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		check(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		fds[pid] = fd
	}
	return fds
}
