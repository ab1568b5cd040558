package fleet

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
)

// agentSystem is the one whose mounts an agent makes.
const agentSystem = "linux"

// Covers tells whether a DaemonSet of agents with this Pod has one on a node, by the
// rules of Kubernetes' own controller (selector, required affinity, and taints), and
// because a Pod of another system's node cannot be an agent.
func Covers(pod corev1.PodSpec, node *corev1.Node) bool {
	system := cmp.Or(node.Labels[corev1.LabelOSStable], node.Status.NodeInfo.OperatingSystem, agentSystem)
	return system == agentSystem && labels.SelectorFromSet(pod.NodeSelector).Matches(labels.Set(node.Labels)) &&
		attracts(pod.Affinity, node) &&
		!slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return keepsOff(t, pod) })
}

// attracts tells whether the required part of a node affinity matches. Its terms are
// alternatives.
func attracts(a *corev1.Affinity, node *corev1.Node) bool {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 && // a term without any matches nothing
			all(t.MatchExpressions, labels.Set(node.Labels)) && all(t.MatchFields, labels.Set{"metadata.name": node.Name})
	})
}

// all tells whether every expression of a term holds.
func all(expressions []corev1.NodeSelectorRequirement, set labels.Set) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	return !slices.ContainsFunc(expressions, func(e corev1.NodeSelectorRequirement) bool {
		r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
		return err != nil || !r.Matches(set)
	})
}

// keepsOff tells whether a taint keeps a DaemonSet's Pod off a node.
func keepsOff(t corev1.Taint, pod corev1.PodSpec) bool {
	return t.Effect != corev1.TaintEffectPreferNoSchedule && !alwaysTolerated(t.Key, pod.HostNetwork) &&
		!slices.ContainsFunc(pod.Tolerations, func(o corev1.Toleration) bool {
			return o.ToleratesTaint(klog.Background(), &t, true)
		})
}

// alwaysTolerated are the taints that the controller makes every DaemonSet's Pods
// tolerate: what a node suffers passes, and its agent is to be there then. It adds
// not-ready and unreachable for NoExecute alone; the same key for NoSchedule holds a
// new Pod up until the node is well, and says nothing of whether one belongs there.
func alwaysTolerated(key string, hostNetwork bool) bool {
	return slices.Contains([]string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable,
		corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure,
	}, key) || hostNetwork && key == corev1.TaintNodeNetworkUnavailable
}
