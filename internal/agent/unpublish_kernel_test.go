package agent_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// fasterKubelet is a table on which the agent's first unmount of a volume finds
// it busy, and kubelet takes the publication off before the second.
type fasterKubelet struct {
	mnt.Table
	volume string
	came   bool
}

func (k *fasterKubelet) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	if name != grant.DefaultVolumeName || k.came {
		return k.Table.Unmount(dir, name, lazy)
	}
	k.came = true
	if err := unix.Unmount(k.volume, 0); err != nil {
		return err
	}
	return mnt.ErrBusy
}

func TestAnUnmountThatIsTriedAgainIsNotOfKubeletsOwnVolume(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Home("h", 0o755)
	p := n.RunningPod("pod")
	p.Grant(home("h", "u"))
	p.MustAnswer(grant.StateReady, []string{"u"}, nil)
	kubelet := &fasterKubelet{Table: n.Table, volume: p.VolumePath()}
	n.Mounter = kubelet
	n.Restart()
	p.Annotate(nil)
	p.Pass()
	host, err := n.Mounts()
	must(t, err)
	left := 0
	for _, m := range host {
		if m.Point == p.VolumePath() {
			left++
		}
	}
	if !kubelet.came || left != 1 {
		t.Errorf("kubelet came: %v; %d mounts are on the volume, and its own is one", kubelet.came, left)
	}
}
