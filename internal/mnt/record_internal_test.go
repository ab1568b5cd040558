package mnt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// scratch is a tmpfs of this test alone, in the test's own mount namespace.
func scratch(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("scratch", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Before Linux 6.8 there is no statmount, and the table is read instead.
func TestOnAnOlderKernelTheRecordIsTheSame(t *testing.T) {
	dir := scratch(t)
	on := filepath.Join(dir, "on")
	if err := os.Mkdir(on, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"plain", "sp ace", "new\nline", `back\slash`, `lit\040eral`, strings.Repeat("\\", 255)} {
		source := filepath.Join(dir, name)
		if err := os.Mkdir(source, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(source, on, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(on, unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		var k Kernel
		now := k.record(fd, NoSUID)
		// Where the kernel has unique ids it has statmount, and no table is read.
		if now.ID != 0 && k.Lists() != 0 {
			t.Errorf("%q: %d tables read: statmount was not asked", name, k.Lists())
		}
		old := k.recordFromList(fd, Record{Flags: NoSUID, Inode: now.Inode})
		unix.Close(fd)
		if err := unix.Unmount(on, 0); err != nil {
			t.Fatal(err)
		}
		if now.ID = 0; now != old || now.Root != "/"+name {
			t.Errorf("%q: %+v by statmount, %+v from the table", name, now, old)
		}
	}
}

func TestARecordOfNothingMatchesNoMount(t *testing.T) {
	var k Kernel
	rec := k.record(-1, NoSUID)
	if rec.Root != "" || rec.Matches(Mount{Root: "/", Flags: NoSUID}) {
		t.Errorf("%+v", rec)
	}
	if _, err := statmount(1); err == nil {
		t.Error("statmount knows a mount that cannot exist")
	}
}

func TestAnAnswerOfStatmountThatMakesNoSenseIsAnError(t *testing.T) {
	answer := func(mask uint64, offset uint32, text string) []byte {
		buf := make([]byte, 1024)
		binary.NativeEndian.PutUint64(buf[statmountOffMask:], mask)
		binary.NativeEndian.PutUint32(buf[statmountOffDevMajor:], 8)
		binary.NativeEndian.PutUint32(buf[statmountOffDevMajor+4:], 1)
		binary.NativeEndian.PutUint32(buf[statmountOffMntRoot:], offset)
		copy(buf[min(statmountOffStrings+int(offset), len(buf)):], text)
		return buf
	}
	const both = statmountAll &^ statmountMntPoint
	m, err := parseStatmount(answer(both, 7, "/home\x00rest"))
	if err != nil || m.Root != "/home" || m.Dev != (Dev{8, 1}) || m.Point != "" {
		t.Errorf("%+v %v", m, err)
	}
	point := answer(statmountAll, 0, "/home\x00/at\x00")
	binary.NativeEndian.PutUint32(point[statmountOffMntPoint:], 6)
	if m, err := parseStatmount(point); err != nil || m.Root != "/home" || m.Point != "/at" {
		t.Errorf("%+v %v", m, err)
	}
	binary.NativeEndian.PutUint32(point[statmountOffMntPoint:], 512)
	for name, buf := range map[string][]byte{
		"no root":                answer(both&^statmountMntRoot, 0, "/home\x00"),
		"no device":              answer(both&^statmountSBBasic, 0, "/home\x00"),
		"no ids":                 answer(both&^statmountMntBasic, 0, "/home\x00"),
		"a point outside":        point,
		"an offset outside":      answer(both, 512, ""),
		"an offset far outside":  answer(both, 1<<31, ""),
		"a root without an end":  answer(both, 0, strings.Repeat("x", 1024)),
		"an offset of minus one": answer(both, 1<<32-1, ""),
	} {
		if m, err := parseStatmount(buf); !errors.Is(err, errStatmountShape) {
			t.Errorf("%s: %+v %v", name, m, err)
		}
	}
}

func TestAKernelWithoutMountSetattrIsUnsupported(t *testing.T) {
	dir, err := beneath.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := probed(dir, nil); err != nil {
		t.Errorf("a kernel with it: %v", err)
	}
	if err := probed(dir, unix.ENOSYS); !errors.Is(err, ErrUnsupported) || !errors.Is(err, unix.ENOSYS) {
		t.Errorf("ENOSYS: %v", err)
	}
	if err := probed(dir, fmt.Errorf("clone: %w", unix.EPERM)); errors.Is(err, ErrUnsupported) || !errors.Is(err, unix.EPERM) {
		t.Errorf("EPERM: %v", err)
	}
	var k Kernel
	if err := k.Probe(dir); err != nil {
		t.Errorf("this kernel: %v", err)
	}
}
