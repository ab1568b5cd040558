package agent_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func openOffline(t testing.TB, n *agenttest.Node) (*agent.Offline, error) {
	t.Helper()
	return openOfflineAt(t, n, n.Root)
}

func openOfflineAt(t testing.TB, n *agenttest.Node, root string) (*agent.Offline, error) {
	t.Helper()
	return agent.OpenOffline(t.Context(), agent.Config{
		Policy: plan.Policy{VolumeName: n.Policy.VolumeName}, Root: root, Kubelet: n.Kubelet, BootID: n.BootID,
		Table: n.Table, Processes: n.Processes, Budget: &deadline.Budget{}, Clock: n.Clock, Log: slog.New(slog.DiscardHandler),
	})
}

// offline opens what the dead agent has left, until the test ends or close is
// called.
func offline(t testing.TB, n *agenttest.Node) (o *agent.Offline, done func()) {
	t.Helper()
	o, err := openOffline(t, n)
	must(t, err)
	open := true
	done = func() {
		if open {
			o.Close()
		}
		open = false
	}
	t.Cleanup(done)
	return o, done
}

// stuck is a Pod that is gone, whose grants still stand, and whose agent is dead.
func stuck(t testing.TB, n *agenttest.Node) *agenttest.Pod {
	t.Helper()
	p := n.RunningPod("pod")
	p.Grant(home("home/users/u1", "u1"), dataset("home/users/u1", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	n.StopAgent()
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	if how, err := p.TearDownVolume(); how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("kubelet took the branch %q: %v", how, err)
	}
	return p
}

func targets(ms []nodeview.Mount) (out []string) {
	for _, m := range ms {
		out = append(out, m.Target)
	}
	slices.Sort(out)
	return out
}

func TestRecoveringAStuckPodWithoutAnAgentSetsItFree(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, n *agenttest.Node, p *agenttest.Pod){
		"as the agent left it":    func(*testing.T, *agenttest.Node, *agenttest.Pod) {},
		"with its record lost":    func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) { must(t, os.Remove(recordOf(n, p))) },
		"with its record cut off": func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) { must(t, os.Truncate(recordOf(n, p), 20)) },
		"with its tree detached": func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Unmount(treeOf(n, p), unix.MNT_DETACH))
		},
		"with nothing but a publication": func(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
			must(t, unix.Unmount(filepath.Join(treeOf(n, p), "u1"), 0))
			must(t, unix.Unmount(filepath.Join(treeOf(n, p), "u2"), 0))
			must(t, unix.Unmount(treeOf(n, p), unix.MNT_DETACH))
			must(t, os.Remove(treeOf(n, p)))
			must(t, os.Remove(recordOf(n, p)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := agenttest.NewNode(t)
			dir := privateHome(t, n, "home/users/u1")
			before := portrait(t, dir)
			p := stuck(t, n)
			damage(t, n, p)
			o, done := offline(t, n)
			if pods := o.Pods(); len(pods) != 1 || pods[0].UID != p.UID {
				t.Fatalf("known: %v", pods)
			}
			rec, err := o.Recover(t.Context(), p.UID, false)
			if err != nil || len(rec.Held) != 0 || len(rec.Left) != 0 {
				t.Errorf("%+v, %v", rec, err)
			}
			if strings.HasPrefix(name, "as ") && (rec.Pod.Name != "pod" || !slices.Equal(targets(rec.Taken), []string{"u1", "u2"})) {
				t.Errorf("%+v", rec)
			}
			if _, err := o.Recover(t.Context(), p.UID, false); !errors.Is(err, agent.ErrUnknown) {
				t.Errorf("a second time: %v", err)
			}
			done()
			clean(t, n, p)
			if now := portrait(t, dir); now != before {
				t.Errorf("the home is\n%swas\n%s", now, before)
			}
			n.Restart() // the agent that returns finds nothing to do
			if views := n.Agent.Views(); len(views) != 0 {
				t.Errorf("the agent knows %+v", views)
			}
		})
	}
}

func recordOf(n *agenttest.Node, p *agenttest.Pod) string {
	return filepath.Join(n.Root, "journal", p.UID+".json")
}

func TestRecoveringAndAnAgentExcludeEachOther(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	_, err := openOffline(t, n)
	wants(t, "while an agent runs", err, journal.ErrLocked)
	n.StopAgent()
	_, done := offline(t, n)
	_, err = agent.New(t.Context(), agent.Config{Root: n.Root, Kubelet: n.Kubelet, Table: n.Table, API: n.API})
	wants(t, "an agent while Pods are recovered", err, journal.ErrLocked)
	done()
	n.Restart()
}

