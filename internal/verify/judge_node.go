package verify

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/datalayer/node-mounts/internal/nodeview"
)

// perNode judges what each agent tells of its node. A node that tells nothing is
// skipped here: that it could not be asked is a failure of its own.
func perNode(f Facts, judge func(nodeview.Node) Result) []Result {
	if f.Answers.Err != nil || len(f.Answers.Value) == 0 {
		return one(Skip, "no agent was asked")
	}
	var all []Result
	for _, a := range f.Answers.Value {
		r := Result{Status: Skip, Detail: "not asked: see \"Every node asked\""}
		switch {
		case a.Document != nil:
			r = judge(*a.Document)
		case a.silent():
			r.Detail = "the agent serves no gateway"
		}
		r.Node = a.Node
		all = append(all, r)
	}
	return all
}

func propagation(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		kubelet, root := n.Facts.KubeletPropagation, n.Facts.RootPropagation
		var wrong []string
		for _, p := range []struct {
			what string
			is   nodeview.Propagation
		}{{"kubelet's folder " + n.KubeletDir, kubelet}, {"the agent's root " + n.Root, root}} {
			if p.is != nodeview.Shared {
				wrong = append(wrong, fmt.Sprintf("%s is %s", p.what, cmp.Or(string(p.is), string(nodeview.Unknown))))
			}
		}
		if len(wrong) > 0 {
			return Result{Status: Fail, Detail: strings.Join(wrong, ", ")}
		}
		return Result{Status: OK, Detail: string(kubelet)}
	})
}

func kernel(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		if !n.Facts.MountSetattr {
			return Result{Status: Fail, Detail: n.Facts.Kernel + " has no mount_setattr"}
		}
		return Result{Status: OK, Detail: n.Facts.Kernel}
	})
}

func enabled(f Facts) []Result {
	for _, ds := range f.DaemonSets.Value {
		if said, isOff := switchedOff(ds); isOff {
			return one(Fail, fmt.Sprintf("the DaemonSet %s/%s says %s=%s", ds.Namespace, ds.Name, EnabledVariable, said))
		}
	}
	if f.Answers.Err != nil || len(f.Answers.Value) == 0 {
		return one(Skip, "no agent was asked")
	}
	var all []Result
	for _, a := range f.Answers.Value {
		r := Result{Node: a.Node, Status: Skip, Detail: "not asked: see \"Every node asked\""}
		switch {
		case a.silent():
			r.Status, r.Detail = Fail, oneLine(a.Err)
		case a.Document == nil:
		case !a.Document.Ready:
			r.Status, r.Detail = Fail, "not ready: "+cmp.Or(a.Document.Reason, "the agent gives no reason")
		default:
			r.Status, r.Detail = OK, "serving /gateway"
		}
		all = append(all, r)
	}
	return all
}

func leaked(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		r := Result{Status: OK, Detail: fmt.Sprintf("%d mount(s) would not unmount", n.Leaked)}
		var pods []string
		for _, p := range n.Pods {
			if p.Leaked > 0 {
				pods = append(pods, fmt.Sprintf("%s: %d", podName(p), p.Leaked))
			}
		}
		if n.Leaked > 0 || len(pods) > 0 {
			r.Status = Fail
		}
		if len(pods) > 0 {
			r.Detail += " (" + some(pods, ", ") + ")"
		}
		return r
	})
}

func trees(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		var wrong []string
		standing := 0
		for _, p := range n.Pods {
			switch p.Tree {
			case "":
			case "tmpfs":
				standing++
			default:
				wrong = append(wrong, fmt.Sprintf("that of %s is %s", podName(p), p.Tree))
			}
		}
		switch {
		case len(wrong) > 0:
			return Result{Status: Fail, Detail: some(wrong, ", ")}
		case standing == 0:
			return Result{Status: Skip, Detail: "no Pod has a tree"}
		}
		return Result{Status: OK, Detail: "tmpfs"}
	})
}

func podName(p nodeview.Pod) string {
	if p.Name == "" {
		return p.UID
	}
	return p.Namespace + "/" + p.Name
}

func kubeletRoot(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		if !n.Facts.KubeletFound {
			return Result{Status: Fail, Detail: n.KubeletDir + " is not where kubelet keeps its Pods"}
		}
		return Result{Status: OK, Detail: n.KubeletDir}
	})
}

func selinux(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		if n.Facts.SELinux {
			return Result{Status: Fail, Detail: "enabled"}
		}
		return Result{Status: OK, Detail: "off"}
	})
}

func outlives(f Facts) []Result {
	held, partly := holder(f)
	return perNode(f, func(n nodeview.Node) Result {
		c := n.Facts.Claim
		var what string
		switch {
		case !c.Mounted:
			return Result{Status: Skip, Detail: "no claim is mounted: see \"Shared filesystem claim\""}
		case c.Backing == nodeview.BackedByKernel:
			return Result{Status: OK, Detail: cmp.Or(c.Filesystem, "kept") + ", kept by the kernel"}
		case c.Backing == nodeview.BackedByProcess:
			what = cmp.Or(c.Filesystem, "its filesystem") + " is kept by a process"
		default:
			what = "it cannot be told what keeps " + cmp.Or(c.Filesystem, "its filesystem")
		}
		switch {
		case held == "":
			return Result{Status: Warn, Detail: what + " and may end with the agent's Pod (claimHolder.enabled keeps it)"}
		case partly != "":
			return Result{Status: Warn, Detail: what + "; " + partly, Hint: "Look at the Pods of that DaemonSet."}
		}
		return Result{Status: OK, Detail: what + " and held by the DaemonSet " + held}
	})
}

// holder is the DaemonSet that mounts the agents' claim and is not rolled, "" where
// there is none; partly says where it is not ready everywhere.
func holder(f Facts) (name, partly string) {
	for _, ds := range f.DaemonSets.Value {
		claim := f.claimName(ds)
		for _, o := range f.Others.Value {
			if claim == "" || o.Namespace != ds.Namespace || o.Spec.UpdateStrategy.Type != "OnDelete" || !mountsClaim(o, claim) {
				continue
			}
			name := o.Namespace + "/" + o.Name
			if o.Status.NumberReady < ds.Status.DesiredNumberScheduled {
				return name, fmt.Sprintf("the holder %s is ready on %d of %d nodes", name, o.Status.NumberReady, ds.Status.DesiredNumberScheduled)
			}
			return name, ""
		}
	}
	return "", ""
}
