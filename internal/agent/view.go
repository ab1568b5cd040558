package agent

import (
	"context"
	"path"
	"slices"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/facts"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// Views are all Pods that have something on this node, by namespace and name. It
// looks at nothing: what a Pod's tree is, Describe tells.
func (a *Agent) Views() []nodeview.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]nodeview.Pod, 0, len(a.known))
	for uid, s := range a.known {
		v := s.view
		v.UID = uid // a Pod of which no pass has been made has no view yet
		v.Mounts = a.withProgress(uid, v.Mounts)
		out = append(out, v)
	}
	slices.SortFunc(out, func(x, y nodeview.Pod) int {
		return slices.Compare([]string{x.Namespace, x.Name, x.UID}, []string{y.Namespace, y.Name, y.UID})
	})
	return out
}

// Describe finds out how the node is and what stands of each Pod, now. It reads the
// mount table once and asks the claim with its bound: callers ask one at a time,
// so that a claim that hangs costs one thread and not one for each. The kernel's
// release is for the caller to add.
func (a *Agent) Describe(ctx context.Context) (nodeview.Facts, []nodeview.Pod) {
	pods := a.Views()
	table, err := a.Table.List()
	if err != nil {
		a.Log.Error("reading the mount table", "error", err)
	}
	trees := mnt.Beneath(table, a.podsDir())
	for i := range pods {
		at := path.Join(a.podsDir(), pods[i].UID)
		if m, ok := mnt.Covering(trees, at); ok && m.Point == at {
			pods[i].Tree = m.FSType
		}
	}
	return facts.Of(ctx, facts.Node{
		Table: a.Table, Mounts: table, Claimed: table, Host: a.hostMounts(), Probe: a.pods, Root: a.Root, Kubelet: a.Kubelet, SELinux: a.Policy.SELinux,
		Claim: a.Claim.Path, Bound: a.Claim.Bound, Budget: a.Budget, Keys: a.claimKeys(),
	}), pods
}

// hostMounts is the node's own mount table, nil where it is this one or cannot be read.
func (a *Agent) hostMounts() []mnt.Mount {
	if a.HostMounts == nil {
		return nil
	}
	mounts, err := a.HostMounts()
	if err != nil {
		a.Log.Error("reading the node's mount table", "error", err)
		return nil
	}
	return mounts
}

// claimKeys are what a question to the claim that hangs is charged to: itself, so that
// however often somebody asks it costs one thread, and the filesystem.
func (a *Agent) claimKeys() []deadline.Key {
	return append(a.Keys(a.Claim.Path), deadline.Key{Name: "look:" + a.Claim.Path, Limit: 1})
}

// show refreshes what /gateway and the gauges say of the Pod. answer is nil
// where none was given in this pass.
func (a *Agent) show(s *podState, phase string, answer *grant.Status) {
	v := nodeview.Pod{
		UID: s.j.UID, Namespace: s.j.Namespace, Name: s.j.Name, Phase: phase,
		Published: s.j.Publication != nil && s.j.Publication.Record != nil,
		Mounts:    []nodeview.Mount{}, Answer: answer, Leaked: len(s.j.Held),
	}
	for _, e := range s.j.Mounts {
		v.Mounts = append(v.Mounts, viewed(e))
		if e.State == journal.Revoking {
			v.Leaked++
		}
	}
	v.Mounts = append(v.Mounts, s.fetching()...)
	for _, h := range s.j.Held {
		v.Held = append(v.Held, nodeview.Held{Target: h.Target, Why: h.Why})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if answer == nil {
		v.Answer = s.view.Answer
	}
	s.view = v
	a.count()
}

// viewed is a journal's entry as others see it.
func viewed(e journal.Entry) nodeview.Mount {
	m := nodeview.Mount{
		Target: e.Target, Kind: e.Identity.Kind, Source: e.Identity.Source, Mode: e.Identity.Mode, AllowExec: e.Identity.AllowExec,
		Revision: e.Identity.Revision, Secret: e.Identity.Secret, State: string(e.State),
	}
	if e.Record != nil {
		m.Flags = e.Record.Flags.String()
	}
	return m
}

// count sets the gauges. a.mu is held.
func (a *Agent) count() {
	pods, mounts, leaked := 0, 0, 0
	for _, s := range a.known {
		if s.view.Published || len(s.view.Mounts) > 0 {
			pods++
		}
		for _, m := range s.view.Mounts {
			if m.State == string(journal.Mounted) {
				mounts++
			}
		}
		leaked += s.view.Leaked
	}
	a.Metrics.SetPods(pods)
	a.Metrics.SetMounts(mounts)
	a.Metrics.SetLeaked(leaked)
}
