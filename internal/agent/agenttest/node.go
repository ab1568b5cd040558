package agenttest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// NodeName is the node of every test.
const NodeName = "node-a"

// Node is a node in namespaces with an agent on the real kernel.
type Node struct {
	*simnode.Node
	T     testing.TB
	API   *API
	Table *mnt.Kernel
	Agent *agent.Agent
	// Clock and Bound may be changed before Restart.
	Clock  clock.Clock
	BootID string
	Policy plan.Policy
	Bound  time.Duration
	// Processes looks through /proc, and Mounter is Table, unless they are
	// replaced before Restart.
	Processes agent.Processes
	Mounter   mnt.Table
	// NFS and those that follow are the agent's from the next Restart on.
	NFS delivery.NFS
	// HostMounts is the table of a node that does not have this one.
	HostMounts func() ([]mnt.Mount, error)
	Secrets    agent.Secrets
	Checkouts  func(ctx context.Context) (delivery.Checkouts, error)
	Keeper     delivery.Keeper
	Runners    map[grant.Kind]delivery.Runner
	Events     agent.Events
	// Metrics and Budget are the running agent's.
	Metrics *obs.Recorder
	Budget  *deadline.Budget

	salt string // in every uid: tests that run at once share /proc
	stop context.CancelFunc
}

// NewNode makes the node and starts an agent on it. Both go with the test, which
// fails when a mount is left.
func NewNode(t testing.TB) *Node {
	t.Helper()
	return NewNodeWith(t, simnode.Options{})
}

// NewNodeWith is NewNode for a node of another kind.
func NewNodeWith(t testing.TB, o simnode.Options) *Node {
	t.Helper()
	sim, err := simnode.New(o)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{
		Node: sim, T: t, API: NewAPI(), Table: &mnt.Kernel{}, Clock: clock.RealClock{},
		BootID: "boot-1", Policy: agent.DefaultPolicy(NodeName), Bound: 5 * time.Second,
		Processes: enrolled{procs.New("/proc"), sim}, salt: fmt.Sprintf("-%08x", rand.Uint32()),
	}
	n.Mounter = n.Table
	t.Cleanup(func() {
		n.StopAgent()
		if err := sim.Close(); err != nil {
			t.Errorf("closing the node: %v", err)
		}
	})
	n.Restart()
	return n
}

// StopAgent ends the agent as its death would: every mount is left standing.
func (n *Node) StopAgent() {
	if n.stop != nil {
		n.stop()
		n.Agent.Close()
		n.stop = nil
	}
}

