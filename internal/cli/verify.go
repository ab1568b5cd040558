package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/exec"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/operator"
)

// verification is a call of verify.
type verification struct {
	cluster
	settings verify.Settings
	form     output
	json     bool
	probe    probing
}

func newVerify() *cobra.Command {
	var v verification
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that folders arrive in Pods, and that only those who should can grant them",
		Long: `verify asks the API server and the agent of every node, and judges the answers
row by row: ok, warn, fail, or skip where a row does not apply. It changes
nothing, reads no Secret, and ends with status 3 when a row fails, in every form
of output. What could not be found out is not ok.

With --probe it also proves each node by doing it: a throw-away Pod is granted a
folder, writes to it, is restarted, loses it again, and is deleted.`,
		Example: `  node-mounts verify
  node-mounts verify --agent-only           # before the Operator's half is on
  node-mounts verify -o json                # for a pipeline
  node-mounts verify --probe --node worker-1`,
		Args: takes(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.bind(cmd)
	v.form.bind(cmd, table, asJSON, asYAML)
	return cmd
}

func (v *verification) bind(cmd *cobra.Command) {
	v.cluster.bind(cmd)
	f := cmd.Flags()
	f.Lookup("namespace").Usage = "namespace of the runtimes; without it the one that the agents serve"
	f.Lookup("annotation-prefix").Usage += "; unless given, what the agents are started with counts"
	s := &v.settings
	f.StringVar(&s.AgentNamespace, "agent-namespace", "", "namespace of the agents; without it all are searched")
	f.StringVar(&s.Operator, "operator", verify.DefaultOperator, "name of the Operator's Deployment")
	f.StringVar(&s.OperatorNamespace, "operator-namespace", "", "namespace of the Operator; without it all are searched")
	f.BoolVar(&s.AgentOnly, "agent-only", false, "the Operator's half is not on yet, and need not be")
	f.StringVar(&s.RuntimeAccount, "runtime-account", verify.DefaultRuntimeAccount, "service account of the runtimes")
	f.StringSliceVar(&s.Companions, "companion", []string{operator.DefaultCompanion}, "containers that run no user code and may have a token")
	f.StringVar(&s.Volume, "volume-name", "", "name of the gateway volume; without it what the agents say")
	f.BoolVar(&v.json, "json", false, "the same as -o json")
	v.probe.bind(cmd)
}

func (v *verification) run(cmd *cobra.Command) error {
	if v.json {
		if f := cmd.Flags().Lookup("output"); f.Changed && v.form != asJSON {
			return advice.Usage(fmt.Errorf("--json and -o %s exclude each other", v.form), "")
		}
		v.form = asJSON
	}
	for _, err := range []error{
		v.probe.check(),
		checkNamespace("--agent-namespace", v.settings.AgentNamespace), checkNamespace("--operator-namespace", v.settings.OperatorNamespace),
	} {
		if err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("annotation-prefix") {
		v.settings.Names = grant.NamesFor(v.prefix)
	}
	v.settings.Namespace = v.namespace
	cluster, cfg, err := v.open()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	facts := verify.Gather(ctx, cluster)
	if err := unusableFacts(ctx, facts); err != nil {
		return err
	}
	report := reported(verify.Judge(facts))
	var probed error
	if v.probe.on {
		report.Probe, probed = v.probe.run(ctx, cmd.ErrOrStderr(), cluster, cfg, facts)
	}
	report.count()
	interrupted := errors.Is(probed, context.Canceled)
	report.OK = report.OK && !interrupted // what could not be found out is not ok
	if err := report.write(cmd.OutOrStdout(), cmd.ErrOrStderr(), v.form); err != nil {
		return err
	}
	if interrupted { // that is no verdict, but what was left behind is told
		return allOf(probed, leftBehind(report.Probe))
	}
	return allOf(probed, report.failed())
}

// open connects. Questions about rights come in dozens, and must not wait for the
// client's own limit of 5 a second.
func (v *verification) open() (verify.Cluster, *rest.Config, error) {
	session, err := v.connect()
	if err != nil {
		return verify.Cluster{}, nil, err
	}
	cfg := rest.CopyConfig(session.config)
	cfg.QPS, cfg.Burst = 50, 100
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return verify.Cluster{}, nil, unusable(err)
	}
	agents := askedAgents{&fleet.Cluster{Client: api, Config: cfg, Namespace: v.settings.AgentNamespace}}
	return verify.Cluster{API: api, Agents: agents, Settings: v.settings}, cfg, nil
}

// unusableFacts is an error where nothing could be asked: that is no verdict on the
// cluster.
func unusableFacts(ctx context.Context, f verify.Facts) error {
	err := f.DaemonSets.Err
	var status apierrors.APIStatus
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case !errors.As(err, &status) || apierrors.IsUnauthorized(err):
		return fmt.Errorf("list the agents' DaemonSets: %w", err)
	}
	return nil
}

// askedAgents asks the fleet for verify.
type askedAgents struct {
	fleet fleet.Agents
}

// Nodes implements verify.Agents. A node without an agent is not among them: verify
// knows better which should have one.
func (a askedAgents) Nodes(ctx context.Context) ([]verify.NodeAnswer, error) {
	found, err := a.fleet.Agents(ctx)
	if err != nil {
		return nil, err
	}
	agents := slices.DeleteFunc(found.Agents, func(a fleet.Agent) bool { return a.Pod == "" })
	var nodes []verify.NodeAnswer
	for _, answer := range fleet.Ask(ctx, a.fleet, agents, fleet.DefaultBound) {
		n := verify.NodeAnswer{Node: answer.Node, Pod: answer.Pod, Ready: answer.Ready, Document: answer.View, Err: answer.Err}
		var exit exec.CodeExitError
		switch {
		case answer.Err == nil:
		case errors.Is(answer.Err, fleet.ErrForbidden): // the rest names the Pod, and makes a line of every node
			n.Err = fleet.ErrForbidden
		case errors.As(answer.Err, &exit) && exit.Code == advice.StatusError: // the agent's program ran, and found nobody who answers
			n.Err = fmt.Errorf("%w: %w", verify.ErrNoGateway, answer.Err)
		case !answer.Ready && answer.Reason != "":
			n.Err = fmt.Errorf("%s: %w", answer.Reason, answer.Err)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}
