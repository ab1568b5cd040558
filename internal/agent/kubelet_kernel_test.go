package agent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// fsGroup is the group that kubelet's walk gives a volume to.
const fsGroup = 100

// privateHome makes a home folder that a walk for fsGroup would ruin: private
// folders, an SSH key, an owner and a group of its own.
func privateHome(t testing.TB, n *agenttest.Node, rel string) string {
	t.Helper()
	dir := n.Home(rel, 0o700, "notes")
	must(t, os.MkdirAll(filepath.Join(dir, ".ssh"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, ".ssh/id_rsa"), []byte("key"), 0o600))
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 1000, 5555))
	}))
	return dir
}

// portrait is every file's owner and mode, as text to compare.
func portrait(t testing.TB, dir string) string {
	t.Helper()
	var s string
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		s += fmt.Sprintf("%s %d:%d %o\n", path, st.Uid, st.Gid, st.Mode)
		return nil
	}))
	return s
}

// The grant is there before the Pod, and passes come at every point of kubelet's
// work: before the volume, on the bare tmpfs, during the walk, after it.
func TestKubeletsWalkForFsGroupNeverReachesAHomeFolder(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	dir := privateHome(t, n, "home/users/u1")
	before := portrait(t, dir)
	for i := range 100 {
		p := n.NewPod(fmt.Sprintf("pod-%d", i))
		p.Grant(home("home/users/u1", "u1"), home(fmt.Sprintf("home/users/new-%d", i), "new"))
		p.Pass()
		must(t, p.SetUpVolume(false))
		p.Pass()
		walked := make(chan error)
		go func() { walked <- p.ChownWalk(fsGroup) }()
		for walking := true; walking; {
			p.Pass()
			select {
			case err := <-walked:
				must(t, err)
				walking = false
			default:
			}
		}
		p.Pass()
		if ms := standing(t, p.VolumePath()); len(ms) != 1 || p.Status() != nil {
			t.Fatalf("before a process of the Pod exists, its volume has %+v", ms)
		}
		pause, err := p.StartContainer(simnode.ContainerOptions{Sandbox: true})
		must(t, err)
		p.Pass()
		if ms := standing(t, p.VolumePath()); len(ms) != 2 {
			t.Fatalf("with the sandbox started, the volume has %+v", ms)
		}
		if i%10 == 0 {
			p.Start(simnode.ContainerOptions{})
			p.MustAnswer(grant.StateReady, []string{"new", "u1"}, nil)
			must(t, p.Ctr.Stop())
		}
		must(t, pause.Stop())
		n.API.Delete(p.UID)
		p.Pass()
		tearDown(t, p)
		if now := portrait(t, dir); now != before {
			t.Fatalf("after %d walks:\n%swas\n%s", i+1, now, before)
		}
	}
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// Without this, the test above would show nothing.
func TestAWalkAcrossAPublicationRuinsAHomeFolder(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	dir := privateHome(t, n, "home/users/u1")
	before := portrait(t, dir)
	p := n.RunningPod("pod")
	p.Grant(home("home/users/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	_ = p.ChownWalk(fsGroup) // it fails at the read-only publication and goes on
	if portrait(t, dir) == before {
		t.Error("the walk changed nothing")
	}
}

func TestKubeletsTeardownIsRefusedWhileGrantsStandAndSucceedsAfterTheRelease(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	dir := privateHome(t, n, "home/users/u1")
	before := portrait(t, dir)
	p := n.RunningPod("pod")
	p.Grant(home("home/users/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	n.StopAgent()
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	for range 20 {
		how, err := p.TearDownVolume()
		if how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
			t.Fatalf("kubelet took the branch %q: %v", how, err)
		}
	}
	if now := portrait(t, dir); now != before {
		t.Fatalf("the home is\n%swas\n%s", now, before)
	}
	n.Restart()
	if !n.API.Queued(p.UID) {
		t.Error("the returned agent asks for no pass over the Pod")
	}
	p.Pass()
	if n.Metric("released_total") != 1 || n.Metric("leaked_total") != 0 {
		t.Errorf("released %v, leaked %v", n.Metric("released_total"), n.Metric("leaked_total"))
	}
	clean(t, n, p)
	if now := portrait(t, dir); now != before {
		t.Errorf("the home is\n%swas\n%s", now, before)
	}
}

// An empty publication is in nobody's way: kubelet's first attempt takes it,
// and the agent finds nothing to be wrong. Not in parallel: see tearDown.
func TestKubeletsFirstTeardownWithoutGrantsTakesThePublicationAndItsSecondItsOwn(t *testing.T) {
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/1", "t"))
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
	p.Grant()
	p.MustAnswer(grant.StateReady, nil, nil)
	n.StopAgent()
	must(t, p.Ctr.Stop())
	if how, err := p.TearDownVolume(); how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("the first attempt took the branch %q: %v", how, err)
	}
	if ms := standing(t, p.VolumePath()); len(ms) != 1 {
		t.Fatalf("on the volume: %+v", ms)
	}
	tearDown(t, p)
	n.API.Delete(p.UID)
	n.Restart()
	p.Pass()
	clean(t, n, p)
}

// kubelet goes on while the agent works: it must never take what the agent has
// not yet emptied, nor keep the agent from emptying it.
func TestAReleaseAndKubeletsTeardownMayRace(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	dir := privateHome(t, n, "home/users/u1")
	before := portrait(t, dir)
	for i := range 20 {
		p := n.RunningPod(fmt.Sprintf("pod-%d", i))
		p.Grant(home("home/users/u1", "u1"), dataset("home/users/u1", "u2"))
		p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
		must(t, p.Ctr.Stop())
		n.API.Delete(p.UID)
		done := make(chan error, 1)
		go func() {
			for t.Context().Err() == nil {
				_, err := p.TearDownVolume()
				if !errors.Is(err, unix.EBUSY) {
					done <- err
					return
				}
			}
		}()
		// Its unmounts are busy while kubelet looks at the same moment.
		for late := time.Now().Add(patience); ; {
			_, err := n.Agent.Reconcile(t.Context(), p.UID)
			if err == nil {
				break
			}
			if time.Now().After(late) {
				t.Fatalf("it is not released: %v", err)
			}
		}
		must(t, <-done)
		absent(t, p.VolumePath())
		if now := portrait(t, dir); now != before {
			t.Fatalf("the home is\n%swas\n%s", now, before)
		}
	}
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
