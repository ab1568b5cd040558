package agent_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func (n *userspaceNode) toldOf() *toldEvents {
	events := &toldEvents{}
	n.Events = events
	n.Restart()
	return events
}

// Nothing can be lost of a bucket that nobody could write to.
func TestNothingIsLostOfAReadOnlyMount(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	events := n.toldOf()
	p, _ := n.running("bucket", grant.ReadOnly)
	stopped := n.keeper.PID(p.UID + "/data")
	pause(t, stopped)
	p.Grant()
	p.Answered(isReady)
	must(t, unix.Kill(stopped, unix.SIGKILL))
	within(t, "every process has ended", func() bool { return len(n.keeper.Children()) == 0 })
	time.Sleep(2 * time.Second)
	if text := events.String(); strings.Contains(text, agent.ReasonLost) {
		t.Errorf("events: %s", text)
	}
}

func TestADeletedPodIsToldOfItsLoss(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt", unstorableName)
	events := n.toldOf()
	p, c := n.running("bucket", grant.ReadWrite)
	must(t, c.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	within(t, "it is told", func() bool { return strings.Contains(events.String(), agent.ReasonLost) })
	t.Log(events.String())
}

// tended is a keeper whose Tend comes between the end of a process and the question how
// it ended.
type tended struct {
	delivery.Keeper
	tend func()
}

func (w *tended) Child(ctx context.Context, id string) (keeper.Child, error) {
	if w.tend != nil {
		w.tend()
	}
	return w.Keeper.Child(ctx, id)
}

func TestASweepThatForgetsAProcessFirstLosesNothing(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	w := &tended{Keeper: n.Keeper}
	n.Keeper = w
	events := n.toldOf()
	p := n.RunningPod("pod")
	p.Start(simnode.ContainerOptions{})
	p.Grant(bucketGrant("bucket", "data", grant.ReadWrite))
	p.Answered(isReady)
	w.tend = func() {
		must(t, n.Agent.Sweep(t.Context()))
		time.Sleep(500 * time.Millisecond) // Tend is in the background
	}
	p.Grant()
	p.Answered(isReady)
	absent(t, filepath.Join(treeOf(n.Node, p), "data"))
	within(t, "every process has ended", func() bool { return len(n.keeper.Children()) == 0 })
	time.Sleep(3 * time.Second)
	if text := events.String(); strings.Contains(text, agent.ReasonLost) {
		t.Errorf("events: %s", text)
	}
}
