package procs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func systemd(uid, id string) string {
	uid = strings.ReplaceAll(uid, "-", "_")
	return "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid + ".slice/cri-containerd-" + id + ".scope\n"
}

func cgroupfs(uid, id string) string { return "0::/kubepods/burstable/pod" + uid + "/" + id + "\n" }

func pids(ps []Process) []int {
	var out []int
	for _, p := range ps {
		out = append(out, p.PID)
	}
	return out
}

func TestAPodsProcessesAreFoundOldestFirst(t *testing.T) {
	tr := newTree(t)
	tr.add(900, systemd(uidA, id1), 'S', 100)
	tr.add(20, systemd(uidA, id2), 'R', 300)
	tr.add(30, cgroupfs(uidA, id2), 'D', 200)
	tr.add(31, cgroupfs(uidA, id2), 'T', 200)
	tr.add(40, systemd(uidB, id1), 'S', 50)
	tr.add(50, "0::/system.slice/kubelet.service\n", 'S', 10)
	ps, err := tr.finder().Of(uidA)
	check(t, err)
	want := []Process{
		{PID: 900, Container: id1, MountNS: 4026530900, Start: 100},
		{PID: 30, Container: id2, MountNS: 4026530030, Start: 200},
		{PID: 31, Container: id2, MountNS: 4026530031, Start: 200},
		{PID: 20, Container: id2, MountNS: 4026530020, Start: 300},
	}
	if !slices.Equal(ps, want) {
		t.Errorf("got  %v\nwant %v", ps, want)
	}
}

func TestZombiesAndTheRuntimesMonitorAreNoProcessesOfThePod(t *testing.T) {
	tr := newTree(t)
	tr.add(1, systemd(uidA, id1), 'Z', 1)
	tr.add(2, systemd(uidA, id1), 'X', 1)
	tr.add(3, "0::/kubepods.slice/kubepods-pod"+sliceA+".slice/crio-conmon-"+id1+".scope\n", 'S', 1)
	f := tr.finder()
	ps, err := f.Of(uidA)
	has, hasErr := f.Has(uidA)
	if len(ps) != 0 || has || err != nil || hasErr != nil {
		t.Errorf("found %v, %v, has %v, %v", ps, err, has, hasErr)
	}
}

func TestAUidIsNeverPartOfAnother(t *testing.T) {
	tr := newTree(t)
	tr.add(1, cgroupfs(static, id1), 'S', 1)
	tr.add(2, systemd(static, id1), 'S', 2)
	tr.add(3, systemd(uidA, id1), 'S', 3)
	f := tr.finder()
	for uid, want := range map[string][]int{
		static: {1, 2}, uidA: {3},
		static[1:]: nil, static[:31]: nil, static + "0": nil, "-" + static: nil,
		uidA[9:]: nil, uidA[:8]: nil, strings.ReplaceAll(uidA, "-", ""): nil,
		"s-" + uidA: nil, "burstable": nil,
	} {
		ps, err := f.Of(uid)
		check(t, err)
		if !slices.Equal(pids(ps), want) {
			t.Errorf("%q has processes %v, want %v", uid, pids(ps), want)
		}
	}
}

func TestWhatIsNoUidIsRefused(t *testing.T) {
	f := newTree(t).finder()
	for _, uid := range []string{"", "a/b", "a b", "*", "a\x00"} {
		if _, err := f.Of(uid); err == nil {
			t.Errorf("Of(%q) was answered", uid)
		}
		if _, err := f.Has(uid); err == nil {
			t.Errorf("Has(%q) was answered", uid)
		}
	}
}

func TestANameMadeToMisleadTheParserOfStatDoesNot(t *testing.T) {
	tr := newTree(t)
	tr.add(1, systemd(uidA, id1), 'S', 77)
	tr.stat(1, "a) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 0 0 1 0 5 (\n", 'S', 77)
	ps, err := tr.finder().Of(uidA)
	check(t, err)
	if len(ps) != 1 || ps[0].Start != 77 {
		t.Errorf("got %v", ps)
	}
}

func TestAScanSurvivesProcessesThatVanishAndLinesOfAnyLength(t *testing.T) {
	tr := newTree(t)
	tr.add(1, systemd(uidA, id1), 'S', 1)
	check(t, os.Mkdir(filepath.Join(tr.dir, "2"), 0o755)) // gone before its files were opened
	tr.write(3, "cgroup", systemd(uidA, id1))             // gone before its stat was
	tr.add(4, strings.Repeat("x", 1<<20)+"\n"+systemd(uidA, id1), 'S', 4)
	tr.add(5, "0::/kubepods/pod"+uidA+"/"+id1+strings.Repeat("/deeper", 1<<14), 'S', 5)
	check(t, os.Mkdir(filepath.Join(tr.dir, "sys"), 0o755))
	check(t, os.WriteFile(filepath.Join(tr.dir, "6x"), nil, 0o644))
	ps, err := tr.finder().Of(uidA)
	check(t, err)
	if !slices.Equal(pids(ps), []int{1, 4, 5}) {
		t.Errorf("found %v", pids(ps))
	}
}

func TestAProcessThatCannotBeReadIsDoubtBesideWhatWasFound(t *testing.T) {
	tr := newTree(t)
	tr.add(1, systemd(uidA, id1), 'S', 1)
	check(t, os.MkdirAll(filepath.Join(tr.dir, "2", "cgroup"), 0o755)) // reading it fails: EISDIR
	f := tr.finder()
	ps, err := f.Of(uidA)
	if !slices.Equal(pids(ps), []int{1}) || !errors.Is(err, ErrCannotTell) {
		t.Errorf("found %v, %v", pids(ps), err)
	}
	if has, err := f.Has(uidA); !has || err != nil {
		t.Errorf("one was found, and Has says %v, %v", has, err)
	}
	if has, err := f.Has(uidB); has || !errors.Is(err, ErrCannotTell) {
		t.Errorf("none was found, and Has says %v, %v", has, err)
	}
}

