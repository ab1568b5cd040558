package procs

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// twice is the script of a namespace in which one directory with a file f is
// mounted on dir/ours and on dir/theirs.
func twice(dir string, more ...string) []string {
	in := func(name string) string { return filepath.Join(dir, name) }
	return append([]string{
		"tmpfs", dir, "mkdir", in("src/sub"), "mkdir", in("ours"), "mkdir", in("theirs"),
		"write", in("src/f"), "copy", in("src/program"),
		"bind", in("src"), in("ours"), "bind", in("src"), in("theirs"),
	}, more...)
}

// idsAt is what Holding takes, for the child's mount at point.
func idsAt(t *testing.T, c *running, point string) map[int]bool {
	t.Helper()
	return map[int]bool{c.mount(t, point).ID: true}
}

// holdingOf is what processes hold, in words.
func holdingOf(t *testing.T, ids map[int]bool, cs ...*running) []string {
	t.Helper()
	var ps []Process
	for _, c := range cs {
		ps = append(ps, c.Process)
	}
	hs, err := New("/proc").Holding(t.Context(), ps, ids)
	check(t, err)
	var out []string
	for _, h := range hs {
		if !slices.ContainsFunc(ps, func(p Process) bool { return p.PID == h.PID }) {
			t.Errorf("held by %d, which was not asked for", h.PID)
		}
		out = append(out, h.What+" "+h.Path)
	}
	slices.Sort(out)
	return out
}

func TestWhatAProcessHoldsOnAMountIsFoundAndOnAnotherMountOfTheSameDirectoryIsNot(t *testing.T) {
	for name, c := range map[string]struct{ does, what, path string }{
		"an open file":                    {"open", OpenFile, "/f"},
		"a working directory":             {"cd", WorkingDirectory, "/sub"},
		"a root directory":                {"chroot", RootDirectory, "/sub"},
		"a mapped file, closed since":     {"map", MappedFile, "/f"},
		"a file open in a thread's table": {"thread open", OpenFile, "/f"},
		"a thread's working directory":    {"thread cd", WorkingDirectory, "/sub"},
		"a thread's root directory":       {"thread chroot", RootDirectory, "/sub"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := namespaced(t, twice(dir, append(strings.Fields(c.does), dir+"/ours"+c.path)...)...)
			want := []string{c.what + " " + dir + "/ours" + c.path}
			if got := holdingOf(t, idsAt(t, p, dir+"/ours"), p); !slices.Equal(got, want) {
				t.Errorf("on it: %v, want %v", got, want)
			}
			if got := holdingOf(t, idsAt(t, p, dir+"/theirs"), p); got != nil {
				t.Errorf("on the other: %v", got)
			}
		})
	}
}

func TestAProgramRunFromAMountHoldsIt(t *testing.T) {
	dir := t.TempDir()
	p := namespaced(t, twice(dir, "exec", dir+"/ours/program")...)
	got := holdingOf(t, idsAt(t, p, dir+"/ours"), p)
	if !slices.Contains(got, RunningProgram+" "+dir+"/ours/program") || !slices.Contains(got, MappedFile+" "+dir+"/ours/program") {
		t.Errorf("on it: %v", got)
	}
	if got := holdingOf(t, idsAt(t, p, dir+"/theirs"), p); got != nil {
		t.Errorf("on the other: %v", got)
	}
}

