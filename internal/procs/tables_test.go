package procs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

func TestANamespaceThatADescriptorAloneKeepsIsRead(t *testing.T) {
	dir := t.TempDir()
	owner := namespaced(t, "tmpfs", dir)
	dev := owner.mount(t, dir).Dev
	keeper := start(t, nil, "open", fmt.Sprintf("/proc/%d/ns/mnt", owner.PID))
	inThread := start(t, nil, "thread", "open", fmt.Sprintf("/proc/%d/ns/mnt", owner.PID))
	owner.end()
	for what, c := range map[string]*running{"a process's descriptor": keeper, "a descriptor in a thread's own table": inThread} {
		got, err := mountsOf(New("/proc"), []Process{c.Process}, dev, "/")
		check(t, err)
		if len(got) != 1 || got[0].Mount.Point != dir || got[0].PID != c.PID || got[0].MountNS != owner.MountNS {
			t.Errorf("%s: got %v", what, got)
		}
	}
}

func TestANamespaceThatAMountAloneKeepsIsADoubt(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	// The kernel lets a namespace be mounted only in an older one. It goes by numbers
	// that each processor gives out by itself (Linux 6.18): both are made on one.
	onOneProcessor(t)
	older := namespaced(t, "tmpfs", dir, "write", in("ns"))
	younger := start(t, nil, "enter", strconv.Itoa(older.PID), "namespace")
	tables, err := New("/proc").Tables(t.Context(), []Process{younger.Process})
	check(t, err)
	// Which of its threads is in the namespace is the scheduler's choice; the others are
	// in this program's own, or in the older one.
	var own unix.Stat_t
	check(t, unix.Stat("/proc/self/ns/mnt", &own))
	i := slices.IndexFunc(tables, func(table Table) bool { return table.MountNS != own.Ino && table.MountNS != older.MountNS })
	if i < 0 {
		t.Fatal("the thread has no namespace of its own")
	}
	start(t, nil, "enter", strconv.Itoa(older.PID), "bind", fmt.Sprintf("/proc/%d/ns/mnt", tables[i].PID), in("ns")).end()
	f := New("/proc")
	_, err = f.Tables(t.Context(), []Process{older.Process, younger.Process})
	check(t, err) // a process is in it
	younger.end()
	tables, err = f.Tables(t.Context(), []Process{older.Process})
	if !errors.Is(err, ErrCannotTell) || !slices.ContainsFunc(tables, func(table Table) bool { return table.Err != nil && table.PID == 0 }) {
		t.Errorf("got %d tables, %v", len(tables), err)
	}
}

// onOneProcessor keeps the test's goroutine, and the processes that it starts, on one
// processor.
func onOneProcessor(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	check(t, unix.SchedGetaffinity(0, &before))
	for i := range len(before) * 64 {
		if before.IsSet(i) {
			one.Set(i)
			break
		}
	}
	check(t, unix.SchedSetaffinity(0, &one))
	t.Cleanup(func() {
		check(t, unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	})
}

// bounded reads a table as a look does that may read so much.
func bounded(table string, stop error, lines, allLines, bytes int) ([]mnt.Mount, error) {
	l := tableLook{stop: func() error { return stop }, lines: allLines, bytes: bytes}
	return mnt.ParseMountinfo(&boundedTable{r: strings.NewReader(table), look: &l, lines: lines})
}

func TestATableIsReadUpToALimitAndNotBeyond(t *testing.T) {
	const line = "36 35 98:0 / /point rw - ext4 /dev/sda1 rw\n"
	table := strings.Repeat(line, 10)
	ms, err := bounded(table, nil, 10, 10, len(table))
	check(t, err)
	if len(ms) != 10 {
		t.Errorf("got %d mounts", len(ms))
	}
	for what, c := range map[string]struct{ lines, all, bytes int }{
		"lines of the table": {9, 10, len(table)},
		"lines of all":       {10, 9, len(table)},
		"bytes of all":       {10, 10, len(table) - 1},
	} {
		if _, err := bounded(table, nil, c.lines, c.all, c.bytes); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := bounded(table, context.Canceled, 10, 10, len(table)); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

func TestALookThatIsGivenUpEndsInDoubt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := start(t, nil)
	f := New("/proc")
	ps := []Process{c.Process}
	_, tables := f.Tables(ctx, ps)
	_, holding := f.Holding(ctx, ps, nil)
	_, loose := f.Loose(ctx, ps, nil, nil)
	for what, err := range map[string]error{"tables": tables, "holding": holding, "loose": loose} {
		if !errors.Is(err, ErrCannotTell) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAFolderOfADetachedMountIsReportedWhateverItsFilesystem(t *testing.T) {
	dir := t.TempDir()
	p := namespaced(t, twice(dir, "cd", dir+"/ours", "open", dir+"/theirs/f")...)
	dev := p.mount(t, dir).Dev
	for _, at := range []string{"/ours", "/theirs"} {
		start(t, nil, "enter", strconv.Itoa(p.PID), "detach", dir+at).end()
	}
	f := New("/proc")
	shown := make(map[int]bool)
	tables, err := f.Tables(t.Context(), []Process{p.Process})
	check(t, err)
	for _, m := range tables[0].Mounts {
		shown[m.ID] = true
	}
	for want, devs := range map[string]map[mnt.Dev]bool{
		DetachedFolder:                    {{Major: 1, Minor: 1}: true},
		OpenFile + " " + WorkingDirectory: {dev: true},
	} {
		found, err := f.Loose(t.Context(), []Process{p.Process}, devs, shown)
		check(t, err)
		var got []string
		for _, h := range found {
			got = append(got, h.What)
		}
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

func TestADescriptorThatKeepsFilesOutOfSightIsToldByItsFdinfo(t *testing.T) {
	const begins = "pos:\t0\nflags:\t02\nmnt_id:\t10\nino:\t7\n"
	ring := begins + "SqMask:\t0x3\n" + strings.Repeat("    0: opcode:NOP\n", 1000)
	for info, want := range map[string]string{
		begins:                                 "",
		begins + "scm_fds: 0\n":                "",
		begins + "scm_fds: 12\n":               FilesInFlight,
		ring + "UserFiles:\t0\nUserBufs:\t0\n": "",
		ring + "UserFiles:\t1\n    0: <none>\nUserBufs:\t0\n":   "",
		ring + "UserFiles:\t9\n    7: /f\nUserBufs:\t0\n":       FilesInRing,
		ring + "UserFiles:\t0\nUserBufs:\t1\n    0: 0x1/4096\n": "",
		begins + "UserFiles:\t1\n    0: /f\n":                   "", // no ring
	} {
		name := filepath.Join(t.TempDir(), "0")
		check(t, os.WriteFile(name, []byte(info), 0o644))
		fd, err := openat(unix.AT_FDCWD, name, unix.O_RDONLY)
		check(t, err)
		begin, _, err := fdinfo(fd)
		check(t, err)
		got, err := keeps(begin, fd)
		check(t, err)
		if got != want {
			t.Errorf("%.60q … %.60q: got %q, want %q", info, info[len(info)-min(60, len(info)):], got, want)
		}
		check(t, unix.Close(fd))
	}
}
