package verify

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

func everyNode(f Facts) []Result {
	if f.Answers.Err != nil {
		return one(Fail, "the agents could not be asked: "+oneLine(f.Answers.Err))
	}
	asked := map[string]bool{}
	var all []Result
	for _, a := range f.Answers.Value {
		if a.Document != nil || a.silent() {
			asked[a.Node] = true // what serves no gateway has been asked
			continue
		}
		all = append(all, Result{Node: a.Node, Status: Fail, Detail: "could not be asked: " + oneLine(a.Err)})
	}
	if f.Nodes.Err != nil {
		return append(all, byCount(f, len(asked)))
	}
	left := 0
	for _, n := range f.Nodes.Value {
		known := asked[n.Name] || slices.ContainsFunc(f.Answers.Value, func(a NodeAnswer) bool { return a.Node == n.Name })
		pods := podsOn(f, n.Name)
		switch covered := f.covers(n); {
		case known:
		case pods > 0:
			all = append(all, Result{Node: n.Name, Status: Fail, Detail: "no agent runs there, and " + plural(pods, "gateway Pod waits", "gateway Pods wait") + " for one"})
		case n.Spec.Unschedulable: // no runtime comes there
		case covered:
			all = append(all, Result{Node: n.Name, Status: Fail, Detail: "no agent runs there"})
		default:
			left++
		}
	}
	if len(all) > 0 {
		return all
	}
	if len(asked) == 0 {
		return one(Fail, "there is no agent to ask")
	}
	detail := plural(len(asked), "node", "nodes")
	if left > 0 {
		detail += "; " + plural(left, "other", "others") + " without an agent, as the DaemonSet's rules have it"
	}
	return one(OK, detail)
}

// byCount compares with what the DaemonSet's controller counts, for an account that
// may not list nodes.
func byCount(f Facts, asked int) Result {
	desired := 0
	for _, ds := range f.DaemonSets.Value {
		desired += int(ds.Status.DesiredNumberScheduled)
	}
	r := Result{Status: OK, Detail: fmt.Sprintf("%d of %d that the DaemonSet counts (the nodes could not be listed)", asked, desired)}
	if asked < desired || asked == 0 {
		r.Status = Fail
	}
	return r
}

func podsOn(f Facts, node string) int {
	n := 0
	for _, p := range f.Pods.Value {
		if p.Spec.NodeName == node {
			n++
		}
	}
	return n
}

// covers tells whether a DaemonSet of agents should have a Pod on the node.
func (f Facts) covers(n corev1.Node) bool {
	return slices.ContainsFunc(f.DaemonSets.Value, func(ds appsv1.DaemonSet) bool { return covers(ds.Spec.Template.Spec, n) })
}

func covers(spec corev1.PodSpec, n corev1.Node) bool {
	system := or(n.Labels[corev1.LabelOSStable], n.Status.NodeInfo.OperatingSystem)
	if system != "" && system != "linux" {
		return false
	}
	return labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(n.Labels)) && attracts(spec.Affinity, n) &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return keepsOut(t, spec.Tolerations) })
}

// attracts tells whether the required part of a node affinity matches. Terms are
// alternatives; a term without any expression matches nothing.
func attracts(a *corev1.Affinity, n corev1.Node) bool {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 &&
			matches(t.MatchExpressions, n.Labels) && matches(t.MatchFields, labels.Set{"metadata.name": n.Name})
	})
}

func matches(expressions []corev1.NodeSelectorRequirement, set labels.Set) bool {
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

// keepsOut tells whether a taint keeps a DaemonSet's Pod off a node. What the
// controller tolerates for every DaemonSet is in its documentation: the node's own
// conditions, and that it is cordoned.
func keepsOut(t corev1.Taint, tolerations []corev1.Toleration) bool {
	if t.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(t.Key, "node.kubernetes.io/") {
		return false
	}
	return !slices.ContainsFunc(tolerations, func(o corev1.Toleration) bool {
		switch {
		case o.Effect != "" && o.Effect != t.Effect, o.Key != "" && o.Key != t.Key:
			return false
		case o.Operator == corev1.TolerationOpExists:
			return true
		case o.Operator == "", o.Operator == corev1.TolerationOpEqual:
			return o.Key != "" && o.Value == t.Value
		}
		return false
	})
}