func TestAProcessWhoseFirstThreadHasExitedHoldsWhatTheOthersDo(t *testing.T) {
	dir := t.TempDir()
	p := namespaced(t, twice(dir, "open", dir+"/ours/f", "map", dir+"/ours/f", "cd", dir+"/ours/sub", "exit-first-thread")...)
	want := []string{MappedFile + " " + dir + "/ours/f", OpenFile + " " + dir + "/ours/f", WorkingDirectory + " " + dir + "/ours/sub"}
	if got := holdingOf(t, idsAt(t, p, dir+"/ours"), p); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAFileOnADetachedMountIsStillHeld(t *testing.T) {
	dir := t.TempDir()
	p := namespaced(t, twice(dir, "open", dir+"/ours/f")...)
	ids := idsAt(t, p, dir+"/ours")
	start(t, nil, "enter", strconv.Itoa(p.PID), "detach", dir+"/ours").end()
	got := holdingOf(t, ids, p)
	if len(got) != 1 || !strings.HasPrefix(got[0], OpenFile) {
		t.Errorf("got %v", got)
	}
}

func TestAFileHandedOverFromAnotherNamespaceIsFound(t *testing.T) {
	dir := t.TempDir()
	owner := namespaced(t, twice(dir, "open", dir+"/ours/f")...)
	ids := idsAt(t, owner, dir+"/ours")
	// What a socket would pass, /proc opens.
	p := start(t, nil, "open", fmt.Sprintf("/proc/%d/root%s/ours/f", owner.PID, dir))
	if p.MountNS == owner.MountNS {
		t.Fatal("both are in one namespace: this proves nothing")
	}
	if got := holdingOf(t, ids, p); len(got) != 1 || !strings.HasPrefix(got[0], OpenFile) {
		t.Errorf("got %v", got)
	}
}

func TestOfManyOpenFilesAFewAreReported(t *testing.T) {
	dir := t.TempDir()
	p := namespaced(t, twice(dir, "openmany", dir+"/ours/f")...)
	if got := holdingOf(t, idsAt(t, p, dir+"/ours"), p); len(got) != holdingLimit {
		t.Errorf("%d are reported, want %d", len(got), holdingLimit)
	}
}

func TestAProcessThatHasEndedHoldsNothingAndHidesNothing(t *testing.T) {
	dir := t.TempDir()
	gone := start(t, nil)
	gone.end()
	p := namespaced(t, twice(dir, "open", dir+"/ours/f")...)
	if got := holdingOf(t, idsAt(t, p, dir+"/ours"), gone, p); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestWithoutTheRightToLookTheAnswerIsDoubt(t *testing.T) {
	victim := start(t, nil)
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	c := start(t, nobody, "holding", strconv.Itoa(victim.PID))
	if want := []string{"found 0 cannot tell: true"}; !slices.Equal(c.said, want) {
		t.Errorf("nobody says %q, want %q", c.said, want)
	}
}

func TestAMappedFileIsToldFromOtherMemory(t *testing.T) {
	for line, want := range map[string]string{
		"00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a b": "400000-452000 /usr/bin/a b",
		"7ffe0000-7ffe1000 rw-p 00000000 00:00 0 ":                       "",
		"7ffe0000-7ffe1000 rw-p 00000000 00:00 0":                        "",
		"7ffe0000-7ffe1000 rw-p 00000000 00:00 0          [stack]":       "",
		"00000000-00001000 rw-s 00000000 00:2a 0          /fuse/f":       "0-1000 /fuse/f",
		"": "", "x": "", "1 2 3 4 5 6": "",
	} {
		area, path, ok := mapping(line)
		if got := strings.TrimSpace(area + " " + path); ok != (want != "") || ok && got != want {
			t.Errorf("mapping(%q) = %q, %v, want %q", line, got, ok, want)
		}
	}
}

func TestTheMountIDIsReadFromFdinfoOfAnyLength(t *testing.T) {
	long := filepath.Join(t.TempDir(), "0")
	check(t, os.WriteFile(long, []byte("pos:\t0\nflags:\t02\nmnt_id:\t31\nino:\t7\n"+strings.Repeat("tfd: 4 events: 19\n", 10000)), 0o644))
	id, err := mountID(-1, long)
	if id != 31 || err != nil {
		t.Errorf("got %d, %v", id, err)
	}
	for _, other := range []string{"pos:\t0\n", "mnt_id:\t3", "mnt_id:\tx\n"} {
		check(t, os.WriteFile(long, []byte(other), 0o644))
		if id, err := mountID(-1, long); err == nil {
			t.Errorf("%q is answered %d", other, id)
		}
	}
}

// BenchmarkHolding looks through this process: threads, descriptors and maps.
func BenchmarkHolding(b *testing.B) {
	st, err := os.Open("/proc/self/stat")
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	line, _ := bufio.NewReader(st).ReadBytes('\n')
	s, err := parseStat(line)
	if err != nil {
		b.Fatal(err)
	}
	f := New("/proc")
	for b.Loop() {
		if _, err := f.Holding(b.Context(), []Process{{PID: os.Getpid(), Start: s.start}}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
