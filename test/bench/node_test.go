package bench

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// nodeName is the node of every Pod that the agent serves.
const nodeName = "node-a"

// Targets and the file that every home has.
const (
	standing  = "standing" // stays, so that the Pod keeps its tree
	target    = "home"     // comes and goes
	witness   = "f"
	sandboxID = 1000
	groupID   = 100
)

// newNode makes a node. It goes with the benchmark, which fails when a mount is
// left.
func newNode(b *testing.B) *simnode.Node {
	b.Helper()
	n, err := simnode.New(simnode.Options{})
	must(b, err)
	b.Cleanup(func() {
		if err := n.Close(); err != nil {
			b.Errorf("closing the node: %v", err)
		}
	})
	return n
}

// home makes a folder of the claim and returns its name there.
func home(b *testing.B, n *simnode.Node, i int) string {
	b.Helper()
	rel := fmt.Sprintf("home/users/u%04d", i)
	dir := filepath.Join(n.Claim, rel)
	must(b, os.MkdirAll(dir, 0o755))
	must(b, os.WriteFile(filepath.Join(dir, witness), []byte("x"), 0o644))
	must(b, os.Chown(dir, sandboxID, groupID))
	return rel
}

// files is a grant of a home folder.
func files(source, target string) grant.Mount {
	return grant.Mount{Kind: grant.KindFiles, Source: source, Target: target, Mode: grant.ReadWrite, AllowExec: true}
}

// encode is the grant annotation of a set.
func encode(b *testing.B, mounts ...grant.Mount) string {
	b.Helper()
	text, err := grant.Encode(mounts)
	must(b, err)
	return text
}

// crowd are mounts that have nothing to do with any grant, as a node has them.
type crowd struct {
	dir  string
	from *beneath.Dir
	have int
}

func newCrowd(b *testing.B, n *simnode.Node) *crowd {
	b.Helper()
	c := &crowd{dir: filepath.Join(n.Dir, "others")}
	must(b, os.MkdirAll(filepath.Join(c.dir, "from"), 0o755))
	var err error
	c.from, err = beneath.OpenRoot(filepath.Join(c.dir, "from"))
	must(b, err)
	b.Cleanup(c.from.Close)
	return c
}

// be makes or takes away mounts until there are so many. Each is in a peer group
// of its own, as systemd and a container runtime leave them, and there is a copy
// in the host's namespace.
func (c *crowd) be(b *testing.B, want int) {
	b.Helper()
	for ; c.have < want; c.have++ {
		on := filepath.Join(c.dir, fmt.Sprint(c.have))
		must(b, os.MkdirAll(on, 0o755))
		fd, err := unix.OpenTree(c.from.Fd(), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		must(b, err)
		must(b, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}))
		must(b, unix.MoveMount(fd, "", unix.AT_FDCWD, on, unix.MOVE_MOUNT_F_EMPTY_PATH))
		must(b, unix.Close(fd))
	}
	for ; c.have > want; c.have-- {
		must(b, unix.Unmount(filepath.Join(c.dir, fmt.Sprint(c.have-1)), unix.UMOUNT_NOFOLLOW))
	}
}

// local is a node with the agent in this process and its Kubernetes in memory:
// what is measured here is the node's part alone.
type local struct {
	*simnode.Node
	b      *testing.B
	api    *agenttest.API
	table  *mnt.Kernel
	finder *procs.Finder
	budget *deadline.Budget
	agent  *agent.Agent
	meter  *meter
	pods   []*localPod
	salt   string // in every uid: /proc is the whole machine's
}

// localPod is a Pod of a local whose container runs.
type localPod struct {
	*simnode.Pod
	container *simnode.Container
	source    string
	// The annotations: what always stands, and that with one more.
	base, more string
	mount      plan.Mount // the one more
}

func newLocal(b *testing.B) *local {
	b.Helper()
	l := &local{
		Node: newNode(b), b: b, api: agenttest.NewAPI(), table: &mnt.Kernel{}, finder: procs.New("/proc"), budget: &deadline.Budget{},
		meter: &meter{}, salt: fmt.Sprintf("bench-%08x", rand.Uint32()),
	}
	pol := agent.DefaultPolicy(nodeName)
	store, err := journal.Open(filepath.Join(l.Root, "journal"))
	must(b, err)
	l.agent, err = agent.New(b.Context(), agent.Config{
		Claim:  agent.Claim{Path: l.Claim, Owner: beneath.Owner{UID: sandboxID, GID: groupID}, Bound: agent.DefaultBound},
		Policy: pol, Root: l.Root, Kubelet: l.Kubelet, BootID: "bench",
		Journal:   meteredJournal{store, l.meter},
		Table:     meteredTable{l.table, l.meter},
		Processes: meteredProcesses{l.finder, l.meter},
		API:       meteredAPI{l.api, l.meter},
		Budget:    l.budget, Metrics: obs.NewRecorder("bench", "bench"), Clock: clock.RealClock{},
		Log: slog.New(slog.NewJSONHandler(io.Discard, nil)),
	})
	must(b, err)
	b.Cleanup(l.agent.Close)
	_, err = l.agent.Start(b.Context())
	must(b, err)
	return l
}

// grow starts Pods until there are so many. Each has its tree, published, and one
// mount that stays.
func (l *local) grow(want int) {
	l.b.Helper()
	for i := len(l.pods); i < want; i++ {
		p := &localPod{Pod: l.NewPod(fmt.Sprintf("%s-%03d", l.salt, i)), source: home(l.b, l.Node, i)}
		stays := files(home(l.b, l.Node, 1000+i), standing)
		p.base = encode(l.b, stays)
		p.more = encode(l.b, stays, files(p.source, target))
		p.mount = plan.Build(grant.Decode(encode(l.b, files(p.source, target))), agent.DefaultPolicy(nodeName)).Mounts[0]
		must(l.b, p.SetUpVolume(false))
		var err error
		p.container, err = p.StartContainer(simnode.ContainerOptions{})
		must(l.b, err)
		l.api.Put(plan.Pod{
			UID: p.UID, Namespace: "runtimes", Name: fmt.Sprintf("pod-%03d", i), Node: nodeName, HostUsers: true,
			Volume: &plan.Volume{Memory: true}, Grant: &p.base,
			Uses: []plan.Use{{Container: "runtime", ID: p.container.ID(), Path: simnode.DefaultMountPath, HostToContainer: true}},
		})
		l.pods = append(l.pods, p)
		l.pass(p)
	}
}

// ask sets the Pod's grant annotation and takes its answer away.
func (l *local) ask(p *localPod, text *string) {
	l.api.Change(p.UID, func(api *plan.Pod) { api.Grant, api.Ready = text, nil })
}

// pass makes one pass over the Pod.
func (l *local) pass(p *localPod) {
	l.b.Helper()
	_, err := l.agent.Reconcile(l.b.Context(), p.UID)
	must(l.b, err)
	l.answered(p)
}

// answered holds the Pod's answer against what was asked.
func (l *local) answered(p *localPod) {
	l.b.Helper()
	asked, _ := l.api.Pod(p.UID)
	if st := l.api.Status(l.b, p.UID); (st != nil) != (asked.Grant != nil) || st != nil && st.State != grant.StateReady {
		l.b.Fatalf("pod %s: the answer is %+v", p.UID, st)
	}
}

// mounts is how many lines the agent's mount table has.
func (l *local) mounts() int {
	l.b.Helper()
	ms, err := l.table.List()
	must(l.b, err)
	return len(ms)
}
