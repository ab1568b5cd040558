package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// Each entry is wrong in more than one way, and the first step that sees it
// names it: the order of the steps is what is tested.
func TestTheStepsAreTakenInOrderAndOneBadGrantNeverCostsAGoodOne(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Home("datasets/mnist", 0o755, "train")
	n.Home("datasets", 0o755, "file")
	must(t, os.Symlink("datasets/mnist", filepath.Join(n.Claim, "link")))
	must(t, os.Symlink("/etc", filepath.Join(n.Claim, "out")))
	p := n.RunningPod("pod")
	p.Annotate(annotation("0123456789abcdef",
		entry(`"kind":"files","source":"home/users/u1","target":"good","mode":"rw","allow_exec":true`),
		entry(`"kind":"shared-folder","source":"datasets/mnist","target":"mnist","mode":"ro"`),
		// 1. The kind, before the source is read.
		entry(`"kind":"smb","source":"../../etc","target":"smb","mode":"rw"`),
		// 2. The source, before it is asked who serves the kind.
		entry(`"kind":"nfs","source":"no-host","target":"nfs-source","mode":"rw"`),
		entry(`"kind":"git","source":"file:///etc","revision":"0123456789012345678901234567890123456789","target":"git-source","mode":"ro"`),
		entry(`"kind":"files","source":"home/../../etc","target":"dots","mode":"rw"`),
		// 3. A kind that nobody serves, before a Secret is read or a folder made.
		entry(`"kind":"nfs","source":"host:/export","target":"nfs","mode":"rw","secret":"s"`),
		entry(`"kind":"git","source":"https://example.org/r.git","revision":"0123456789012345678901234567890123456789","target":"git","mode":"ro","secret":"s"`),
		entry(`"kind":"cloud-storage","source":"bucket/prefix","target":"bucket","mode":"ro","secret":"s"`),
		entry(`"kind":"local-bridge","source":"b-1","target":"bridge","mode":"rw","secret":"s"`),
		// 4. The credential, before anything is made.
		entry(`"kind":"files","source":"home/users/never","target":"secret","mode":"rw","secret":"s"`),
		// 5. and 6. The folder, and the mount.
		entry(`"kind":"shared-folder","source":"datasets/absent","target":"absent","mode":"ro"`),
		entry(`"kind":"shared-folder","source":"link","target":"link","mode":"ro"`),
		entry(`"kind":"shared-folder","source":"out","target":"out","mode":"ro"`),
		entry(`"kind":"files","source":"out/made","target":"out-files","mode":"rw"`),
		entry(`"kind":"shared-folder","source":"datasets/file","target":"file","mode":"ro"`),
		entry(`"kind":"files","source":"datasets/file/below","target":"below-file","mode":"rw"`),
		entry(`"kind":"files","source":"home/users/u2","target":"a/b","mode":"rw"`),
		entry(`"kind":"files","source":"home/users/u3","target":"mode","mode":"write"`),
		entry(`"kind":"files","source":"home/users/u3","target":"exec","mode":"rw","allow_exec":"yes"`),
		`"text"`,
	))
	st := p.MustAnswer(grant.StateDegraded, []string{"good", "mnist"}, codes(
		"smb", "UNSUPPORTED_KIND",
		"nfs-source", "INVALID_SOURCE", "git-source", "INVALID_SOURCE", "dots", "INVALID_SOURCE",
		"nfs", "UNSUPPORTED_KIND", "git", "UNSUPPORTED_KIND",
		"bucket", "PROCESS_UNSUPPORTED", "bridge", "PROCESS_UNSUPPORTED",
		"secret", "SECRET_REFUSED",
		"absent", "MOUNT_FAILED",
		"link", "INVALID_SOURCE", "out", "INVALID_SOURCE", "out-files", "INVALID_SOURCE",
		"file", "INVALID_SOURCE", "below-file", "INVALID_SOURCE",
		"#17", "INVALID_TARGET", "mode", "INVALID_GRANT", "exec", "INVALID_GRANT", "#20", "INVALID_GRANT",
	))
	if st.Hash != "0123456789abcdef" {
		t.Errorf("hash %q", st.Hash)
	}
	for key := range st.Failed {
		if st.Messages[key] == "" || strings.Contains(st.Messages[key], n.Dir) {
			t.Errorf("the message for %s is %q", key, st.Messages[key])
		}
	}
	must(t, p.Ctr.AsUser(userID, groupID).WriteFile(in+"good/f", nil, 0o644))
	// Nothing that was refused has left anything, on the claim or in the tree.
	if names, err := p.Ctr.ReadDir(in); err != nil || strings.Join(names, " ") != "good mnist" {
		t.Errorf("the sandbox lists %v, %v", names, err)
	}
	for _, never := range []string{"home/users/never", "home/users/u2", "home/users/u3", "datasets/absent"} {
		absent(t, filepath.Join(n.Claim, never))
	}
	absent(t, "/etc/made")
}

