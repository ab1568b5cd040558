package procs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/datalayer/node-mounts/internal/mnt"
)

func TestMountsAreTheProcesssOwn(t *testing.T) {
	dir := t.TempDir()
	c := namespaced(t, "tmpfs", dir)
	ms, err := New("/proc").Mounts(c.Process)
	check(t, err)
	i := slices.IndexFunc(ms, func(m mnt.Mount) bool { return m.Point == dir })
	if i < 0 || ms[i].FSType != "tmpfs" || ms[i].Source != "test" || ms[i].Root != "/" {
		t.Errorf("got %v", ms)
	}
	ours, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	if strings.Contains(string(ours), dir) {
		t.Error("the mount is in our own table too: it proves nothing")
	}
}

func TestMountsOfAProcessThatHasEndedAreGone(t *testing.T) {
	c := start(t, nil)
	f := New("/proc")
	_, err := f.Mounts(c.Process)
	check(t, err)
	other := c.Process
	other.Start++ // the same pid, but a process that started at another time
	if _, err := f.Mounts(other); !errors.Is(err, ErrGone) {
		t.Errorf("a reused pid: %v", err)
	}
	check(t, c.cmd.Process.Kill())
	if err := f.waitOne(t.Context(), c.Process); err != nil { // a zombie: it was not waited for
		t.Fatal(err)
	}
	if _, err := f.Mounts(c.Process); !errors.Is(err, ErrGone) {
		t.Errorf("a zombie: %v", err)
	}
	c.end()
	if _, err := f.Mounts(c.Process); !errors.Is(err, ErrGone) {
		t.Errorf("a process that was waited for: %v", err)
	}
}

// copied is the script of a namespace with a tmpfs at dir that has the
// directories /src, /src/in and /srcs.
func copied(dir string, more ...string) []string {
	script := []string{"tmpfs", dir}
	for _, d := range []string{"src/in", "srcs", "1", "2", "3", "4"} {
		script = append(script, "mkdir", filepath.Join(dir, d))
	}
	return append(script, more...)
}

// found is a mount in a table.
type found struct {
	Process
	Mount mnt.Mount
}

// mountsOf are the mounts of the filesystem dev, of root or a directory in it, in
// the tables of the processes.
func mountsOf(f *Finder, ps []Process, dev mnt.Dev, root string) ([]found, error) {
	tables, err := f.Tables(context.Background(), ps)
	var out []found
	for _, t := range tables {
		for _, m := range t.Mounts {
			if (mnt.Record{Dev: dev, Root: root}).Covers(m) {
				out = append(out, found{t.Process, m})
			}
		}
	}
	return out, err
}

func points(cs []found) []string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%d %s", c.PID, c.Mount.Point))
	}
	slices.Sort(out)
	return out
}

func TestCopiesAreTheMountsOfADirectoryAndOfThoseBeneathIt(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	c := namespaced(t, copied(dir,
		"bind", in("src"), in("1"), "bind", in("src/in"), in("2"),
		"bind", in("srcs"), in("3"), // its name only begins like /src
		"tmpfs", in("4"), // another device with the same root as a copy of "/" would have
	)...)
	f := New("/proc")
	dev := c.mount(t, dir).Dev
	got, err := mountsOf(f, []Process{c.Process}, dev, "/src")
	check(t, err)
	if want := points([]found{copyAt(c, in("1")), copyAt(c, in("2"))}); !slices.Equal(points(got), want) {
		t.Errorf("copies of /src: %v, want %v", points(got), want)
	}
	for _, g := range got {
		if g.Process != c.Process {
			t.Errorf("found in %v, want %v", g.Process, c.Process)
		}
	}
	all, err := mountsOf(f, []Process{c.Process}, dev, "/")
	check(t, err)
	if len(all) != 4 {
		t.Errorf("copies of the whole filesystem: %v", points(all))
	}
}

func copyAt(c *running, point string) found {
	return found{Process: c.Process, Mount: mnt.Mount{Point: point}}
}

func TestADeletedRootIsStillACopy(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	c := namespaced(t, copied(dir, "bind", in("src/in"), in("1"), "rmdir", in("src/in"))...)
	m := c.mount(t, in("1"))
	if m.Root != "/src/in//deleted" {
		t.Fatalf("the root is %q", m.Root)
	}
	for _, root := range []string{"/src", "/src/in", "/src/in//deleted"} {
		got, err := mountsOf(New("/proc"), []Process{c.Process}, m.Dev, root)
		check(t, err)
		if !slices.Equal(points(got), points([]found{copyAt(c, in("1"))})) {
			t.Errorf("copies of %s: %v", root, points(got))
		}
	}
}

func TestANamespaceIsReadOnceForAllItsProcesses(t *testing.T) {
	dir := t.TempDir()
	c := namespaced(t, "tmpfs", dir)
	// The same process twice stands for two in one namespace.
	other := namespaced(t, "tmpfs", dir)
	got, err := mountsOf(New("/proc"), []Process{c.Process, c.Process, other.Process}, c.mount(t, dir).Dev, "/")
	check(t, err)
	if !slices.Equal(points(got), points([]found{copyAt(c, dir)})) {
		t.Errorf("got %v", points(got))
	}
}

