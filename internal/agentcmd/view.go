package agentcmd

import (
	"context"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/plan"
)

// view is what /gateway shows. Requests are answered one after the other: of those
// that come while a claim hangs, the first waits for its bound, and the others are
// told at once what it found.
func (n *node) view(ctx context.Context) nodeview.Node {
	n.describing.Lock()
	defer n.describing.Unlock()
	s := n.settings
	v := nodeview.Node{
		Node: s.node, Namespace: s.namespace, Version: n.version, Ready: true,
		MountPath: s.mount, VolumeName: s.volume, Root: s.root, KubeletDir: s.kubelet,
		Serves: n.serves, Credentials: n.secrets,
	}
	v.Facts, v.Pods = n.gateway.Describe(ctx)
	v.Facts.Kernel = obs.KernelRelease()
	v.Keeper = n.keeperView(ctx)
	v.LostThreads = n.budget.Lost()
	for _, p := range v.Pods {
		v.Leaked += p.Leaked
	}
	if err := n.ready(); err != nil {
		v.Ready, v.Reason = false, err.Error()
	}
	return v
}

// keeperView is the keeper as the agent reaches it, nil where it needs none.
func (n *node) keeperView(ctx context.Context) *nodeview.Keeper {
	if n.keeper == nil {
		return nil
	}
	info, children, err := n.keeper.List(ctx)
	if err != nil {
		return &nodeview.Keeper{Reason: err.Error()}
	}
	k := &nodeview.Keeper{There: true, Version: info.Version, Instance: info.Instance}
	for _, c := range children {
		if c.Ended == nil {
			k.Children++
		}
	}
	return k
}

// served are the kinds that a policy serves, in the order of their table.
func served(pol plan.Policy) []grant.Kind {
	kinds := []grant.Kind{}
	for _, k := range grant.Kinds() {
		if pol.Serves[k.Kind] {
			kinds = append(kinds, k.Kind)
		}
	}
	return kinds
}
