package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

func daemonSet(f Facts) []Result {
	switch {
	case f.DaemonSets.Err != nil:
		return unread("the agents' DaemonSet", f.DaemonSets.Err)
	case len(f.DaemonSets.Value) == 0:
		return one(Fail, "there is none with the labels "+fleet.Selector+inNamespace(f.Settings.AgentNamespace))
	}
	var all []Result
	for _, ds := range f.DaemonSets.Value {
		s := ds.Status
		r := Result{Status: OK, Detail: fmt.Sprintf("%d/%d ready", s.NumberReady, s.DesiredNumberScheduled)}
		switch {
		case s.ObservedGeneration < ds.Generation:
			r.Status, r.Detail = Warn, "its controller has not seen the last change yet"
		case s.DesiredNumberScheduled == 0:
			r.Status, r.Detail = Fail, "it covers no node"
		case s.NumberReady < s.DesiredNumberScheduled:
			r.Status = Fail
		case s.UpdatedNumberScheduled < s.DesiredNumberScheduled:
			r.Status = Warn
			r.Detail += fmt.Sprintf(", %d of this revision", s.UpdatedNumberScheduled)
			r.Hint = "A rollout is under way, or waits: `kubectl rollout status` on the DaemonSet."
		}
		if len(f.DaemonSets.Value) > 1 || r.Status != OK {
			r.Detail = ds.Namespace + "/" + ds.Name + ": " + r.Detail
		}
		all = append(all, r)
	}
	return all
}

func inNamespace(ns string) string {
	if ns == "" {
		return " in any namespace"
	}
	return " in namespace " + ns
}

// half is whether one half is on, or that nothing tells.
type half int

const (
	untold half = iota
	off
	on
)

func agree(f Facts) []Result {
	agent, agentWhy := agentHalf(f)
	op, opWhy, err := operatorHalf(f)
	if err != nil {
		return unread("the Operator's half", err)
	}
	why := strings.Trim(agentWhy+"; "+opWhy, "; ")
	switch {
	case agent == untold:
		return one(Skip, why)
	case agent == on && op == on:
		return one(OK, strings.TrimSuffix(cmp.Or(opWhy, "both halves on")+", "+agentWhy, ", "))
	case agent == on && f.Settings.AgentOnly:
		return one(OK, "the agent's half is on; the Operator's is not expected to be yet")
	case op == untold:
		return one(Skip, opWhy)
	case agent == off && op == off:
		return one(OK, "neither half is on: "+why)
	case agent == on:
		return one(Fail, "the Operator's half is off: "+opWhy)
	}
	return one(Fail, "the agent's half is off: "+agentWhy)
}

func agentHalf(f Facts) (half, string) {
	switch {
	case len(f.documents()) > 0:
		return on, ""
	case f.DaemonSets.Err != nil:
		return untold, "the agents' DaemonSet could not be read"
	case len(f.DaemonSets.Value) == 0:
		return off, "there is no DaemonSet of agents"
	}
	for _, ds := range f.DaemonSets.Value {
		if said, isOff := switchedOff(ds); isOff {
			return off, fmt.Sprintf("%s/%s says %s=%s", ds.Namespace, ds.Name, EnabledVariable, said)
		}
	}
	if len(f.Answers.Value) > 0 && !slices.ContainsFunc(f.Answers.Value, func(a NodeAnswer) bool { return !a.silent() }) {
		return off, "no agent serves /gateway"
	}
	// Nobody could be asked, and the DaemonSet is there for nothing else.
	return on, "the agent's half by its DaemonSet alone"
}