func TestACopyOutsideTheProcesssRootIsFound(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	jail := t.TempDir()
	c := namespaced(t, append(copied(dir, "bind", in("src"), in("1")), "chroot", jail)...)
	seen, err := New("/proc").Mounts(c.Process)
	check(t, err)
	if slices.ContainsFunc(seen, func(m mnt.Mount) bool { return strings.HasSuffix(m.Point, "/1") }) {
		t.Fatal("the process's own table shows it: this proves nothing")
	}
	got, err := mountsOf(New("/proc"), []Process{c.Process}, c.mount(t, dir).Dev, "/src")
	check(t, err)
	if !slices.Equal(points(got), points([]found{copyAt(c, in("1"))})) {
		t.Errorf("got %v", points(got))
	}
}

func TestACopyInAUserNamespaceOfTheTenantsOwnIsFound(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Chmod(filepath.Dir(dir), 0o755)) // for who is nobody out here
	in := func(name string) string { return filepath.Join(dir, name) }
	nobody := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
	c := start(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: nobody, GidMappings: nobody,
		Credential: &syscall.Credential{NoSetGroups: true}, // root in there
	}, copied(dir, "bind", in("src"), in("1"), "open", in("1"), "chroot", in("srcs"))...)
	m := c.mount(t, in("1"))
	f := New("/proc")
	got, err := mountsOf(f, []Process{c.Process}, m.Dev, "/src")
	check(t, err)
	if !slices.Equal(points(got), points([]found{copyAt(c, in("1"))})) {
		t.Errorf("got %v", points(got))
	}
	if held := holdingOf(t, idsAt(t, c, in("1")), c); len(held) != 1 || !strings.HasPrefix(held[0], OpenFile) {
		t.Errorf("held: %v", held)
	}
}

func TestACopyInANamespaceOfOneThreadIsFound(t *testing.T) {
	dir := t.TempDir()
	c := namespaced(t, "tmpfs", dir, "thread", "namespace", "mkdir", dir+"/1", "bind", dir, dir+"/1")
	f := New("/proc")
	dev := c.mount(t, dir).Dev
	got, err := mountsOf(f, []Process{c.Process}, dev, "/")
	check(t, err)
	i := slices.IndexFunc(got, func(g found) bool { return g.Mount.Point == dir+"/1" })
	if i < 0 {
		t.Fatalf("got %v", points(got))
	}
	if got[i].MountNS == c.MountNS || got[i].PID == c.PID {
		t.Errorf("found in %v, which is the process's own", got[i].Process)
	}
	ms, err := f.Mounts(got[i].Process)
	check(t, err)
	if !slices.ContainsFunc(ms, func(m mnt.Mount) bool { return m.Point == dir+"/1" }) {
		t.Error("the thread's table does not have it")
	}
}

func TestARootOfAnyLengthHidesNoMount(t *testing.T) {
	dir := t.TempDir()
	name := strings.Repeat("\n", 250) // each shown as \012
	c := namespaced(t, "tmpfs", dir, "mkdir", dir+"/point", "cd", dir, "nest", name, "bind", ".", dir+"/point")
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.PID))
	check(t, err)
	if !slices.ContainsFunc(strings.Split(string(raw), "\n"), func(l string) bool { return len(l) > 1<<20 }) {
		t.Fatal("no line is that long: this proves nothing")
	}
	got, err := mountsOf(New("/proc"), []Process{c.Process}, c.mount(t, dir).Dev, "/"+name)
	check(t, err)
	if !slices.Equal(points(got), points([]found{copyAt(c, dir+"/point")})) {
		t.Errorf("got %v", points(got))
	}
}

func TestFieldsAreCutWhereNoEscapeIs(t *testing.T) {
	long := strings.Repeat("x", fieldLimit)
	for in, want := range map[string]string{
		"a b\nc d\n":                    "a b\nc d\n",
		long + " b\n":                   long + " b\n",
		long + "yz b\n" + long + "y c":  long + " b\n" + long + " c",
		long[4:] + `\040 b`:             long[4:] + `\040 b`,
		long[3:] + `\040y b`:            long[3:] + " b",
		long[1:] + `\040` + long + " b": long[1:] + " b",
	} {
		for name, r := range map[string]io.Reader{
			"whole": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in)),
		} {
			got, err := io.ReadAll(&boundedFields{r: r})
			check(t, err)
			if string(got) != want {
				t.Errorf("%s, %d bytes: got %d bytes, want %d", name, len(in), len(got), len(want))
			}
		}
	}
}

func TestGoneProcessesHaveNoCopiesAndAreNoDoubt(t *testing.T) {
	c := start(t, nil)
	c.end()
	got, err := mountsOf(New("/proc"), []Process{c.Process}, mnt.Dev{}, "/")
	if len(got) != 0 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}
