package verify

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/internal/fleet"
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
		switch covered := f.covers(&n); {
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
func (f Facts) covers(n *corev1.Node) bool {
	return slices.ContainsFunc(f.DaemonSets.Value, func(ds appsv1.DaemonSet) bool { return fleet.Covers(ds.Spec.Template.Spec, n) })
}
