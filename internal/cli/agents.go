package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// asking is whether and where agents are asked what they see.
type asking struct {
	namespace string
	not       bool
}

// bind adds the flags to a command.
func (a *asking) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.namespace, "agent-namespace", "", "namespace of the agents; without it any, which needs the right to list Pods everywhere")
}

// check looks at the flags alone.
func (a *asking) check() error { return checkNamespace("--agent-namespace", a.namespace) }

// allowed says, where the agents may not be listed, what would be allowed more often.
func (a *asking) allowed(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return advice.With(err, a.rights())
}

// rights are those that asking the agents needs.
func (a *asking) rights() string {
	if a.namespace == "" {
		return "to find the agents wherever they are needs list on pods in all namespaces: with --agent-namespace it needs list on pods, and create on pods/exec, in that one alone"
	}
	return "to ask the agents needs list on pods and create on pods/exec in namespace " + a.namespace
}

// bindNot adds --no-agents.
func (a *asking) bindNot(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.not, "no-agents", false, "do not ask the agents: what only they know is shown as -")
}

// agents are the cluster's.
func (s *session) agents(a asking) fleet.Agents {
	return &fleet.Cluster{Client: s.client, Config: s.config, Namespace: a.namespace}
}

// sight is what the agents see.
type sight struct {
	// nodes are the answers, by the node's name.
	nodes map[string]fleet.Answer
	// pods are what has been seen, by uid.
	pods map[string]nodeview.Pod
	// unknown says what could not be seen, and why: a line each.
	unknown []string
	// refused: the agents may not be listed.
	refused bool
}

// look asks the agents of the nodes.
func look(ctx context.Context, agents fleet.Agents, nodes []string) sight {
	out := sight{nodes: map[string]fleet.Answer{}, pods: map[string]nodeview.Pod{}}
	found, err := agents.Agents(ctx)
	if err == nil && len(found.Agents) == 0 {
		err = errors.New("no agents are found (" + fleet.Selector + ")")
	}
	if err != nil {
		out.unknown = []string{fmt.Sprintf("the agents were not asked: %v", err)}
		out.refused = apierrors.IsForbidden(err)
		return out
	}
	var wanted []fleet.Agent
	for _, name := range nodes {
		i := slices.IndexFunc(found.Agents, func(a fleet.Agent) bool { return a.Node == name })
		if i < 0 {
			wanted = append(wanted, fleet.Agent{Node: name, Reason: "none is found"})
			continue
		}
		wanted = append(wanted, found.Agents[i])
	}
	why := map[string][]fleet.Answer{}
	for _, a := range fleet.Ask(ctx, agents, wanted, fleet.DefaultBound) {
		out.nodes[a.Node] = a
		if a.Err != nil {
			why[reason(a)] = append(why[reason(a)], a)
			continue
		}
		for _, p := range a.View.Pods {
			out.pods[p.UID] = p
		}
	}
	for _, w := range slices.Sorted(maps.Keys(why)) {
		var names []string
		for _, a := range why[w] {
			names = append(names, a.Node)
		}
		// One of those that fail alike speaks for all, under its own name.
		out.unknown = append(out.unknown, fmt.Sprintf("not known of %s: %v", strings.Join(names, ", "), why[w][0].Err))
	}
	return out
}

// reason says why an agent's answer is missing, without what differs from one node to
// the next: many that fail alike are one line.
func reason(a fleet.Answer) string {
	if a.Pod == "" {
		return a.Err.Error()
	}
	return strings.ReplaceAll(a.Err.Error(), a.Pod, "POD")
}

// tell writes what could not be seen, for a person.
func (s sight) tell(errOut io.Writer) {
	for _, line := range s.unknown {
		fmt.Fprintln(errOut, advice.Plain(line))
	}
}

// add puts what the Pod's agent sees into the summary. Nothing is added where it was
// not asked or did not answer.
func (s sight) add(sum *summary) {
	answer, asked := s.nodes[sum.Node]
	if !asked || answer.Err != nil {
		return
	}
	seen := s.pods[sum.UID] // none: nothing of it is on its node
	sum.Published, sum.Leaked = &seen.Published, &seen.Leaked
	for _, m := range seen.Mounts {
		if i := slices.IndexFunc(sum.Targets, func(t target) bool { return t.Target == m.Target }); i >= 0 {
			sum.Targets[i].Flags = m.Flags
			sum.Targets[i].fetched(m)
		}
	}
	for _, h := range seen.Held {
		i := slices.IndexFunc(sum.Targets, func(t target) bool { return t.Target == h.Target && t.Code == string(grant.CodeHeld) })
		switch {
		case i < 0: // the Pod is on its way out and has got no answer about it
			sum.Targets = append(sum.Targets, target{Target: h.Target, State: targetHeld, Reason: h.Why})
			sum.Held++
		case sum.Targets[i].Reason == "":
			sum.Targets[i].Reason = h.Why
		}
	}
	slices.SortStableFunc(sum.Targets, func(a, b target) int { return strings.Compare(a.Target, b.Target) })
}

// fetched adds how far content has come that is being made: the answer, where there is
// one already, says "not yet" and no more.
func (t *target) fetched(m nodeview.Mount) {
	if m.State != nodeview.StateFetching || m.Progress == nil || t.State != targetPending && t.Code != string(grant.CodeNotReady) {
		return
	}
	t.State = targetFetching
	t.Reason = fmt.Sprintf("%s, %s so far", cmp.Or(m.Progress.Phase, "beginning"), bytesText(m.Progress.Bytes))
}

// bytesText is a size for people.
func bytesText(n int64) string {
	const ki = 1 << 10
	unit, size := "B", float64(n)
	for _, next := range []string{"KiB", "MiB", "GiB"} {
		if size < ki {
			break
		}
		unit, size = next, size/ki
	}
	return strconv.FormatFloat(math.Round(10*size)/10, 'f', -1, 64) + " " + unit
}

// nodesOf are the nodes that the Pods are on.
func nodesOf(pods []summary) []string {
	names := map[string]bool{}
	for _, p := range pods {
		if p.Node != "" {
			names[p.Node] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
