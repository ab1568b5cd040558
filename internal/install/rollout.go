package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/verify"
)

const rowAgent = "Agent ready"

// rollout waits until every node has an agent of this release that is ready. A node
// whose kubelet does not answer is passed over with a warning: one dead node of a
// hundred must not keep an installation from ending.
func (c Cluster) rollout(ctx context.Context, r Request, t *todo, report *Report) ([]Row, error) {
	ctx, stop := context.WithTimeout(ctx, r.Timeout)
	defer stop()
	var state rolloutState
	told := map[string]bool{}
	err := wait.PollUntilContextCancel(ctx, c.interval(), true, func(ctx context.Context) (bool, error) {
		now, err := c.rolloutState(ctx, t.agent)
		if err != nil {
			return false, transient(err)
		}
		state = now
		for _, line := range state.lines() {
			if !told[line] {
				c.tell("%s", line)
			}
			told[line] = true
		}
		return state.done(), nil
	})
	late := errors.Is(err, context.DeadlineExceeded)
	if err != nil && !late {
		return state.rows, fmt.Errorf("waiting for the agents: %w", err)
	}
	if !late {
		return state.rows, nil
	}
	after := context.WithoutCancel(ctx)
	for i, row := range state.rows {
		if pod := state.pods[row.Node]; row.Status == verify.Fail && pod != "" {
			state.rows[i].Detail = c.explain(after, t.agent.Namespace, pod)
			state.rows[i].Hint = fmt.Sprintf("`kubectl -n %s describe pod %s`, and `kubectl -n %s logs %s -c %s`",
				t.agent.Namespace, pod, t.agent.Namespace, pod, fleet.Container)
			if verify.PrivateMounts(state.rows[i].Detail) {
				state.rows[i].Hint = verify.ShareMounts
			}
		}
	}
	n := failed(state.rows)
	what := of(n, "node", "has no agent that is ready", "have no agent that is ready")
	if n == 0 {
		what = "the agents of before have not been replaced"
	}
	hint := c.Helm.back(t)
	if report.Change == Unchanged {
		hint = "mend it and repeat this command"
	}
	return state.rows, advice.With(fmt.Errorf("after %s %s: %w", r.Timeout, what, ErrTimeout), hint)
}

// rolloutState is how far the agents are.
type rolloutState struct {
	// seen: the controller has seen what was applied.
	seen bool
	rows []Row
	pods map[string]string // the agent by node
	why  map[string]string // what a node's agent waits for
}

func (s rolloutState) done() bool { return s.seen && len(s.rows) > 0 && failed(s.rows) == 0 }

// lines tell of it, each worth saying once.
func (s rolloutState) lines() []string {
	if len(s.rows) == 0 {
		return nil
	}
	if !s.seen && failed(s.rows) == 0 {
		return []string{"rollout: agents are being replaced"}
	}
	good := 0
	var lines []string
	for _, r := range s.rows {
		switch why := s.why[r.Node]; {
		case r.Status == verify.OK:
			good++
		case why != "":
			lines = append(lines, "rollout: "+r.Node+": "+why)
		}
	}
	return append([]string{fmt.Sprintf("rollout: %d of %d nodes ready", good, len(s.rows))}, lines...)
}

