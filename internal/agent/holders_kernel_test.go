package agent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
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

func (b *blinkered) Copies(ps []procs.Process, dev mnt.Dev, root string) ([]procs.Copy, error) {
	if b.on.Load() {
		return nil, procs.ErrCannotTell
	}
	return b.Processes.Copies(ps, dev, root)
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
