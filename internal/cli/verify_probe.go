package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/exec"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/verify"
)

// defaultProbeTimeout is for one step: an image may have to be fetched.
const defaultProbeTimeout = 2 * time.Minute

// probing is --probe and what belongs to it.
type probing struct {
	on    bool
	nodes []string
	image string
	bound time.Duration
}

func (p *probing) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&p.on, "probe", false, "prove each node: make a Pod there, grant it a folder, use it, and take all away again")
	f.StringSliceVar(&p.nodes, "node", nil, "probe these nodes alone")
	f.StringVar(&p.image, "probe-image", "", "image of the probe's Pod, with sh, cat and ls; without it the agent's own")
	f.DurationVar(&p.bound, "probe-timeout", defaultProbeTimeout, "how long one step of the probe may take")
}

func (p *probing) check() error {
	switch {
	case !p.on && (len(p.nodes) > 0 || p.image != ""):
		return advice.Usage(errors.New("--node and --probe-image go with --probe"), "")
	case p.bound <= 0:
		return advice.Usage(fmt.Errorf("--probe-timeout %s is no time", p.bound), "")
	}
	return nil
}

// run probes the nodes, and tells of each step as it is taken. An interrupted probe
// has put away what it made, and its results are told.
func (p *probing) run(ctx context.Context, errOut io.Writer, c verify.Cluster, cfg *rest.Config, f verify.Facts) ([]verify.Result, error) {
	probe := verify.ProbeOf(f)
	probe.API, probe.Exec, probe.Bound = c.API, containers{fleet.Containers{Client: c.API, Config: cfg}}, p.bound
	if p.image != "" {
		probe.Image, probe.PullPolicy = p.image, ""
	}
	nodes := verify.ProbeNodes(f)
	if len(p.nodes) > 0 {
		nodes = slices.Compact(slices.Sorted(slices.Values(p.nodes)))
	}
	switch {
	case len(nodes) == 0:
		return nil, advice.With(errors.New("there is no node to probe: no agent was found"), "--node names one")
	case probe.Image == "":
		return nil, advice.With(errors.New("there is no image for the probe's Pod: no agent was found"), "--probe-image names one")
	}
	for _, node := range nodes {
		if err := verify.Fit(f, node); err != nil {
			return nil, err
		}
	}
	probe.Tell = func(r verify.Result) {
		fmt.Fprintln(errOut, advice.Plain(fmt.Sprintf("%s: %s: %s (%s)", r.Node, r.Check, r.Status, r.Detail)))
	}
	fmt.Fprintf(errOut, "Probing %s in namespace %s.\n", strings.Join(nodes, ", "), probe.Namespace)
	results := probe.Run(ctx, nodes)
	return results, ctx.Err()
}

// containers runs the probe's commands.
type containers struct{ fleet.Containers }

// maxOutput bounds what is kept of a command's output: a mount table is the longest.
const maxOutput = 8 << 20

// Run implements verify.Executor.
func (c containers) Run(ctx context.Context, namespace, pod, container string, command ...string) (string, error) {
	out, complaint := &fleet.Bounded{Most: maxOutput}, &fleet.Bounded{Most: maxOutput}
	in := fleet.Place{Namespace: namespace, Pod: pod, Container: container}
	err := c.Exec(ctx, in, command, fleet.Streams{Out: out, Err: complaint})
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		return out.String(), &verify.ExitError{Status: exit.Code, Stderr: complaint.String()}
	}
	if err != nil {
		return "", fmt.Errorf("run a command in %s/%s: %w", namespace, pod, err)
	}
	return out.String(), nil
}
