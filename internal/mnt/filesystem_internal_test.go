package mnt

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// What NFS needs on kernels where the superblock that a mount ends on has not
// inherited "ro". A tmpfs that was made writable stands for it.
func TestASuperblockThatCameWritableIsMadeReadOnly(t *testing.T) {
	fd, err := superblock(Filesystem{Type: "tmpfs", Source: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	mfd, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mfd)
	write := func(name string) error {
		f, err := unix.Openat(mfd, name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err == nil {
			unix.Close(f)
		}
		return err
	}
	if err := write("before"); err != nil {
		t.Fatal(err)
	}
	if err := readOnly(mfd); err != nil {
		t.Fatal(err)
	}
	if err := write("after"); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing says %v", err)
	}
}

func TestAFileIsNoFolderToMount(t *testing.T) {
	fd, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	file, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if err := isFolder(fd); err != nil {
		t.Errorf("a folder: %v", err)
	}
	if err := isFolder(file); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
}

// swaps is a folder with a mount on "target" that has the file "old".
func swaps(t *testing.T, k *Kernel) *beneath.Dir {
	t.Helper()
	dir, err := beneath.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.Close)
	if err := dir.Mkdir("target", 0o755); err != nil {
		t.Fatal(err)
	}
	m := memory(t, k)
	defer m.Close()
	if _, err := k.attachAt(m, dir, "target"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir.Path(), "target", "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func memory(t *testing.T, k *Kernel) *detached {
	t.Helper()
	m, err := k.Mount(Filesystem{Type: "tmpfs", Source: "test"}, NoExec)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*detached)
}

// standingOn counts the mounts on "target" and takes them away.
func standingOn(t *testing.T, k *Kernel, dir *beneath.Dir) (n int) {
	t.Helper()
	for k.Unmount(dir, "target", true) == nil {
		n++
	}
	return n
}

func TestWhatASwapCouldNotDetachDoesNotPileUp(t *testing.T) {
	k := &Kernel{}
	dir := swaps(t, k)
	old, err := k.openMount(dir, "target")
	if err != nil {
		t.Fatal(err)
	}
	// As a Swap leaves them that ends between its two steps.
	for range 3 {
		m := memory(t, k)
		err := unix.MoveMount(m.fd, "", old.Fd(), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveMountBeneath)
		m.Close()
		if errors.Is(err, unix.EINVAL) {
			t.Skip("this kernel puts no mount beneath another (Linux 6.5)")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	old.Close()
	m := memory(t, k)
	defer m.Close()
	if err := os.WriteFile(filepath.Join("/proc/self/fd", strconv.Itoa(m.fd), "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Swap(m, dir, "target"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir.Path(), "target", "new")); err != nil {
		t.Errorf("the new one is not there: %v", err)
	}
	if n := standingOn(t, k, dir); n != 1 {
		t.Errorf("%d mounts stand", n)
	}
}

func TestASwapThatFailsLeavesWhatItFound(t *testing.T) {
	k := &Kernel{}
	closed := memory(t, k)
	closed.Close()
	closed.fd = -1
	for name, swap := range map[string]func(dir *beneath.Dir) error{
		"beneath":          func(dir *beneath.Dir) error { _, err := k.Swap(closed, dir, "target"); return err },
		"before Linux 6.5": func(dir *beneath.Dir) error { _, err := k.replace(closed, dir, "target"); return err },
	} {
		dir := swaps(t, k)
		at := filepath.Join(dir.Path(), "target")
		before, err := os.Stat(at)
		if err != nil {
			t.Fatal(err)
		}
		if err := swap(dir); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.Stat(at); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: another one stands there: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(at, "old")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := standingOn(t, k, dir); n != 1 {
			t.Errorf("%s: %d mounts stand", name, n)
		}
	}
}

func TestASwapOnKernelsThatMountBeneathNothing(t *testing.T) {
	k := &Kernel{}
	dir, m := swaps(t, k), memory(t, k)
	defer m.Close()
	rec, err := k.replace(m, dir, "target")
	if err != nil || rec.Flags&NoExec == 0 {
		t.Errorf("%+v, %v", rec, err)
	}
	if _, err := os.Stat(filepath.Join(dir.Path(), "target", "old")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old one is seen: %v", err)
	}
	if n := standingOn(t, k, dir); n != 1 {
		t.Errorf("%d mounts stand", n)
	}
}
