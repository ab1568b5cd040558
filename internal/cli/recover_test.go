package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// node is a node whose agent works in this boot, as the command does.
func node(t *testing.T) *agenttest.Node {
	t.Helper()
	n := agenttest.NewNode(t)
	boot, err := agentcmd.BootID("/proc")
	must(t, err)
	n.BootID = boot
	n.Restart()
	return n
}

// granted is a running Pod with a home folder, that has a file in it, and a dataset.
func granted(t *testing.T, n *agenttest.Node, name string) *agenttest.Pod {
	t.Helper()
	uid := fmt.Sprintf("5f0c3f1e-2d6a-4c55-9e0e-%012x", rand.Uint64N(1<<48))
	n.API.Put(plan.Pod{
		UID: uid, Namespace: "sandboxes", Name: name, Node: agenttest.NodeName, HostUsers: true,
		Volume: &plan.Volume{Memory: true},
		Uses:   []plan.Use{{Container: "runtime", Path: simnode.DefaultMountPath, HostToContainer: true}},
	})
	p := &agenttest.Pod{Pod: n.Node.NewPod(uid), N: n}
	must(t, p.SetUpVolume(false))
	p.Start(simnode.ContainerOptions{})
	n.Home("home/"+name, 0o777, "notes")
	n.Home("datasets/"+name, 0o755, "notes")
	p.Grant(
		grant.Mount{Kind: grant.KindFiles, Source: "home/" + name, Target: "home", AllowExec: true},
		grant.Mount{Kind: grant.KindSharedFolder, Source: "datasets/" + name, Target: "data", Mode: grant.ReadOnly},
	)
	p.MustAnswer(grant.StateReady, []string{"data", "home"}, nil)
	return p
}

// die ends the agent, then the Pod's containers, then the Pod, and kubelet cannot
// take the volume away.
func die(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
	t.Helper()
	n.StopAgent()
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	if how, err := p.TearDownVolume(); how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("kubelet took the branch %q: %v", how, err)
	}
}

func recovers(t *testing.T, n *agenttest.Node, args ...string) ran {
	t.Helper()
	return run(t, append([]string{"recover", "--root", n.Root, "--kubelet-dir", n.Kubelet}, args...)...)
}

func TestRecoverSetsAStuckPodFreeAndMayBeRepeated(t *testing.T) {
	n := node(t)
	p := granted(t, n, "ada")
	other := granted(t, n, "bob")
	die(t, n, p)
	got := recovers(t, n, "sandboxes/ada")
	want := fmt.Sprintf(`MOUNT   RESULT       WHAT
data    taken down   datasets/ada
home    taken down   home/ada
Nothing of sandboxes/ada (%s) is mounted on this node. kubelet removes the volume at its next attempt.
`, p.UID)
	if got.status != 0 || got.out != want || got.err != "" {
		t.Errorf("%+v, want\n%s", got, want)
	}
	if how, err := p.TearDownVolume(); how != "tmpfs" || err != nil {
		t.Errorf("kubelet took the branch %q: %v", how, err)
	}
	if _, err := os.Lstat(p.VolumePath()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the volume is there: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(n.Claim, "home/ada/notes")); err != nil || string(b) != "notes\n" {
		t.Errorf("the home folder has %q, %v", b, err)
	}

	// By its uid there is nothing left to do, which is what was wanted. A name that
	// is not known may be mistyped.
	got = recovers(t, n, p.UID, "-o", "json")
	var doc struct {
		UID  string
		Done bool
	}
	if err := json.Unmarshal([]byte(got.out), &doc); err != nil || got.status != 0 || !doc.Done || doc.UID != p.UID {
		t.Errorf("%+v, %v", got, err)
	}
	got = recovers(t, n, "ada")
	if got.status != 1 || got.out != "" || got.err != fmt.Sprintf("error: \"ada\": nothing of this Pod is on this node\nhint: known here: sandboxes/bob (%s); a Pod that was recovered is known by its uid alone\n", other.UID) {
		t.Errorf("%+v", got)
	}

	// The other Pod has lost nothing, and the next agent goes on with it.
	n.Restart()
	other.MustAnswer(grant.StateReady, []string{"data", "home"}, nil)
	if b, err := other.Ctr.ReadFile(simnode.DefaultMountPath + "/home/notes"); err != nil || string(b) != "notes\n" {
		t.Errorf("the other Pod reads %q, %v", b, err)
	}
}