// Restart replaces the agent by a new one, as a rollout does: nothing but the
// journal and the mount table is passed on.
func (n *Node) Restart() {
	n.T.Helper()
	n.StopAgent()
	ctx, cancel := context.WithCancel(context.Background())
	n.Metrics, n.Budget = obs.NewRecorder("test", "test"), &deadline.Budget{}
	a, err := agent.New(ctx, agent.Config{
		Claim:  agent.Claim{Path: n.Claim, Owner: beneath.Owner{UID: 1000, GID: 100}, Bound: n.Bound},
		Policy: n.Policy, Root: n.Root, Kubelet: n.Kubelet, BootID: n.BootID,
		Table: n.Mounter, Processes: n.Processes, API: n.API, Budget: n.Budget, NFS: n.NFS, HostMounts: n.HostMounts, Secrets: n.Secrets, Checkouts: n.Checkouts,
		Keeper: n.Keeper, Runners: n.Runners, Events: n.Events,
		Metrics: n.Metrics, Clock: n.Clock, Log: slog.New(slog.NewTextHandler(logWriter{n.T}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		cancel()
		n.T.Fatal(err)
	}
	n.Agent, n.stop = a, cancel
	uids, err := n.Agent.Start(ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	for _, uid := range uids {
		n.API.Enqueue(uid)
	}
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// Pass makes one pass over the Pod and fails the test on an error.
func (n *Node) Pass(uid string) time.Duration {
	n.T.Helper()
	after, err := n.Agent.Reconcile(n.T.Context(), uid)
	if err != nil {
		n.T.Fatalf("pass over %s: %v", uid, err)
	}
	return after
}

// Pod is a Pod on the node, in the API and in namespaces.
type Pod struct {
	*simnode.Pod
	N   *Node
	Ctr *simnode.Container
}

// NewPod puts a pooled Pod into the API: nothing of it is on the node yet. Its
// uid begins with name and is nobody else's.
func (n *Node) NewPod(name string) *Pod {
	uid := name + n.salt
	n.API.Put(plan.Pod{
		UID: uid, Namespace: "sandboxes", Name: name, Node: NodeName, HostUsers: true,
		Volume: &plan.Volume{Memory: true},
		Uses:   []plan.Use{{Container: "runtime", Path: simnode.DefaultMountPath, HostToContainer: true}},
	})
	return &Pod{Pod: n.Node.NewPod(uid), N: n}
}

// RunningPod is a pooled Pod whose container runs.
func (n *Node) RunningPod(name string) *Pod {
	n.T.Helper()
	p := n.NewPod(name)
	if err := p.SetUpVolume(false); err != nil {
		n.T.Fatal(err)
	}
	p.Start(simnode.ContainerOptions{})
	return p
}

// Start starts the Pod's container, or starts it again, and tells the API.
func (p *Pod) Start(o simnode.ContainerOptions) *simnode.Container {
	p.N.T.Helper()
	c, err := p.StartContainer(o)
	if err != nil {
		p.N.T.Fatal(err)
	}
	p.Ctr = c
	p.N.API.Change(p.UID, func(api *plan.Pod) { api.Uses[0].ID = c.ID() })
	return c
}

// Grant writes the Pod's grant annotation and removes the old answer, as a
// writer does.
func (p *Pod) Grant(mounts ...grant.Mount) {
	p.N.T.Helper()
	text, err := grant.Encode(mounts)
	if err != nil {
		p.N.T.Fatal(err)
	}
	p.Annotate(&text)
}

// Annotate sets the grant annotation to any text, or removes it.
func (p *Pod) Annotate(text *string) {
	p.N.API.Change(p.UID, func(api *plan.Pod) { api.Grant, api.Ready = text, nil })
}

// Status is the Pod's answer.
func (p *Pod) Status() *grant.Status { return p.N.API.Status(p.N.T, p.UID) }

// Pass makes one pass over the Pod.
func (p *Pod) Pass() time.Duration { p.N.T.Helper(); return p.N.Pass(p.UID) }

// Told makes passes when somebody asks for them, and at no other time, until the Pod
// has an answer that does: what it says was noticed, and not come upon.
func (p *Pod) Told(does func(st *grant.Status) bool) *grant.Status {
	n := p.N
	n.T.Helper()
	for late := time.After(time.Minute); ; {
		enqueued := n.API.Enqueued()
		if n.API.Queued(p.UID) {
			p.Pass()
			if st := p.Status(); st != nil && does(st) {
				return st
			}
			continue
		}
		select {
		case <-enqueued:
		case <-late:
			n.T.Fatalf("nobody asks for a pass that changes the answer %+v", p.Status())
		}
	}
}

// Answered makes passes, when the API and the passes ask for them, until the Pod has
// an answer that does.
func (p *Pod) Answered(does func(st *grant.Status) bool) *grant.Status {
	n := p.N
	n.T.Helper()
	late := time.After(time.Minute)
	for {
		enqueued := n.API.Enqueued()
		after := p.Pass()
		if st := p.Status(); st != nil && does(st) {
			return st
		}
		if n.API.Queued(p.UID) {
			continue
		}
		if after == 0 {
			after = time.Minute
		}
		timer := time.NewTimer(after)
		select {
		case <-enqueued:
		case <-timer.C:
		case <-late:
			n.T.Fatalf("the answer is %+v", p.Status())
		}
		timer.Stop()
	}
}

// StartNamed starts another container of the Pod and tells the API.
func (p *Pod) StartNamed(name string, o simnode.ContainerOptions) *simnode.Container {
	p.N.T.Helper()
	c, err := p.StartContainer(o)
	if err != nil {
		p.N.T.Fatal(err)
	}
	at := o.MountPath
	if at == "" {
		at = simnode.DefaultMountPath
	}
	p.N.API.Change(p.UID, func(api *plan.Pod) {
		api.Uses = append(api.Uses, plan.Use{Container: name, ID: c.ID(), Path: at, HostToContainer: true})
	})
	return c
}

// MustAnswer makes a pass and holds the answer against what is wanted: the
// state, what is mounted, and the codes by target.
func (p *Pod) MustAnswer(state grant.State, mounted []string, failed map[string]grant.Code) *grant.Status {
	p.N.T.Helper()
	p.Pass()
	return p.MustHave(state, mounted, failed)
}

// MustHave holds the answer that the Pod has against what is wanted.
func (p *Pod) MustHave(state grant.State, mounted []string, failed map[string]grant.Code) *grant.Status {
	t := p.N.T
	t.Helper()
	st := p.Status()
	if st == nil {
		t.Fatal("there is no answer")
	}
	if st.State != state || !slices.Equal(st.Mounted, mounted) || !maps.Equal(st.Failed, failed) {
		t.Fatalf("answer %s %v %v %v, want %s %v %v", st.State, st.Mounted, st.Failed, st.Messages, state, mounted, failed)
	}
	return st
}

// Home makes a folder on the claim with an owner and files.
func (n *Node) Home(rel string, mode os.FileMode, files ...string) string {
	n.T.Helper()
	dir := filepath.Join(n.Claim, rel)
	err := os.MkdirAll(dir, 0o755)
	for _, f := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, f), []byte(f+"\n"), 0o644))
	}
	if err := errors.Join(err, os.Chmod(dir, mode)); err != nil {
		n.T.Fatal(err)
	}
	return dir
}

// Left are the mounts below the node's own folders that are not the node's.
func (n *Node) Left() []string {
	n.T.Helper()
	mounts, err := n.Table.List()
	if err != nil {
		n.T.Fatal(err)
	}
	var left []string
	for _, m := range mounts {
		if mnt.Within(n.Root, m.Point) && m.Point != n.Root {
			left = append(left, m.Point)
		}
	}
	return left
}

// Metric is the sum of all series of a metric of the running agent, by its name
// without the common prefix.
func (n *Node) Metric(name string) float64 {
	n.T.Helper()
	series := n.series(name)
	if series == nil {
		n.T.Fatalf("there is no metric %s", name)
	}
	sum := 0.0
	for _, m := range series {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum
}

// Observed is how often a histogram of the running agent was told a value, and the sum
// of them, over all series: none, where nothing was told yet. The name is without the
// common prefix.
func (n *Node) Observed(name string) (count uint64, sum float64) {
	n.T.Helper()
	for _, m := range n.series(name) {
		count += m.GetHistogram().GetSampleCount()
		sum += m.GetHistogram().GetSampleSum()
	}
	return count, sum
}

func (n *Node) series(name string) []*dto.Metric {
	n.T.Helper()
	families, err := n.Metrics.Gatherer().Gather()
	if err != nil {
		n.T.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "datalayer_mount_gateway_"+name {
			return f.GetMetric()
		}
	}
	return nil
}