func TestARunningPodIsRecoveredOnlyByForce(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	other := n.RunningPod("other")
	p.Grant(home("h/1", "t"), home("h/2", "used"))
	p.MustAnswer(grant.StateReady, []string{"t", "used"}, nil)
	other.Grant(home("h/3", "o"))
	other.MustAnswer(grant.StateReady, []string{"o"}, nil)
	must(t, p.Ctr.WriteFile(in+"used/file", []byte("text"), 0o644))
	h, err := p.Ctr.Hold(in + "used/file")
	must(t, err)
	n.StopAgent()
	o, _ := offline(t, n)
	rec, err := o.Recover(t.Context(), p.UID, false)
	wants(t, "a running Pod", err, agent.ErrInUse)
	if len(rec.Taken) != 0 || len(seenBy(t, p.Ctr)) != 2 {
		t.Errorf("%+v, and the container sees %v", rec, seenBy(t, p.Ctr))
	}
	rec, err = o.Recover(t.Context(), p.UID, true)
	if err != nil || !slices.Equal(targets(rec.Taken), []string{"t", "used"}) || len(rec.Left) != 0 {
		t.Errorf("by force: %+v, %v", rec, err)
	}
	if len(rec.Held) != 1 || rec.Held[0].Target != "used" || !strings.Contains(rec.Held[0].Why, "process") {
		t.Errorf("held: %+v", rec.Held)
	}
	if seen := seenBy(t, p.Ctr); len(seen) != 0 {
		t.Errorf("the container sees %v", seen)
	}
	if seen := seenBy(t, other.Ctr); len(seen) != 1 {
		t.Errorf("the other Pod sees %v", seen)
	}
	// What is held stays known until nobody has it any more.
	must(t, p.Ctr.Drop(h))
	must(t, p.Ctr.Stop())
	if rec, err = o.Recover(t.Context(), p.UID, false); err != nil || len(rec.Held) != 0 {
		t.Errorf("after its end: %+v, %v", rec, err)
	}
	absent(t, recordOf(n, p))
	tearDown(t, p)
}

func TestWhoCannotSeeTheProcessesOfAPodDoesNotTakeItForEnded(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/1", "t"))
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
	n.StopAgent()
	lock := filepath.Join(n.Root, "journal", "lock")
	for _, word := range []string{"pid:[1]", ""} {
		must(t, os.WriteFile(lock, []byte(word), 0o600))
		o, done := offline(t, n)
		if _, err := o.Recover(t.Context(), p.UID, false); !errors.Is(err, agent.ErrUnseen) || errors.Is(err, agent.ErrInUse) {
			t.Errorf("signed %q: %v", word, err)
		}
		done()
	}
	if len(seenBy(t, p.Ctr)) != 1 {
		t.Errorf("the container sees %v", seenBy(t, p.Ctr))
	}
	n.Processes = blind{n.Processes}
	n.Restart()
	n.StopAgent()
	o, _ := offline(t, n)
	_, err := o.Recover(t.Context(), p.UID, false)
	wants(t, "a /proc that cannot be read", err, agent.ErrUnseen)
	if rec, err := o.Recover(t.Context(), p.UID, true); err != nil || len(rec.Taken) != 1 {
		t.Errorf("by force: %+v, %v", rec, err)
	}
}

// blind cannot tell whether a Pod has processes.
type blind struct{ agent.Processes }

func (blind) Has(string) (bool, error) { return false, procs.ErrCannotTell }

// A mount of somebody else's is not the agent's to take. It is told of.
func TestWhatKeepsAVolumeBusyIsNamed(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Home("home/users/u1", 0o755)
	p := stuck(t, n)
	foreign := filepath.Join(p.VolumePath(), "u1", "foreign")
	must(t, os.Mkdir(foreign, 0o755))
	must(t, unix.Mount("other", foreign, "tmpfs", 0, ""))
	o, _ := offline(t, n)
	rec, err := o.Recover(t.Context(), p.UID, false)
	if err == nil && len(rec.Left) == 0 {
		t.Fatalf("nothing is in the way: %+v", rec)
	}
	if !slices.ContainsFunc(rec.Left, func(place string) bool { return strings.HasPrefix(place, p.VolumePath()) }) {
		t.Errorf("%+v, %v", rec, err)
	}
	must(t, unix.Unmount(foreign, 0))
	if rec, err = o.Recover(t.Context(), p.UID, false); err != nil || len(rec.Left) != 0 {
		t.Errorf("without it: %+v, %v", rec, err)
	}
	tearDown(t, p)
}

func TestRecoveringLooksOnlyWhereAnAgentWasAndWhereItReachesTheNode(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.StopAgent()
	o, done := offline(t, n)
	if _, err := o.Recover(t.Context(), "5f0c3f1e-2d6a-4c55-9e0e-6a0f6c1d7b42", false); !errors.Is(err, agent.ErrUnknown) {
		t.Errorf("an unknown Pod: %v", err)
	}
	done()
	mistyped := filepath.Join(n.Dir, "mistyped")
	_, err := openOfflineAt(t, n, mistyped)
	wants(t, "a folder without a journal", err, agent.ErrNoAgent)
	wants(t, "a folder without a journal", err, fs.ErrNotExist)
	absent(t, mistyped)

	private := agenttest.NewNodeWith(t, simnode.Options{Private: true})
	private.StopAgent()
	_, err = openOffline(t, private)
	wants(t, "a private kubelet directory", err, agent.ErrNotShared)
}