// operatorHalf is told by the Operator's Deployment, or by the Pods that it has
// labelled where it is another program. why is what tells, where that is not the
// usual.
func operatorHalf(f Facts) (h half, why string, err error) {
	if f.Operators.Err != nil {
		return untold, "", f.Operators.Err
	}
	for _, d := range f.Operators.Value {
		if OperatorOn(d.Spec.Template.Spec) {
			return on, "", nil
		}
	}
	if n := len(f.Operators.Value); n > 0 {
		d := f.Operators.Value[0]
		return off, fmt.Sprintf("no container of the Deployment %s/%s has %s=true", d.Namespace, d.Name, EnabledVariable), nil
	}
	if f.Pods.Err != nil {
		return untold, "", f.Pods.Err
	}
	labelled := 0
	for _, p := range f.Pods.Value {
		if carries(p, f.Settings.Names.Label) {
			labelled++
		}
	}
	if labelled > 0 {
		return on, "both halves on, by " + plural(labelled, "Pod", "Pods") + " with the gateway's label", nil
	}
	return untold, fmt.Sprintf("nothing tells whether the Operator's half is on: there is no Deployment %s%s and no Pod with the label %s",
		f.Settings.Operator, inNamespace(f.Settings.OperatorNamespace), f.Settings.Names.Label), nil
}

func claim(f Facts) []Result {
	if len(f.DaemonSets.Value) == 0 && len(f.documents()) == 0 {
		return one(Skip, "no agent was found that mounts one")
	}
	cluster := claimObject(f)
	var nodes []Result
	for _, r := range perNode(f, func(n nodeview.Node) Result { return claimOn(n, cluster.Detail) }) {
		if r.Status == Fail {
			nodes = append(nodes, r)
		}
	}
	if cluster.Status == OK && len(nodes) > 0 {
		return nodes
	}
	return append([]Result{cluster}, nodes...)
}

// claimOn is the claim as a node has it. A claim that is bound in the API may be
// missing on a node all the same.
func claimOn(n nodeview.Node, name string) Result {
	c := n.Facts.Claim
	switch {
	case !c.Mounted:
		return Result{Status: Fail, Detail: fmt.Sprintf("no filesystem is mounted at %s: folders would be the node's own (%s)", c.Path, name)}
	case !c.Answers:
		return Result{Status: Fail, Detail: fmt.Sprintf("%s at %s does not answer (%s)", cmp.Or(c.Filesystem, "the filesystem"), c.Path, name)}
	}
	return Result{Status: OK}
}

// claimObject is the claim as the API has it.
func claimObject(f Facts) Result {
	if f.Claim.Err != nil {
		return unread("the claim", f.Claim.Err)[0]
	}
	if len(f.DaemonSets.Value) == 0 {
		return Result{Status: Skip, Detail: "the agents' DaemonSet could not be read"}
	}
	ds := f.DaemonSets.Value[0]
	volume, path := f.claimVolume(ds), f.claimPath(ds)
	pvc := f.Claim.Value
	switch {
	case volume == nil:
		return Result{Status: Fail, Detail: fmt.Sprintf("%s/%s mounts no volume at %s", ds.Namespace, ds.Name, path)}
	case volume.HostPath != nil:
		return Result{Status: OK, Detail: "no claim: the node's own " + volume.HostPath.Path}
	case volume.PersistentVolumeClaim == nil:
		return Result{Status: OK, Detail: "no claim: the volume " + volume.Name}
	case pvc == nil:
		return Result{Status: Fail, Detail: fmt.Sprintf("%s does not exist in namespace %s", volume.PersistentVolumeClaim.ClaimName, ds.Namespace)}
	case pvc.Status.Phase != corev1.ClaimBound:
		return Result{Status: Fail, Detail: fmt.Sprintf("%s is %s, not Bound", pvc.Name, cmp.Or(string(pvc.Status.Phase), "new"))}
	case pvc.DeletionTimestamp != nil:
		return Result{Status: Warn, Detail: pvc.Name + " is being deleted: it goes with the last Pod that mounts it"}
	case !slices.Contains(pvc.Spec.AccessModes, corev1.ReadWriteMany) && ds.Status.DesiredNumberScheduled > 1:
		return Result{Status: Warn, Detail: fmt.Sprintf("%s is not ReadWriteMany and %d nodes need it", pvc.Name, ds.Status.DesiredNumberScheduled)}
	}
	return Result{Status: OK, Detail: pvc.Name}
}

func mountsClaim(ds appsv1.DaemonSet, name string) bool {
	return slices.ContainsFunc(ds.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
	})
}