func TestADatasetThatAppearsIsMountedByItself(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	clock := clocktesting.NewFakeClock(time.Now())
	n.Clock = clock
	n.Restart()
	p := n.RunningPod("pod")
	p.Grant(dataset("datasets/late", "late"))
	p.MustAnswer(grant.StateFailed, nil, codes("late", "MOUNT_FAILED"))
	again := p.Pass()
	if again <= 0 || n.API.Answers() != 1 {
		t.Fatalf("a pass again after %s, %d answers", again, n.API.Answers())
	}
	n.Home("datasets/late", 0o755, "f")
	// Not yet due: an event, which every answer causes, does not hurry it.
	p.MustAnswer(grant.StateFailed, nil, codes("late", "MOUNT_FAILED"))
	clock.Step(again)
	p.MustAnswer(grant.StateReady, []string{"late"}, nil)
}

func TestAFolderThatIsMadeIsTheUsersAndOneThatExistsIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	dir := n.Home("home/users/old", 0o700, "f")
	must(t, os.Chown(dir, 4321, 8765))
	p := n.RunningPod("pod")
	p.Grant(home("home/users/old", "old"), home("home/teams/new/sub", "new"))
	p.MustAnswer(grant.StateReady, []string{"new", "old"}, nil)
	for rel, want := range map[string]unix.Stat_t{
		"home/users/old":     {Uid: 4321, Gid: 8765, Mode: unix.S_IFDIR | 0o700},
		"home/users":         {Uid: 0, Gid: 0, Mode: unix.S_IFDIR | 0o755},
		"home/teams":         {Uid: userID, Gid: groupID, Mode: unix.S_IFDIR | 0o775},
		"home/teams/new":     {Uid: userID, Gid: groupID, Mode: unix.S_IFDIR | 0o775},
		"home/teams/new/sub": {Uid: userID, Gid: groupID, Mode: unix.S_IFDIR | 0o775},
	} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(n.Claim, rel), &st))
		if st.Uid != want.Uid || st.Gid != want.Gid || st.Mode != want.Mode {
			t.Errorf("%s is %d:%d %o, want %d:%d %o", rel, st.Uid, st.Gid, st.Mode, want.Uid, want.Gid, want.Mode)
		}
	}
}

func TestTooManyMountsRefuseTheNewSetAndTakeNothingThatStands(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Policy.MaxPerPod, n.Policy.MaxPerNode = 3, 5
	n.Restart()
	p := n.RunningPod("pod")
	p.Grant(home("h/1", "t1"), home("h/2", "t2"), home("h/3", "t3"))
	p.MustAnswer(grant.StateReady, []string{"t1", "t2", "t3"}, nil)

	// What is no longer asked goes before the cap is looked at.
	p.Grant(home("h/2", "t2"), home("h/3", "t3"), home("h/4", "t4"), home("h/5", "t5"))
	p.MustAnswer(grant.StateFailed, []string{"t2", "t3"}, codes("*", "TOO_MANY_MOUNTS"))
	absent(t, filepath.Join(n.Claim, "h/4"))
	if seen := seenBy(t, p.Ctr); len(seen) != 2 {
		t.Errorf("the sandbox sees %v", seen)
	}

	// Per node: two stand, and three is the most that a second Pod can have.
	q := n.RunningPod("other")
	q.Grant(home("h/1", "t1"), home("h/2", "t2"), home("h/3", "t3"))
	q.MustAnswer(grant.StateReady, []string{"t1", "t2", "t3"}, nil)
	r := n.RunningPod("third")
	r.Grant(home("h/6", "t"))
	r.MustAnswer(grant.StateFailed, nil, codes("*", "TOO_MANY_MOUNTS"))
	absent(t, filepath.Join(n.Claim, "h/6"))

	// Room is made, and the third gets what it asked for without being touched.
	q.Annotate(nil)
	q.Pass()
	r.MustAnswer(grant.StateReady, []string{"t"}, nil)

	// More than a thousand entries are not even looked at; what stands stays.
	many := make([]string, grant.MaxEntries+1)
	for i := range many {
		many[i] = `{}`
	}
	p.Annotate(annotation("feedfeedfeedfeed", many...))
	if st := p.MustAnswer(grant.StateFailed, []string{"t2", "t3"}, codes("*", "TOO_MANY_MOUNTS")); st.Hash != "feedfeedfeedfeed" {
		t.Errorf("hash %q", st.Hash)
	}
	must(t, p.Ctr.WriteFile(in+"t2/f", nil, 0o644))
}

