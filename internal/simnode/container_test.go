package simnode_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestAGrantReachesARunningContainerAndLeavesIt(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	early := startContainer(t, p, simnode.ContainerOptions{})
	private := startContainer(t, p, simnode.ContainerOptions{Private: true})
	elsewhere := startContainer(t, p, simnode.ContainerOptions{MountPath: "/data"})
	on := grant(t, p, folder(t, n, "a"), "t", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID)
	late := startContainer(t, p, simnode.ContainerOptions{})

	read(t, early, "/mnt/datalayer/t/f", "content of a")
	read(t, late, "/mnt/datalayer/t/f", "content of a")
	read(t, elsewhere, "/data/t/f", "content of a")
	if _, err := private.ReadFile("/mnt/datalayer/t/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a container without HostToContainer reads the grant: %v", err)
	}
	ms, err := early.Mounts()
	if got := at(t, ms, err, "/mnt/datalayer/t"); len(got) != 1 || got[0].Flags != mnt.ReadOnly|mnt.NoSUID {
		t.Errorf("inside, the grant is %+v", got)
	}

	check(t, unix.Unmount(on, 0))
	for _, c := range []*simnode.Container{early, late} {
		if names, err := c.ReadDir("/mnt/datalayer/t"); err != nil || len(names) != 0 {
			t.Errorf("after the unmount the container lists %v, %v", names, err)
		}
	}
}

func TestWhatAContainerMountsStaysInIt(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	before := ownMounts(t)
	on := grant(t, p, folder(t, n, "a"), "t", 0)
	check(t, c.Mkdir("/tmp/other", 0o755))
	check(t, c.Mount("tmpfs", "/tmp/other"))
	check(t, c.WriteFile("/tmp/other/f", []byte("own"), 0o644))
	check(t, c.BindMount("/tmp/other", "/mnt/datalayer/t"))
	read(t, c, "/mnt/datalayer/t/f", "own")
	if got := ownMounts(t); got != before+1 {
		t.Errorf("the agent has %d mounts more, not 1", got-before)
	}
	check(t, c.Unmount("/mnt/datalayer/t"))
	read(t, c, "/mnt/datalayer/t/f", "content of a")
	check(t, unix.Unmount(on, 0))
}

func TestAContainerSeesNothingOfTheHost(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	file := filepath.Join(n.Claim, "extra")
	check(t, os.WriteFile(file, []byte("bound"), 0o644))
	c := startContainer(t, p, simnode.ContainerOptions{ExtraBinds: map[string]string{file: "/etc/extra", n.Root: "/opt/root"}})
	names, err := c.ReadDir("/")
	// Of a binary that is not static there are the libraries.
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "lib") || name == "usr" })
	if want := []string{"dev", "etc", "mnt", "opt", "proc", "tmp"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("its root has %v, %v; want %v", names, err, want)
	}
	read(t, c, "/etc/extra", "bound")
	if err := c.OpenDevice("/dev/null"); err != nil {
		t.Error(err)
	}
	if got, err := c.ReadFile("/proc/1/cmdline"); err != nil || !strings.HasPrefix(string(got), "container "+c.ID()[:12]) {
		t.Errorf("pid 1 in there is %q, %v", got, err)
	}
	ms, err := c.Mounts()
	check(t, err)
	for _, m := range ms {
		if strings.HasPrefix(m.Point, n.Dir) || strings.HasPrefix(m.Point, "/old") {
			t.Errorf("it has the host's %+v", m)
		}
	}
}

// Whoever looks for what a Pod has open must not come upon the program and the
// standard streams of the test, on the disk that the test's own folders lie on.
func TestAContainerHoldsNothingThatNoMountTableShows(t *testing.T) {
	// Opened as the shell opens it that redirects the tests' output: by way of the
	// machine's own mount namespace.
	said, err := os.Create(fmt.Sprintf("/proc/%d/root%s/stderr", os.Getppid(), t.TempDir()))
	check(t, err)
	defer said.Close()
	stderr := os.Stderr
	os.Stderr = said
	t.Cleanup(func() { os.Stderr = stderr })
	n := newNode(t, simnode.Options{})
	c := startContainer(t, newPod(t, n), simnode.ContainerOptions{})
	_, err = c.AsUser(1000, 100).Stat("/")
	check(t, err)

	devs := make(map[mnt.Dev]bool)
	for _, path := range []string{"/proc/self/exe", said.Name()} {
		var stx unix.Statx_t
		check(t, unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_TYPE, &stx))
		devs[mnt.Dev{Major: stx.Dev_major, Minor: stx.Dev_minor}] = true
	}
	finder := procs.New("/proc")
	ps, err := finder.Of(podUID)
	check(t, err)
	if len(ps) < 2 {
		t.Fatalf("the Pod has %d processes, want the container's first and its user's", len(ps))
	}
	own, err := c.Mounts()
	check(t, err)
	shown := make(map[int]bool)
	for _, m := range own {
		shown[m.ID] = true
	}
	loose, err := finder.Loose(t.Context(), ps, devs, shown)
	check(t, err)
	for _, h := range loose {
		t.Errorf("process %d has a %s that no mount table shows: %s", h.PID, h.What, h.Path)
	}
}

