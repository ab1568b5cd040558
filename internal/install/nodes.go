package install

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
)

// covers tells whether a DaemonSet with this Pod runs on a node, by the rules of
// Kubernetes' own controller: selector, required affinity, and taints.
func covers(pod corev1.PodSpec, node *corev1.Node) bool {
	if !labels.SelectorFromSet(pod.NodeSelector).Matches(labels.Set(node.Labels)) {
		return false
	}
	if pod.Affinity != nil && pod.Affinity.NodeAffinity != nil {
		if want := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; want != nil &&
			!slices.ContainsFunc(want.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return matches(t, node) }) {
			return false
		}
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || alwaysTolerated(taint.Key) {
			continue
		}
		if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), taint, true)
		}) {
			return false
		}
	}
	return true
}

// alwaysTolerated are the taints that the controller makes every DaemonSet's Pods
// tolerate.
func alwaysTolerated(key string) bool {
	return slices.Contains([]string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable,
		corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure,
	}, key)
}

// matches: every expression of a term must, and a term without any matches nothing.
func matches(t corev1.NodeSelectorTerm, node *corev1.Node) bool {
	if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
		return false
	}
	for _, e := range t.MatchExpressions {
		if !holds(e, labels.Set(node.Labels)) {
			return false
		}
	}
	for _, e := range t.MatchFields {
		if !holds(e, labels.Set{"metadata.name": node.Name}) {
			return false
		}
	}
	return true
}

func holds(e corev1.NodeSelectorRequirement, set labels.Set) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
	return err == nil && r.Matches(set)
}

// ready tells whether a node's kubelet answers.
func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