func TestACapThatWasLoweredTakesNothingThatStands(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/1", "t1"), home("h/2", "t2"))
	p.MustAnswer(grant.StateReady, []string{"t1", "t2"}, nil)
	n.Policy.MaxPerPod, n.Policy.MaxPerNode = 1, 1
	n.Restart()
	p.MustAnswer(grant.StateReady, []string{"t1", "t2"}, nil)
	p.Grant(home("h/2", "t2"))
	p.MustAnswer(grant.StateReady, []string{"t2"}, nil)
}

func TestPodsThatCannotReceiveMountsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	for name, shape := range map[string]func(p *plan.Pod){
		"no volume":       func(p *plan.Pod) { p.Volume = nil },
		"disk-backed":     func(p *plan.Pod) { p.Volume = &plan.Volume{} },
		"sub-path":        func(p *plan.Pod) { p.Uses[0].SubPath = true },
		"no propagation":  func(p *plan.Pod) { p.Uses[0].HostToContainer = false },
		"nobody uses it":  func(p *plan.Pod) { p.Uses = nil },
		"init only":       func(p *plan.Pod) { p.Uses[0].Init = true },
		"second without":  func(p *plan.Pod) { p.Uses = append(p.Uses, plan.Use{Container: "c", Path: "/data"}) },
		"user namespace":  func(p *plan.Pod) { p.HostUsers = false },
		"gVisor":          func(p *plan.Pod) { p.RuntimeClass = "gvisor" },
		"Kata":            func(p *plan.Pod) { p.RuntimeClass = "kata-qemu" },
		"mirror of a Pod": func(p *plan.Pod) { p.Mirror = true },
	} {
		// No process and no volume is there: the answer needs neither.
		p := n.NewPod(strings.ReplaceAll(strings.ToLower(name), " ", "-"))
		n.API.Change(p.UID, shape)
		p.Grant(home("h/never", "t"))
		st := p.MustAnswer(grant.StateFailed, nil, codes("*", "POD_UNSUPPORTED"))
		if st.Messages["*"] == "" || st.Hash == "" {
			t.Errorf("%s: %+v", name, st)
		}
	}
	n.Policy.SELinux = true
	n.Restart()
	p := n.RunningPod("selinux")
	p.Grant(home("h/never", "t"))
	p.MustAnswer(grant.StateFailed, nil, codes("*", "POD_UNSUPPORTED"))
	absent(t, filepath.Join(n.Claim, "h"))
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAVolumeThatIsLateIsReportedAfterAMinuteAndNotBefore(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	clock := clocktesting.NewFakeClock(time.Now())
	n.Clock = clock
	n.Restart()
	p := n.NewPod("pod")
	p.Grant(home("h/1", "t"))
	look := func(want bool) {
		t.Helper()
		if again := p.Pass(); again <= 0 || again > time.Second {
			t.Fatalf("a pass again after %s", again)
		}
		if (p.Status() != nil) != want {
			t.Fatalf("the answer is %v", p.Status())
		}
	}
	look(false)
	clock.Step(30 * time.Second)
	look(false)
	// A container without the volume: kubelet has not made it.
	_, err := p.StartContainer(simnode.ContainerOptions{Sandbox: true})
	must(t, err)
	clock.Step(29 * time.Second)
	look(false)
	clock.Step(time.Second)
	look(true)
	p.MustHave(grant.StateFailed, nil, codes("*", "NOT_READY"))
	absent(t, filepath.Join(n.Claim, "h"))
	// It comes after all. A mount that no container has seen is not ready.
	must(t, p.SetUpVolume(false))
	p.MustAnswer(grant.StateFailed, []string{"t"}, codes("*", "NOT_READY"))
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
	if n.API.Answers() != 3 {
		t.Errorf("%d answers", n.API.Answers())
	}
}

// The medium in the spec is not believed: what is deleted recursively, through
// the mounts in it, is what the disk has.
func TestAVolumeOnDiskIsNeverPublishedOn(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.NewPod("pod")
	must(t, p.SetUpVolume(true))
	p.Start(simnode.ContainerOptions{})
	p.Grant(home("h/1", "t"))
	p.Pass()
	if st := p.Status(); st != nil {
		t.Errorf("answered %+v", st)
	}
	if ms := standing(t, p.VolumePath()); len(ms) != 0 {
		t.Errorf("on the volume: %+v", ms)
	}
	absent(t, filepath.Join(n.Claim, "h"))
}