func TestErrnosPassThrough(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	dir := folder(t, n, "a")
	check(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	check(t, os.WriteFile(filepath.Join(dir, "program"), []byte("#!/nowhere\n"), 0o755))
	grant(t, p, dir, "t", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	_, _, exec := c.Exec("/mnt/datalayer/t/program")
	_, noent := c.ReadFile("/mnt/datalayer/t/none")
	_, notdir := c.ReadDir("/mnt/datalayer/t/f")
	_, statted := c.Stat("/mnt/datalayer/t/f/x")
	for what, got := range map[string]struct{ err, want error }{
		"write":         {c.WriteFile("/mnt/datalayer/t/new", nil, 0o644), unix.EROFS},
		"chmod":         {c.Chmod("/mnt/datalayer/t/f", 0o600), unix.EROFS},
		"symlink":       {c.Symlink("f", "/mnt/datalayer/t/l"), unix.EROFS},
		"mkdir":         {c.Mkdir("/mnt/datalayer/t/d", 0o755), unix.EROFS},
		"remove":        {c.Remove("/mnt/datalayer/t/f"), unix.EROFS},
		"device":        {c.OpenDevice("/mnt/datalayer/t/null"), unix.EACCES},
		"exec":          {exec, unix.EACCES},
		"read":          {noent, fs.ErrNotExist},
		"list":          {notdir, unix.ENOTDIR},
		"stat":          {statted, unix.ENOTDIR},
		"unmount":       {c.Unmount("/tmp"), unix.EINVAL},
		"user unmounts": {c.AsUser(1000, 100).Unmount("/mnt/datalayer/t"), unix.EPERM},
		"chdir":         {c.Chdir("/none"), unix.ENOENT},
	} {
		if !errors.Is(got.err, got.want) {
			t.Errorf("%s: %v; want %v", what, got.err, got.want)
		}
	}
}

func TestAUserHasItsIdsAndNoCapability(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	user := c.AsUser(1000, 100)
	home := folder(t, n, "home")
	check(t, os.Chown(home, 1000, 100))
	check(t, os.WriteFile(filepath.Join(home, "secret"), []byte("root's"), 0o600))
	grant(t, p, home, "t", 0)

	check(t, user.WriteFile("/mnt/datalayer/t/new", []byte("x"), 0o600))
	check(t, user.Chmod("/mnt/datalayer/t/new", 0o640))
	info, err := c.Stat("/mnt/datalayer/t/new")
	if err != nil || info.UID != 1000 || info.GID != 100 || info.Mode != 0o640 || info.Nlink != 1 || info.Size != 1 {
		t.Errorf("the file is %+v, %v", info, err)
	}
	if _, err := user.ReadFile("/mnt/datalayer/t/secret"); !errors.Is(err, unix.EACCES) {
		t.Errorf("it reads root's file: %v", err)
	}
	status, err := user.ReadFile("/proc/self/status")
	if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000") || !strings.Contains(string(status), "Groups:\t \n") {
		t.Errorf("it has %s, %v", status, err)
	}
	if user.PID() == c.PID() || c.AsUser(1000, 100).PID() != user.PID() || c.AsUser(1001, 100).PID() != c.PID() {
		t.Error("the views of a user are not one process of its own, started at the first operation")
	}
}

func TestExecRunsAProgramInTheContainer(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	dir := folder(t, n, "a")
	self, err := os.ReadFile("/proc/self/exe")
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "suid"), self, 0o755))
	check(t, os.Chmod(filepath.Join(dir, "suid"), 0o755|fs.ModeSetuid))
	grant(t, p, dir, "plain", 0)
	grant(t, p, dir, "nosuid", unix.MOUNT_ATTR_NOSUID)
	user := c.AsUser(1000, 100)
	for path, want := range map[string]string{
		"/mnt/datalayer/plain/suid":  "uid=1000 euid=0 gid=100 egid=100\n",
		"/mnt/datalayer/nosuid/suid": "uid=1000 euid=1000 gid=100 egid=100\n",
	} {
		if exit, out, err := user.Exec(path); exit != 0 || out != want || err != nil {
			t.Errorf("%s ends with %d, %v and writes %q; want %q", path, exit, err, out, want)
		}
	}
	if _, _, err := c.Exec(); err == nil {
		t.Error("no program, and no error")
	}
}

