package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Cluster is a cluster that is asked by its API server.
type Cluster struct {
	Client kubernetes.Interface
	// Config is what Client was made from: a command in a container has a connection
	// of its own.
	Config *rest.Config
	// Namespace is the agents' one, "" for any.
	Namespace string
}

var _ Agents = (*Cluster)(nil)

// pageSize is how many objects are asked for at a time, as kubectl does.
const pageSize = 500

// Agents implements Agents. Which nodes should have an agent needs the right to list
// DaemonSets and nodes; without it that is said, and the agents are found all the
// same.
func (c *Cluster) Agents(ctx context.Context) (Found, error) {
	pods, err := c.pods(ctx)
	if err != nil {
		return Found{}, fmt.Errorf("list the agents' Pods%s: %w", inNamespace(c.Namespace), err)
	}
	var found Found
	byNode := map[string]corev1.Pod{}
	for _, p := range pods {
		if old, taken := byNode[p.Spec.NodeName]; p.Spec.NodeName != "" && (!taken || better(p, old)) {
			byNode[p.Spec.NodeName] = p
		}
	}
	for _, p := range byNode {
		found.Agents = append(found.Agents, described(p))
	}
	missing, err := c.missing(ctx, byNode)
	if err != nil {
		found.Unknown = append(found.Unknown, fmt.Sprintf("which nodes have no agent: %v", err))
	}
	found.Agents = append(found.Agents, missing...)
	slices.SortFunc(found.Agents, func(a, b Agent) int { return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Pod, b.Pod)) })
	return found, nil
}

func (c *Cluster) pods(ctx context.Context) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	options := metav1.ListOptions{LabelSelector: Selector, Limit: pageSize}
	for {
		list, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		pods = append(pods, list.Items...)
		if options.Continue = list.Continue; options.Continue == "" {
			return pods, nil
		}
	}
}

// better tells which of two agent Pods of a node to ask: during a rollout the old one
// ends while the new one starts.
func better(a, b corev1.Pod) bool {
	rank := func(p corev1.Pod) int {
		switch {
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
			return 0
		case p.DeletionTimestamp != nil:
			return 1
		case !ready(p):
			return 2
		}
		return 3
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(b.Name, a.Name)) > 0
}

func described(p corev1.Pod) Agent {
	a := Agent{
		Node: p.Spec.NodeName, Namespace: p.Namespace, Pod: p.Name,
		Ready: ready(p), Version: p.Labels[versionLabel],
	}
	if !a.Ready {
		a.Reason = notReady(p)
	}
	return a
}

func ready(p corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// notReady says why a Pod is not.
func notReady(p corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "its Pod is being deleted"
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.Name != Container {
			continue
		}
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			return "its container waits: " + c.State.Waiting.Reason
		case c.State.Terminated != nil:
			return fmt.Sprintf("its container has ended with %d", c.State.Terminated.ExitCode)
		case c.State.Running != nil && !c.Ready:
			return "its container runs and is not ready"
		}
	}
	if p.Status.Phase != corev1.PodRunning && p.Status.Phase != "" {
		return "its Pod is " + strings.ToLower(string(p.Status.Phase))
	}
	return "its Pod is not ready"
}

// missing are the nodes that a DaemonSet covers and that have no agent.
func (c *Cluster) missing(ctx context.Context, byNode map[string]corev1.Pod) ([]Agent, error) {
	sets, err := c.Client.AppsV1().DaemonSets(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: Selector})
	if err != nil || len(sets.Items) == 0 {
		return nil, err
	}
	options := metav1.ListOptions{Limit: pageSize}
	var missing []Agent
	for {
		nodes, err := c.Client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, n := range nodes.Items {
			if _, has := byNode[n.Name]; !has && wanted(sets.Items, &n) {
				missing = append(missing, Agent{Node: n.Name, Reason: "no Pod of the DaemonSet is on it"})
			}
		}
		if options.Continue = nodes.Continue; options.Continue == "" {
			return missing, nil
		}
	}
}

func wanted(sets []appsv1.DaemonSet, n *corev1.Node) bool {
	return slices.ContainsFunc(sets, func(d appsv1.DaemonSet) bool { return Covers(d.Spec.Template.Spec, n) })
}

func inNamespace(namespace string) string {
	if namespace == "" {
		return " in all namespaces"
	}
	return " in namespace " + namespace
}
