package mnt_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
)

// folder makes a mount point of its own.
func folder(t *testing.T) *beneath.Dir {
	t.Helper()
	dir, err := beneath.OpenRoot(t.TempDir())
	must(t, err)
	t.Cleanup(dir.Close)
	return dir
}

func TestAReadOnlyFilesystemCannotBeWrittenThroughAnotherMountOfItEither(t *testing.T) {
	table := &mnt.Kernel{}
	for _, readOnly := range []bool{true, false} {
		parent, other := folder(t), t.TempDir()
		must(t, parent.Mkdir("target", 0o755))
		on, err := parent.OpenTarget("target")
		must(t, err)
		m, err := table.Mount(mnt.Filesystem{Type: "tmpfs", Source: "test", ReadOnly: readOnly}, 0)
		must(t, err)
		_, err = table.Attach(m, on)
		m.Close()
		on.Close()
		must(t, err)
		at := filepath.Join(parent.Path(), "target")
		must(t, unix.Mount(at, other, "", unix.MS_BIND, ""))
		// What root in a sandbox with a namespace of its own might try.
		must(t, unix.Mount("", other, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
		err = os.WriteFile(filepath.Join(other, "file"), nil, 0o644)
		if errors.Is(err, unix.EROFS) != readOnly {
			t.Errorf("read-only %v: writing says %v", readOnly, err)
		}
		must(t, unix.Unmount(other, 0))
		must(t, table.Unmount(parent, "target", false))
	}
}

func TestAMountThatTakesThePlaceOfAnotherLeavesNoGap(t *testing.T) {
	if !mnttest.MountsBeneath() {
		t.Skip("this kernel puts no mount beneath another (Linux 6.5)")
	}
	table, parent := &mnt.Kernel{}, folder(t)
	must(t, parent.Mkdir("target", 0o755))
	at := filepath.Join(parent.Path(), "target")
	must(t, os.WriteFile(filepath.Join(at, "beneath"), nil, 0o644))
	made := func() mnt.Detached {
		m, err := table.Mount(mnt.Filesystem{Type: "tmpfs", Source: "test"}, 0)
		must(t, err)
		return m
	}
	on, err := parent.OpenTarget("target")
	must(t, err)
	m := made()
	_, err = table.Attach(m, on)
	m.Close()
	on.Close()
	must(t, err)

	told, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := os.Lstat(filepath.Join(at, "beneath")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what is beneath was seen: %v", err)
				return
			}
			select {
			case <-told:
				return
			default:
			}
		}
	}()
	stop := sync.OnceFunc(func() {
		close(told)
		<-ended
	})
	defer stop()
	for range 200 {
		m := made()
		_, err := table.Swap(m, parent, "target")
		m.Close()
		must(t, err)
	}
	stop()
	must(t, table.Unmount(parent, "target", false))
	if _, err := os.Lstat(filepath.Join(at, "beneath")); err != nil {
		t.Errorf("mounts piled up: %v", err)
	}
}

func TestTheKernelsOwnWordsAreInTheError(t *testing.T) {
	_, err := (&mnt.Kernel{}).Mount(mnt.Filesystem{Type: "tmpfs", Source: "test", Settings: []mnt.Setting{{"no-such-option", "x"}}}, 0)
	var kernel *mnt.KernelError
	if !errors.As(err, &kernel) || !errors.Is(err, unix.EINVAL) || kernel.Step != "no-such-option" || !strings.Contains(kernel.Words, "Unknown parameter 'no-such-option'") {
		t.Errorf("%v", err)
	}
	if !strings.Contains(err.Error(), "no-such-option: tmpfs: Unknown parameter") {
		t.Errorf("it reads %q", err)
	}
}

// served is a FUSE filesystem that nobody serves yet: its first request waits in the
// device.
func served(t *testing.T, table *mnt.Kernel) (mnt.Detached, *os.File, mnt.Dev) {
	t.Helper()
	fs, device, err := mnt.FUSE("test", "test")
	must(t, err)
	m, err := table.Mount(fs, 0)
	must(t, err)
	root, err := m.Root()
	must(t, err)
	defer root.Close()
	place, err := table.At(root)
	must(t, err)
	return m, device, place.Dev
}

// serves tells whether the connection of a device has not been aborted.
func serves(t *testing.T, device *os.File) bool {
	t.Helper()
	_, err := unix.Read(int(device.Fd()), make([]byte, 1<<17))
	if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ECONNABORTED) {
		t.Fatal(err)
	}
	return err == nil
}

func TestAConnectionIsAborted(t *testing.T) {
	table := &mnt.Kernel{}
	m, device, dev := served(t, table)
	defer m.Close()
	defer device.Close()
	conn, err := table.Connection(dev)
	must(t, err)
	defer conn.Close()
	must(t, conn.Abort())
	if serves(t, device) {
		t.Error("it can be served on")
	}
	must(t, conn.Abort())
}

func TestAConnectionThatHasGoneIsNotTheOneThatHasItsNumberByNow(t *testing.T) {
	table := &mnt.Kernel{}
	for range 100 {
		m, device, dev := served(t, table)
		conn, err := table.Connection(dev)
		must(t, err)
		m.Close()
		device.Close()
		next, other, number := served(t, table)
		must(t, conn.Abort())
		conn.Close()
		alive := serves(t, other)
		next.Close()
		other.Close()
		if !alive {
			t.Fatalf("%v was aborted with %v", number, dev)
		}
		if number == dev {
			return
		}
	}
	t.Skip("others on this machine got the number each time")
}

func TestThereIsNoConnectionOfWhatIsNoFUSE(t *testing.T) {
	if _, err := (&mnt.Kernel{}).Connection(mnt.Dev{Minor: 1 << 19}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it says %v", err)
	}
}
