// Package install puts the agent's half of Node Mounts into a cluster and takes it
// out again: a preflight, the chart by Helm's library, the rollout on every node,
// the checks, and only then the operator's half.
//
// The order is the point. With the operator's half on and no agent, Pods carry the
// gateway volume and wait for mounts that nobody makes.
package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
)

// Names of what is installed, and where without being told.
const (
	ReleaseName      = "datalayer-node-mounts"
	DefaultNamespace = nodeview.DefaultNamespace // beside the Pods that are served
	DefaultTimeout   = 10 * time.Minute
)

// defaultInterval is how often a wait looks again.
const defaultInterval = time.Second

// defaultPullPatience is three tries: kubelet pulls again after 10 and 20 seconds.
const defaultPullPatience = 40 * time.Second

// ErrTimeout is an installation whose nodes did not become ready in time. One that
// stopped at a check is a verify.ErrFailed.
var ErrTimeout = advice.Late(errors.New("not ready in time"), "")

// Row is one thing that was checked or waited for.
type Row = verify.Result

func rowOf(check, node string, status verify.Status, detail, hint string) Row {
	return Row{Check: check, Node: node, Status: status, Detail: detail, Hint: hint}
}

// Cluster is what an installation acts on.
type Cluster struct {
	Client kubernetes.Interface
	Helm   *Helm
	// Agents are asked what is mounted before anything that would leave it behind; nil
	// is that none can be.
	Agents fleet.Agents
	// Progress takes one line at a time for who waits.
	Progress func(line string)
	// Interval is how often a wait looks again, 0 is a second.
	Interval time.Duration
	// PullPatience is how long a probe's image may fail to be pulled, 0 is 40 seconds.
	PullPatience time.Duration
}

func (c Cluster) tell(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}

func (c Cluster) interval() time.Duration {
	if c.Interval == 0 {
		return defaultInterval
	}
	return c.Interval
}

// Request is what to install.
type Request struct {
	// Chart has Chart.yaml at its root.
	Chart     fs.FS
	Namespace string
	Values    map[string]any
	// ReuseValues begins with the values of the release that is there.
	ReuseValues bool
	// CreateNamespace makes the namespace of the Pods to serve. The release's own must
	// be there: the claim is in it.
	CreateNamespace bool
	SkipPreflight   bool
	// ForceConflicts takes back the fields that others have set.
	ForceConflicts bool
	// Timeout bounds the probe of the nodes, and then the rollout on them.
	Timeout time.Duration
	// Verify are the checks after the rollout, nil is none.
	Verify func(ctx context.Context, s Serving) ([]Row, error)
	// Operator is the operator's half to turn on, nil leaves it alone.
	Operator *Operator
}

// Serving is what the agents were told to serve, which the checks have to know.
type Serving struct {
	// Namespace is that of the Pods, "" for all; AgentNamespace is the release's.
	Namespace, AgentNamespace string
	// Prefix is the domain of the annotations, Volume the gateway volume's name.
	Prefix, Volume string
	// Sandboxed are prefixes of runtime classes that see no mounts of the node.
	Sandboxed []string
}

// Change is what was done to the release.
type Change string

// Changes.
const (
	Unchanged Change = "unchanged"
	Installed Change = "installed"
	Upgraded  Change = "upgraded"
)

// Report is what was found and done, as far as it came.
type Report struct {
	Release   string `json:"release"`
	Namespace string `json:"namespace"`
	Revision  int    `json:"revision,omitempty"`
	Change    Change `json:"change,omitempty"`
	Preflight []Row  `json:"preflight"`
	Rollout   []Row  `json:"rollout"`
	Checks    []Row  `json:"checks"`
	// Operator is the Deployment that was turned on, NAMESPACE/NAME.
	Operator string `json:"operator,omitempty"`
}

// Install does all of it. The report is valid with every error.
func (c Cluster) Install(ctx context.Context, r Request) (Report, error) {
	report := Report{
		Release: ReleaseName, Namespace: r.Namespace,
		Preflight: []Row{}, Rollout: []Row{}, Checks: []Row{},
	}
	err := c.install(ctx, r, &report)
	if err != nil {
		err = c.withHalf(ctx, r.Operator, err)
	}
	return report, err
}

func (c Cluster) install(ctx context.Context, r Request, report *Report) error {
	todo, err := c.Helm.prepare(ctx, r)
	if err != nil {
		return err
	}
	// This one cannot be skipped: what it keeps from being lost is not the caller's alone.
	if err := c.settled(ctx, todo); err != nil {
		return err
	}
	if r.SkipPreflight {
		report.Preflight = append(report.Preflight, Row{Check: "Preflight", Status: verify.Skip, Detail: "it was not asked for"})
	} else if err := c.preflight(ctx, r, todo, report); err != nil {
		return err
	}
	if r.CreateNamespace {
		if err := c.createNamespace(ctx, todo.serving.Namespace); err != nil {
			return err
		}
	}
	var other *half
	if r.Operator != nil { // before anything is sent: it may be misspelt
		if other, err = c.half(ctx, *r.Operator); err != nil {
			return err
		}
	}
	if report.Revision, report.Change, err = c.Helm.apply(ctx, r, todo, c.tell); err != nil {
		return err
	}
	if report.Rollout, err = c.rollout(ctx, r, todo, report); err != nil {
		return err
	}
	c.keepers(ctx, todo.agent.Namespace)
	c.Helm.remember(report.Revision, c.tell)
	if err := c.verify(ctx, r, todo, report); err != nil {
		return err
	}
	if other != nil {
		if err := c.turn(ctx, other, true); err != nil {
			return err
		}
		report.Operator = r.Operator.String()
	}
	return nil
}

// verify runs the checks between the two halves.
func (c Cluster) verify(ctx context.Context, r Request, t *todo, report *Report) error {
	if r.Verify == nil {
		return nil
	}
	c.tell("checking")
	rows, err := r.Verify(ctx, t.serving)
	report.Checks = append(report.Checks, rows...)
	if err != nil {
		return fmt.Errorf("checking what was installed: %w", err)
	}
	if n := failed(rows); n > 0 {
		return advice.With(
			fmt.Errorf("the agents run, and %s: %w", of(n, "check", "does not pass", "do not pass"), verify.ErrFailed),
			"mend it and repeat this command; the operator's half stays as it is until all pass",
		)
	}
	return nil
}

func failed(rows []Row) int {
	n := 0
	for _, r := range rows {
		if r.Status == verify.Fail {
			n++
		}
	}
	return n
}

// of is a number with its noun and verb.
func of(n int, noun, one, more string) string {
	if n == 1 {
		return "one " + noun + " " + one
	}
	return fmt.Sprintf("%d %ss %s", n, noun, more)
}