func TestAGrantThatTheContainerDoesNotSeeIsNotReady(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.NewPod("pod")
	must(t, p.SetUpVolume(false))
	p.Start(simnode.ContainerOptions{Private: true})
	p.Grant(home("h/1", "t"))
	p.MustAnswer(grant.StateFailed, nil, codes("t", "MOUNT_FAILED"))
	// The container is made anew, as it should have been.
	must(t, p.Ctr.Stop())
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
}

func TestANodeWithAPrivateKubeletDirectorySaysSo(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNodeWith(t, simnode.Options{Private: true})
	if !strings.Contains(n.Agent.Fault(), "make-rshared") {
		t.Errorf("the fault is %q", n.Agent.Fault())
	}
	p := n.RunningPod("pod")
	p.Grant(home("h/1", "t"))
	st := p.MustAnswer(grant.StateFailed, nil, codes("*", "MOUNT_FAILED"))
	if st.Messages["*"] != n.Agent.Fault() {
		t.Errorf("the message is %q", st.Messages["*"])
	}
	absent(t, filepath.Join(n.Claim, "h"))
}

func TestANodeWhoseKubeletKeepsItsPodsElsewhereSaysSoUntilTheyAreThere(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	pods := filepath.Join(n.Kubelet, "pods")
	must(t, os.Rename(pods, pods+"-elsewhere"))
	n.Restart()
	if !strings.Contains(n.Agent.Fault(), n.Kubelet+` has no folder "pods"`) || !strings.Contains(n.Agent.Fault(), "--root-dir") {
		t.Errorf("the fault is %q", n.Agent.Fault())
	}
	p := n.NewPod("pod")
	p.Grant(home("h/1", "t"))
	st := p.MustAnswer(grant.StateFailed, nil, codes("*", "MOUNT_FAILED"))
	if st.Messages["*"] != n.Agent.Fault() {
		t.Errorf("the message is %q", st.Messages["*"])
	}
	absent(t, filepath.Join(n.Claim, "h"))
	// A file of that name is no folder either.
	must(t, os.WriteFile(pods, nil, 0o644))
	must(t, n.Agent.Sweep(t.Context()))
	if n.Agent.Fault() == "" {
		t.Error("a file is taken for kubelet's folder")
	}
	must(t, os.Remove(pods))
	// kubelet of a fresh node makes it a moment later.
	must(t, os.Rename(pods+"-elsewhere", pods))
	must(t, n.Agent.Sweep(t.Context()))
	must(t, p.SetUpVolume(false))
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
}

func TestNothingIsMadeOnABareClaimDirectoryAndGrantsSucceedOnceItIsMounted(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/1", "t1"))
	p.MustAnswer(grant.StateReady, []string{"t1"}, nil)
	// The claim goes while the agent runs: the next grants meet the bare folder.
	must(t, unix.Unmount(n.Claim, unix.MNT_DETACH))
	p.Grant(home("h/1", "t1"), home("h/2", "t2"))
	p.MustAnswer(grant.StateDegraded, []string{"t1"}, codes("t2", "MOUNT_FAILED"))
	absent(t, filepath.Join(n.Claim, "h"))
	// A new agent knows it before it tries, and other kinds would be served.
	n.Restart()
	p.Grant(home("h/1", "t1"), home("h/3", "t3"))
	p.MustAnswer(grant.StateDegraded, []string{"t1"}, codes("t3", "MOUNT_FAILED"))
	if fault := n.Agent.Fault(); !strings.Contains(fault, "the shared claim is not mounted") {
		t.Errorf("the fault is %q", fault)
	}
	absent(t, filepath.Join(n.Claim, "h"))
	if entries, err := os.ReadDir(n.Claim); err != nil || len(entries) != 0 {
		t.Errorf("on the bare folder: %v, %v", entries, err)
	}
	must(t, unix.Mount("claim", n.Claim, "tmpfs", 0, "mode=0755"))
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateReady, []string{"t1", "t3"}, nil)
	must(t, p.Ctr.WriteFile(in+"t3/f", nil, 0o644))
	if _, err := os.Stat(filepath.Join(n.Claim, "h/3/f")); err != nil {
		t.Error(err)
	}
}

// The table costs 5 to 10 µs for each mount on the node.
func TestNoPassReadsTheMountTable(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	before := n.Table.Lists()
	for range 3 {
		p.Grant(home("h/1", "t1"), home("h/2", "t2"), dataset("h/1", "t3"))
		p.Pass()
		p.Grant(home("h/2", "t2"))
		p.Pass()
	}
	p.MustHave(grant.StateReady, []string{"t2"}, nil)
	p.Annotate(nil)
	p.Pass()
	if lists := n.Table.Lists() - before; lists != 0 {
		t.Errorf("the mount table was read %d times", lists)
	}
	clean(t, n, p)
}
