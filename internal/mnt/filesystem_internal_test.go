package mnt

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
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