func TestRecoverLeavesANodeToItsAgentWhileThatRuns(t *testing.T) {
	n := node(t)
	p := granted(t, n, "ada")
	got := recovers(t, n, p.UID, "--force")
	if got.status != 1 || !strings.HasPrefix(got.err, "error: the agent of this node is running: ") || !strings.Contains(got.err, "\nhint: leave it to the agent") {
		t.Errorf("%+v", got)
	}
	p.MustHave(grant.StateReady, []string{"data", "home"}, nil)
	if _, err := p.Ctr.ReadFile(simnode.DefaultMountPath + "/home/notes"); err != nil {
		t.Error(err)
	}
}

func TestRecoverTakesNothingFromARunningPodButByForce(t *testing.T) {
	n := node(t)
	p := granted(t, n, "ada")
	h, err := p.Ctr.Hold(simnode.DefaultMountPath + "/home/notes")
	must(t, err)
	n.StopAgent()
	got := recovers(t, n, "ada")
	if got.status != 1 || got.out != "" || !strings.Contains(got.err, "processes of the Pod run") || !strings.Contains(got.err, "hint: end them through the container runtime") {
		t.Errorf("%+v", got)
	}
	if _, err := p.Ctr.ReadFile(simnode.DefaultMountPath + "/data/notes"); err != nil {
		t.Error(err)
	}
	got = recovers(t, n, "ada", "--force", "-o", "json", "--verbose")
	var doc struct {
		Taken []struct{ Target string }
		Held  []struct{ Target, Why string }
		Left  []string
		Done  bool
	}
	if err := json.Unmarshal([]byte(got.out), &doc); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	if got.status != 1 || len(doc.Taken) != 2 || len(doc.Held) != 1 || doc.Held[0].Target != "home" || len(doc.Left) != 0 || doc.Done {
		t.Errorf("%+v, %+v", got, doc)
	}
	if !strings.Contains(got.err, "error: sandboxes/ada ("+p.UID+"): 1 of its mounts may still be held by a process\n") || !strings.Contains(got.err, "level=ERROR") {
		t.Errorf("it says\n%s", got.err)
	}
	must(t, p.Ctr.Drop(h))
	must(t, p.Ctr.Stop())
	if got := recovers(t, n, "ada"); got.status != 0 {
		t.Errorf("nobody holds it any more: %+v", got)
	}
	if how, err := p.TearDownVolume(); how != "tmpfs" || err != nil {
		t.Errorf("kubelet took the branch %q: %v", how, err)
	}
}

func TestRecoverNamesWhatKeepsAVolumeBusy(t *testing.T) {
	n := node(t)
	p := granted(t, n, "ada")
	die(t, n, p)
	foreign := filepath.Join(p.VolumePath(), "home", "foreign")
	must(t, os.Mkdir(foreign, 0o755))
	must(t, unix.Mount("other", foreign, "tmpfs", 0, ""))
	got := recovers(t, n, "ada")
	if got.status != 1 || !strings.Contains(got.out, foreign+" ") || !strings.Contains(got.out, "still mounted") ||
		!strings.Contains(got.err, "something is still mounted") || !strings.Contains(got.err, "hint: end what keeps it busy") {
		t.Errorf("%+v", got)
	}
	must(t, unix.Unmount(foreign, 0))
	if got := recovers(t, n, "ada"); got.status != 0 {
		t.Errorf("%+v", got)
	}
	if how, err := p.TearDownVolume(); how != "tmpfs" || err != nil {
		t.Errorf("kubelet took the branch %q: %v", how, err)
	}
}

func TestRecoverWantsToKnowWhichPodAndWhere(t *testing.T) {
	n := node(t)
	one, two := granted(t, n, "ada"), granted(t, n, "ada")
	die(t, n, one)
	got := recovers(t, n, "ada")
	if got.status != 1 || !strings.Contains(got.err, `error: "ada" is the name of 2 Pods`) || !strings.Contains(got.err, one.UID) || !strings.Contains(got.err, two.UID) {
		t.Errorf("%+v", got)
	}
	if got := recovers(t, n, one.UID); got.status != 0 {
		t.Errorf("%+v", got)
	}
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"a folder without a journal":   {[]string{"recover", "ada", "--root", n.Dir + "/mistyped"}, 1, "no agent has kept a journal here"},
		"a folder that is none":        {[]string{"recover", "ada", "--root", "relative"}, 2, "want an absolute path"},
		"a kubelet folder that is odd": {[]string{"recover", "ada", "--root", n.Root, "--kubelet-dir", "/"}, 2, "not the whole filesystem"},
	} {
		got := run(t, c.args...)
		if got.status != c.status || !strings.Contains(got.err, c.says) || !strings.Contains(got.err, "\nhint: ") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, err := os.Lstat(n.Dir + "/mistyped"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder was made: %v", err)
	}
}
