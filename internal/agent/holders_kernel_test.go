package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/procs"
)

// editJournal changes a Pod's record while no agent runs.
func editJournal(t testing.TB, n *agenttest.Node, p *agenttest.Pod, edit func(j *journal.Pod)) {
	t.Helper()
	file := filepath.Join(n.Root, "journal", p.UID+".json")
	b, err := os.ReadFile(file)
	must(t, err)
	var j journal.Pod
	must(t, json.Unmarshal(b, &j))
	edit(&j)
	b, err = json.Marshal(j)
	must(t, err)
	must(t, os.WriteFile(file, b, 0o600))
}

// The kernel gives the ids of mounts that have gone to new ones.
func TestAMountThatWasGivenTheIDOfAHeldOneIsNotTakenForIt(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	h, err := p.Ctr.Hold(in + "u1/f")
	must(t, err)
	p.Grant(home("h/u2", "u2"))
	p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
	must(t, p.Ctr.Drop(h))
	_, err = p.Ctr.Hold(in + "u2/f")
	must(t, err)
	id := seenBy(t, p.Ctr)["u2"][0].ID
	n.StopAgent()
	editJournal(t, n, p, func(j *journal.Pod) {
		for ns := range j.Held[0].IDs {
			j.Held[0].IDs[ns] = []int{id}
		}
	})
	n.Restart()
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
}

// blinkered cannot look into processes while it is on.
type blinkered struct {
	agent.Processes
	on atomic.Bool
}

func (b *blinkered) Tables(ctx context.Context, ps []procs.Process) ([]procs.Table, error) {
	if b.on.Load() {
		return nil, procs.ErrCannotTell
	}
	return b.Processes.Tables(ctx, ps)
}

func TestWhatCouldNotBeLookedAtIsNeverCalledRevoked(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	b := &blinkered{Processes: n.Processes}
	n.Processes = b
	n.Restart()
	p.Pass()
	_, err := p.Ctr.Hold(in + "u1/f")
	must(t, err)
	b.on.Store(true)
	p.Grant(home("h/u2", "u2"))
	p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
	// It can look again, but what it needed to know has gone with the mount.
	b.on.Store(false)
	p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
	must(t, p.Ctr.Stop())
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
}

// A file that was opened through a namespace of the user's own stays open when
// that has ended. Its mount is in no table then.
func TestAFileLeftOverFromANamespaceThatHasEndedIsFound(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	user := p.Ctr.AsUser(userID, groupID)
	must(t, p.Ctr.PinPrivate(in+"u1/f"))
	stat, err := p.Ctr.PinRead("/proc/self/stat")
	must(t, err)
	pid, _, _ := strings.Cut(string(stat), " ")
	h, err := user.Hold("/proc/" + pid + "/root" + in + "u1/f")
	must(t, err)
	must(t, p.Ctr.Unpin())
	mustHold(t, n, p, func() {
		if b, err := user.HeldRead(h); err != nil || len(b) == 0 {
			t.Errorf("the user reads %q, %v: this held nothing", b, err)
		}
		must(t, user.Drop(h))
	})
}

// Somebody on the node mounted something in the published copy of a grant. It is
// not the agent's to take, and keeps that copy; once it has gone, so does the rest.
func TestAGrantThatTheNodeHasMountedIntoIsRevokedOnceThatHasGone(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	foreign := filepath.Join(p.VolumePath(), "u1", "foreign")
	must(t, os.Mkdir(foreign, 0o755))
	must(t, unix.Mount("other", foreign, "tmpfs", 0, ""))
	p.Grant(home("h/u2", "u2"))
	p.Pass()
	before := n.Table.Lists()
	for range 2 {
		p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
		if n.Metric("leaked") != 1 {
			t.Errorf("leaked %v", n.Metric("leaked"))
		}
	}
	if lists := n.Table.Lists() - before; lists != 0 {
		t.Errorf("passes over a held mount read the mount table %d times", lists)
	}
	must(t, unix.Unmount(foreign, 0))
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	if seen := seenBy(t, p.Ctr); len(seen) != 1 {
		t.Errorf("the container sees %v", seen)
	}
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	clean(t, n, p)
}

// The same when the Pod goes: the volume is busy while the node's own mount
// stands, which nobody but the node may take, and is released once it has gone.
func TestAPodWithAVolumeThatTheNodeHasMountedIntoIsReleasedOnceThatHasGone(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	foreign := filepath.Join(p.VolumePath(), "u1", "foreign")
	must(t, os.Mkdir(foreign, 0o755))
	must(t, unix.Mount("other", foreign, "tmpfs", 0, ""))
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	if _, err := n.Agent.Reconcile(t.Context(), p.UID); !errors.Is(err, unix.EBUSY) {
		t.Errorf("released with a mount in the volume: %v", err)
	}
	must(t, unix.Unmount(foreign, 0))
	p.Pass()
	tearDown(t, p)
	clean(t, n, p)
}
