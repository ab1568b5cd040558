package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/spelling"
	"github.com/datalayer/node-mounts/operator"
)

// Executor runs a command in a container.
type Executor interface {
	// Run returns what the command wrote to standard output. A command that ends
	// with another status than 0 is an *ExitError.
	Run(ctx context.Context, namespace, pod, container string, command ...string) (string, error)
}

// ExitError is a command that ran and did not end well.
type ExitError struct {
	Status int
	Stderr string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("the command ended with %d: %s", e.Status, cmp.Or(strings.TrimSpace(e.Stderr), "it said nothing"))
}

// Probe proves nodes by doing what is else argued about: a throw-away Pod on each,
// made as a pooled Pod is, gets a folder, uses it, and loses it.
type Probe struct {
	API  kubernetes.Interface
	Exec Executor
	// Names, Volume and MountPath are the deployment's.
	Names             grant.Names
	Volume, MountPath string
	// Namespace is where the Pods are made, one that the agents serve.
	Namespace string
	// Image has a shell, cat and ls. PullPolicy is how it is fetched.
	Image      string
	PullPolicy corev1.PullPolicy
	// Bound is how long one step may take.
	Bound time.Duration
	// Tell hears of each step when it has been taken, one at a time; nil: nobody does.
	Tell func(Result)
}

// ProbeOf is the probe that suits a cluster, as far as the facts tell: an image that
// is empty is the agent's own, which its nodes have.
func ProbeOf(f Facts) Probe {
	p := Probe{Names: f.Settings.Names, Volume: f.Settings.Volume, Namespace: f.served()[0], MountPath: grant.DefaultMountPath}
	if p.Namespace == "" {
		p.Namespace = corev1.NamespaceDefault
	}
	for _, d := range f.documents() {
		p.MountPath = cmp.Or(d.MountPath, p.MountPath)
	}
	for _, ds := range f.DaemonSets.Value {
		c := driver(ds)
		p.Image, p.PullPolicy = c.Image, c.ImagePullPolicy
	}
	return p
}

// ProbeNodes are the nodes that have an agent.
func ProbeNodes(f Facts) []string {
	var nodes []string
	for _, a := range f.Answers.Value {
		nodes = append(nodes, a.Node)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// step is one thing that a probe shows.
type step struct {
	name string
	do   string // what to do where it fails
	run  func(context.Context, *probed) (note string, err error)
}

// steps are the probe, in its order. The last is done whatever became of the others.
func steps() []step {
	return []step{
		{"a Pod runs", "`kubectl describe pod` and the node's events say more; verify --probe-image names another image.", runPod},
		{"a folder is granted", "`node-mounts explain CODE`, and the agent's log on that node. Where an admission policy guards grants, verify as an account that it lists.", grantFolder},
		{"a file is written and read", "The claim is not writable for the sandbox's user: look at its export options and at who owns the folder.", writeFile},
		{"nosuid, nodev, owner", "Compare the agent's version with this program's.", checkFlags},
		{"a read-only grant refuses a write", "Compare the agent's version with this program's.", refuseWrite},
		{"the folder outlives a restart of the container", "The container runtime does not carry the node's mounts into new containers: look at mountPropagation and the runtime's configuration.", restart},
		{"a revoked folder is gone", "A process may hold it: `node-mounts status` says which Pod and why.", revoke},
		{"the Pod is deleted in time", "docs/tasks/recover-a-stuck-pod.md says how to free it.", deletePod},
	}
}

// ProbeSteps are the names of the steps.
func ProbeSteps() []string {
	var names []string
	for _, s := range steps() {
		names = append(names, s.name)
	}
	return names
}

// Fit says why a node cannot be probed at all: that is seen before anything is made
// there and waited for. What could not be found out stands in no probe's way.
func Fit(f Facts, node string) error {
	if f.Nodes.Err == nil {
		var known []string
		for _, n := range f.Nodes.Value {
			known = append(known, n.Name)
		}
		if !slices.Contains(known, node) {
			err := fmt.Errorf("there is no node %q", node)
			if near := spelling.Nearest(node, known, 2); near != "" {
				return advice.With(err, fmt.Sprintf("did you mean %q?", near))
			}
			return advice.With(err, "`kubectl get nodes` lists them")
		}
	}
	if f.Answers.Err == nil && !slices.Contains(ProbeNodes(f), node) {
		return advice.With(fmt.Errorf("no agent is on node %q: nobody would answer a grant there", node), "`node-mounts status --nodes` says why a node has none")
	}
	return nil
}

// Run probes the nodes, a few at a time, and returns a result for each step, by node.
// Where ctx ends, what was made is taken away all the same, and no step that had not
// been taken is said to have failed.
func (p Probe) Run(ctx context.Context, nodes []string) []Result {
	const together = 4
	var mu sync.Mutex
	var all []Result
	var probing errgroup.Group
	probing.SetLimit(together)
	for _, node := range nodes {
		probing.Go(func() error {
			results := p.node(ctx, node, func(r Result) {
				mu.Lock()
				defer mu.Unlock()
				if p.Tell != nil {
					p.Tell(r)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			all = append(all, results...)
			return nil
		})
	}
	_ = probing.Wait() // what went wrong is in the results
	slices.SortStableFunc(all, func(a, b Result) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

func (p Probe) node(ctx context.Context, node string, tell func(Result)) []Result {
	on := &probed{Probe: p, node: node, operator: operator.New(p.API.CoreV1(), p.Names)}
	all := steps()
	var results []Result
	stopped := false
	for _, s := range all[:len(all)-1] {
		r := Result{Check: s.name, Node: node, Status: Skip, Detail: "not reached"}
		if !stopped && ctx.Err() == nil {
			r = on.take(ctx, s)
			if ctx.Err() != nil && r.Status == Fail {
				// Whoever interrupts it is why it did not end well.
				r.Status, r.Detail, r.Hint = Skip, "interrupted", ""
			}
			stopped = r.Status == Fail
			tell(r)
		}
		results = append(results, r)
	}
	// What was made goes, also when somebody has lost patience.
	ctx = context.WithoutCancel(ctx)
	if on.written {
		on.tidy(ctx)
	}
	last := all[len(all)-1]
	if on.pod == nil {
		return append(results, Result{Check: last.name, Node: node, Status: Skip, Detail: "there is none"})
	}
	r := on.take(ctx, last)
	tell(r)
	return append(results, r)
}

// errDoubt is a step whose outcome is not as it should be and does no harm.
var errDoubt = errors.New("doubtful")

func (on *probed) take(ctx context.Context, s step) Result {
	ctx, cancel := context.WithTimeout(ctx, on.Bound)
	defer cancel()
	began := time.Now()
	note, err := s.run(ctx, on)
	took := time.Since(began).Round(time.Millisecond).String()
	r := Result{Check: s.name, Node: on.node, Status: OK, Detail: took}
	if note != "" {
		r.Detail += ", " + note
	}
	switch {
	case errors.Is(err, errDoubt):
		r.Status, r.Hint = Warn, s.do
	case err != nil:
		r.Status, r.Detail, r.Hint = Fail, oneLine(err)+" (after "+took+")", cmp.Or(advice.Hint(err), s.do) // it may know better than the step
	}
	return r
}