func (c Cluster) rolloutState(ctx context.Context, a *agentSet) (rolloutState, error) {
	s := rolloutState{pods: map[string]string{}, why: map[string]string{}}
	set, err := c.Client.AppsV1().DaemonSets(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	if err != nil {
		return s, err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return s, err
	}
	list, err := c.Client.CoreV1().Pods(a.Namespace).List(ctx, a.pods())
	if err != nil {
		return s, err
	}
	// Without the revisions it cannot be told which Pods are old; the status counts
	// those that are new.
	s.seen = set.Status.ObservedGeneration >= set.Generation &&
		int(set.Status.UpdatedNumberScheduled) >= int(set.Status.DesiredNumberScheduled)-unreachable(set, nodes)
	agents := agentsOf(set, list.Items)
	for i := range nodes {
		n := &nodes[i]
		if !fleet.Covers(set.Spec.Template.Spec, n) {
			continue
		}
		row := Row{Check: rowAgent, Node: n.Name, Status: verify.OK}
		p, there := agents[n.Name]
		if there {
			s.pods[n.Name] = p.Name
		}
		switch {
		case !ready(n):
			row.Status, row.Detail = verify.Warn, "its kubelet does not answer: not waited for"
		case !there:
			row.Status, row.Detail = verify.Fail, "it has no agent"
		case !podReady(p):
			row.Status, row.Detail = verify.Fail, "its agent is not ready"
			s.why[n.Name] = waiting(p)
		}
		s.rows = append(s.rows, row)
	}
	slices.SortFunc(s.rows, func(a, b Row) int { return cmp.Compare(a.Node, b.Node) })
	return s, nil
}

// unreachable counts the covered nodes whose kubelet does not answer.
func unreachable(set *appsv1.DaemonSet, nodes []corev1.Node) int {
	n := 0
	for i := range nodes {
		if fleet.Covers(set.Spec.Template.Spec, &nodes[i]) && !ready(&nodes[i]) {
			n++
		}
	}
	return n
}

// agentsOf are the Pods of a DaemonSet by node, without those that are ending.
func agentsOf(set *appsv1.DaemonSet, pods []corev1.Pod) map[string]*corev1.Pod {
	out := map[string]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		if p.DeletionTimestamp == nil && metav1.IsControlledBy(p, set) && p.Spec.NodeName != "" {
			out[p.Spec.NodeName] = p
		}
	}
	return out
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// waiting is what a Pod's containers say they wait for, "" where they say nothing.
func waiting(p *corev1.Pod) string {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			why := strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
			if last := s.LastTerminationState.Terminated; last != nil {
				why += fmt.Sprintf(" (it ended with %d: %s)", last.ExitCode, strings.TrimSpace(cmp.Or(last.Message, last.Reason)))
			}
			return why
		}
		if last := s.LastTerminationState.Terminated; s.State.Running != nil && !s.Ready && last != nil && last.ExitCode != 0 {
			return fmt.Sprintf("%s has ended with %d before: %s", s.Name, last.ExitCode, strings.TrimSpace(cmp.Or(last.Message, last.Reason)))
		}
		if end := s.State.Terminated; end != nil && end.ExitCode != 0 {
			return fmt.Sprintf("%s has ended with %d: %s", s.Name, end.ExitCode, strings.TrimSpace(cmp.Or(end.Message, end.Reason)))
		}
	}
	return ""
}

// explain says why a Pod is not ready: what its containers wait for, why it is not
// scheduled, and the last warning about it.
func (c Cluster) explain(ctx context.Context, namespace, name string) string {
	ctx, stop := context.WithTimeout(ctx, cleanupBound)
	defer stop()
	p, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var parts []string
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
			parts = append(parts, cond.Reason+": "+cond.Message)
		}
	}
	if why := waiting(p); why != "" {
		parts = append(parts, why)
	}
	if last := c.lastWarning(ctx, p); last != "" {
		parts = append(parts, last)
	}
	if len(parts) == 0 {
		return "the Pod " + name + " is not ready, and nothing says why"
	}
	return strings.Join(parts, "; ")
}

// lastWarning is the newest warning among a Pod's events, "" where there is none or
// they may not be read.
func (c Cluster) lastWarning(ctx context.Context, p *corev1.Pod) string {
	list, err := c.Client.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.uid": string(p.UID), "type": corev1.EventTypeWarning}.String(),
	})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	newest := slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return newest.Reason + ": " + newest.Message
}

// keepersBound is how long keepers may come after the agents. What a node has not by
// then, verify tells.
const keepersBound = time.Minute

// keepers waits until each node has its keeper, where the release has any. Whether one
// is of this revision does not count: no update replaces a keeper.
func (c Cluster) keepers(ctx context.Context, namespace string) {
	ctx, stop := context.WithTimeout(ctx, keepersBound)
	defer stop()
	_ = wait.PollUntilContextCancel(ctx, c.interval(), true, func(ctx context.Context) (bool, error) {
		list, err := c.Client.AppsV1().DaemonSets(namespace).List(ctx, metav1.ListOptions{LabelSelector: fleet.KeeperSelector})
		return err == nil && !slices.ContainsFunc(list.Items, func(d appsv1.DaemonSet) bool {
			return d.Status.ObservedGeneration < d.Generation || d.Status.NumberReady < d.Status.DesiredNumberScheduled
		}), nil
	})
}