func TestOpenFilesDirectoriesAndMappingsHoldAMount(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	dir := folder(t, n, "a")
	file := func() (simnode.Handle, error) { return c.Hold("/mnt/datalayer/t/f") }
	mapped := func() (simnode.Handle, error) { return c.Mmap("/mnt/datalayer/t/f") }
	for what, hold := range map[string]func() (simnode.Handle, error){"open file": file, "mapping": mapped} {
		on := grant(t, p, dir, "t", 0)
		h, err := hold()
		check(t, err)
		if err := unix.Unmount(on, 0); !errors.Is(err, unix.EBUSY) {
			t.Errorf("%s: unmount: %v", what, err)
		}
		check(t, unix.Unmount(on, unix.MNT_DETACH))
		if got, err := c.HeldRead(h); err != nil || string(got) != "content of a" {
			t.Errorf("%s: after the detach it reads %q, %v", what, got, err)
		}
		check(t, c.Drop(h))
		if _, err := c.HeldRead(h); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: dropped, and reads: %v", what, err)
		}
	}

	on := grant(t, p, dir, "t", 0)
	h, err := file()
	check(t, err)
	check(t, c.HeldWrite(h, []byte("CONTENT")))
	check(t, c.Drop(h))
	read(t, c, "/mnt/datalayer/t/f", "CONTENT of a")
	check(t, c.Chdir("/mnt/datalayer/t"))
	read(t, c, "f", "CONTENT of a")
	if err := unix.Unmount(on, 0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("working directory: unmount: %v", err)
	}
	check(t, c.Chdir("/"))
	check(t, unix.Unmount(on, 0))
}

func TestAPinKeepsWhatEverybodyElseHasLost(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	on := grant(t, p, folder(t, n, "a"), "t", 0)
	if err := c.PinPrivate("/mnt/datalayer/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it pins what is not there: %v", err)
	}
	check(t, c.PinPrivate("/mnt/datalayer/t/f"))
	if err := c.PinPrivate("/"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second pin: %v", err)
	}
	check(t, unix.Unmount(on, 0)) // nobody is in the way, and nothing says that one keeps it
	if _, err := c.ReadFile("/mnt/datalayer/t/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the container still reads it: %v", err)
	}
	if got, err := c.PinRead("/mnt/datalayer/t/f"); err != nil || string(got) != "content of a" {
		t.Errorf("the pin reads %q, %v", got, err)
	}
	ms, err := c.Pinned().Mounts()
	if got := at(t, ms, err, "/mnt/datalayer/t"); len(got) != 1 || got[0].Peer != 0 || got[0].Master != 0 {
		t.Errorf("the pin has %+v", got)
	}
	check(t, c.Unpin())
	if _, err := c.PinRead("/mnt/datalayer/t/f"); !errors.Is(err, simnode.ErrEnded) {
		t.Errorf("after its end the pin answers: %v", err)
	}
}

func TestAContainerWithAUserNamespaceSeesOtherOwners(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{UserNS: true})
	home := folder(t, n, "home")
	check(t, os.Chown(home, 1000, 100))
	grant(t, p, home, "t", 0)
	read(t, c, "/mnt/datalayer/t/f", "content of home")
	const nobody = 65534
	if info, err := c.Stat("/mnt/datalayer/t"); err != nil || info.UID != nobody || info.GID != nobody {
		t.Errorf("the folder is %+v, %v", info, err)
	}
	if err := c.AsUser(1000, 100).WriteFile("/mnt/datalayer/t/new", nil, 0o644); !errors.Is(err, unix.EACCES) {
		t.Errorf("the user writes to it: %v", err)
	}
	if err := c.Mount("tmpfs", "/tmp"); err != nil {
		t.Errorf("root in there may mount: %v", err)
	}
}

func TestAnOperationThatHangsDelaysNoOther(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	dir := folder(t, n, "a")
	check(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	grant(t, p, dir, "t", 0)
	hung := make(chan error)
	go func() {
		_, err := c.ReadFile("/mnt/datalayer/t/fifo") // nobody writes
		hung <- err
	}()
	for range 100 {
		read(t, c, "/mnt/datalayer/t/f", "content of a")
	}
	check(t, c.Stop())
	if err := <-hung; !errors.Is(err, simnode.ErrEnded) {
		t.Errorf("the operation of a stopped container ends with %v", err)
	}
}

func TestAContainerThatIsKilledTakesItsProcessesAlong(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	c := startContainer(t, p, simnode.ContainerOptions{})
	check(t, c.PinPrivate("/"))
	fds := pidfds(t, []int{c.PID(), c.AsUser(1000, 100).PID(), c.Pinned().PID()})
	check(t, unix.Kill(c.PID(), unix.SIGKILL))
	<-c.Done()
	for pid, fd := range fds {
		awaitEnd(t, pid, fd)
	}
	if _, err := c.ReadDir("/"); !errors.Is(err, simnode.ErrEnded) {
		t.Errorf("it answers: %v", err)
	}
	check(t, c.Stop())
	// The Pod's next container is not troubled by it.
	_, err := startContainer(t, p, simnode.ContainerOptions{ID: c.ID()}).ReadDir("/mnt/datalayer")
	check(t, err)
}