func TestAMissingProcFilesystemIsAnErrorAndNotAnEmptyNode(t *testing.T) {
	f := New(filepath.Join(t.TempDir(), "none"))
	if ps, err := f.Of(uidA); err == nil {
		t.Errorf("found %v without an error", ps)
	}
	if _, err := f.Has(uidA); err == nil {
		t.Error("Has answered")
	}
}

func TestCallersDuringAScanShareTheNextOne(t *testing.T) {
	tr := newTree(t)
	g := tr.gate(1)
	f := tr.finder()
	first := f.join()
	pass := g.arrive()
	second, third := f.join(), f.join()
	if second == first || second != third {
		t.Fatal("a caller got a scan that began before it, or one that others did not share")
	}
	// It starts after both callers came, and after the first scan has passed
	// whatever it has passed.
	tr.add(2, systemd(uidA, id1), 'S', 1)
	pass()
	<-first.done
	g.arrive()()
	<-second.done
	if !slices.Equal(second.pods[uidA], []int{2}) {
		t.Errorf("the second scan saw %v", second.pods)
	}
	fourth := f.join()
	g.arrive()()
	<-fourth.done
	if f.last != fourth {
		t.Error("the result of the newest scan is not the one that is kept")
	}
}

func TestHasMakesNoScanWhileAKnownProcessIsStillThePods(t *testing.T) {
	tr := newTree(t)
	tr.add(2, systemd(uidA, id1), 'S', 1)
	tr.add(3, systemd(uidA, id1), 'S', 2)
	f := tr.finder()
	has := func() chan error {
		done := make(chan error, 1)
		go func() {
			ok, err := f.Has(uidA)
			if err == nil && !ok {
				err = errors.New("no process")
			}
			done <- err
		}()
		return done
	}
	check(t, within20s(t, "the first look", has()))
	g := tr.gate(1) // from here on, a scan does not end by itself
	check(t, within20s(t, "a look at a known process", has()))

	tr.stat(2, "name", 'Z', 1) // a zombie; 3 is still one
	check(t, within20s(t, "a look past a zombie", has()))

	tr.write(3, "cgroup", systemd(uidB, id1)) // the pid is another Pod's now
	done := has()
	g.arrive()() // so it has to scan
	if err := within20s(t, "a look at the whole node", done); err == nil {
		t.Error("it found a process where there is none")
	}
}

func TestKnownIsWhatTheLastScanFoundAndStillIsThePods(t *testing.T) {
	tr := newTree(t)
	tr.add(10, systemd(uidA, id1), 'S', 100)
	tr.add(11, systemd(uidA, id1), 'S', 50)
	f := tr.finder()
	if ps := f.Known(uidA); ps != nil {
		t.Errorf("before the first scan: %v", ps)
	}
	if _, err := f.Of(uidB); err != nil {
		t.Fatal(err)
	}
	if got := pids(f.Known(uidA)); !slices.Equal(got, []int{11, 10}) {
		t.Errorf("known %v, want them by their start", got)
	}
	tr.add(12, systemd(uidA, id1), 'S', 200)
	tr.stat(11, "name", 'Z', 50)
	if got := pids(f.Known(uidA)); !slices.Equal(got, []int{10}) {
		t.Errorf("known %v: it scans, or keeps what has ended", got)
	}
	if ps := f.Known("no uid/"); ps != nil {
		t.Errorf("of no uid: %v", ps)
	}
}

func TestNothingIsKeptOfAPodWithoutProcesses(t *testing.T) {
	tr := newTree(t)
	tr.add(1, systemd(uidA, id1), 'S', 1)
	tr.add(2, systemd(uidB, id1), 'S', 1)
	f := tr.finder()
	_, err := f.Of(uidA)
	check(t, err)
	tr.remove(1)
	_, err = f.Of(uidB)
	check(t, err)
	if _, kept := f.last.pods[uidA]; kept || len(f.last.pods) != 1 {
		t.Errorf("kept %v", f.last.pods)
	}
}

func TestARealProcessIsFoundWithItsStartAndNamespace(t *testing.T) {
	tr := newTree(t)
	c := start(t, nil)
	tr.link(c.Process, systemd(uidA, id1))
	ps, err := tr.finder().Of(uidA)
	check(t, err)
	want := c.Process
	want.Container = id1
	if !slices.Equal(ps, []Process{want}) {
		t.Errorf("got %v, want %v", ps, want)
	}
}

func TestAProcessWhoseFirstThreadHasExitedIsStillOne(t *testing.T) {
	tr := newTree(t)
	c := start(t, nil, "exit-first-thread")
	tr.link(c.Process, systemd(uidA, id1))
	ps, err := tr.finder().Of(uidA)
	check(t, err)
	if len(ps) != 1 || ps[0].MountNS == 0 {
		t.Errorf("got %v", ps)
	}
	_, err = New("/proc").Mounts(c.Process)
	check(t, err)
}

// BenchmarkOf measures a scan of this machine, and per process on it.
func BenchmarkOf(b *testing.B) {
	f := New("/proc")
	n := 0
	for b.Loop() {
		if _, err := f.Of(uidA); err != nil {
			b.Fatal(err)
		}
		n++
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	all := 0
	for _, e := range entries {
		if c := e.Name()[0]; '0' <= c && c <= '9' {
			all++
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*all), "ns/process")
}
