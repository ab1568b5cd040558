package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/proof"
)

// prove finds every standing mount in the view of every running container that
// has the volume, once per container start. Propagation is proven, not assumed:
// a mount that stands on the node and is invisible in the sandbox is the worst
// way to fail. It returns the targets that some container does not see.
//
// It is not yet possible before a container runs. A mount that was
// proven once stays so while the containers restart.
func (a *Agent) prove(ctx context.Context, s *podState, p plan.Pod, tree *beneath.Dir, failed outcome) (map[string]bool, error) {
	s.dropSeen(p.Uses)
	open := s.unproven(p.Uses)
	if len(open) == 0 {
		return nil, s.provenBefore("no container that mounts the volume is running")
	}
	views, err := a.views(s.j.UID, open)
	if errors.Is(err, proof.ErrUnknown) {
		return nil, s.provenBefore("the container's processes cannot be seen (the agent needs hostPID)")
	}
	if err != nil {
		return nil, s.provenBefore(fmt.Sprintf("the container's mounts cannot be read: %v", err))
	}
	for i, e := range s.j.Mounts {
		hides := func(v proof.View) bool { return !v.Sees(e.Target, *e.Record) }
		if e.State == journal.Mounted && slices.ContainsFunc(views, hides) {
			// Perhaps under another name: a folder may be renamed while mounted.
			rec := a.current(ctx, tree, e)
			s.j.Mounts[i].Record = &rec
		}
	}
	return a.findHidden(s, views, failed)
}

// views reads what the containers see: through processes that are known already,
// and where those are not enough through all there are. To look for them costs
// more than everything else in a pass.
func (a *Agent) views(uid string, open []plan.Use) ([]proof.View, error) {
	views, err := proof.Of(a.Processes, open, a.Processes.Known(uid))
	if err == nil && len(views) == len(open) {
		return views, nil
	}
	ps, err := a.Processes.Of(uid)
	if err != nil && !errors.Is(err, procs.ErrCannotTell) {
		return nil, err
	}
	return proof.Of(a.Processes, open, ps)
}

// current is the record under the name that the mount's root has now.
func (a *Agent) current(ctx context.Context, tree *beneath.Dir, e journal.Entry) mnt.Record {
	place, _ := a.placeOf(ctx, tree, e) // not the same folder, where it fails
	return e.Record.Now(place)
}

// placeOf says what stands at e's target, with a deadline: entering an NFS mount may
// ask its server.
func (a *Agent) placeOf(ctx context.Context, tree *beneath.Dir, e journal.Entry) (mnt.Place, error) {
	target := e.Target
	keys := []deadline.Key{{Name: "mount:" + tree.Path() + "/" + target, Limit: 1}}
	for _, k := range a.storageOf(e) {
		k.Kept = true
		keys = append(keys, k)
	}
	return deadline.On(ctx, a.Budget, localBound, tree, func(tree *beneath.Dir) (mnt.Place, error) {
		dir, err := tree.Open(target)
		if err != nil {
			return mnt.Place{}, err
		}
		defer dir.Close()
		tree.Close()
		return a.Table.At(dir)
	}, keys...)
}

// findHidden compares the journal with what containers see, and notes what is proven by
// it: it returns the targets that some container does not see.
func (a *Agent) findHidden(s *podState, views []proof.View, failed outcome) (map[string]bool, error) {
	hidden := make(map[string]bool)
	first := false
	for _, v := range views {
		if s.seen[v.Use.ID] == nil {
			s.seen[v.Use.ID] = make(map[string]bool)
		}
		for i, e := range s.j.Mounts {
			switch {
			case e.State != journal.Mounted || s.seen[v.Use.ID][e.Target]:
			case v.Sees(e.Target, *e.Record):
				s.seen[v.Use.ID][e.Target] = true
				first = first || !e.Proven
				s.j.Mounts[i].Proven = true
			default:
				hidden[e.Target] = true
				failed.add(e.Target, grant.CodeMountFailed, fmt.Sprintf(
					"the mount stands on the node but container %q does not see it: mountPropagation must be HostToContainer and kubelet's directory shared", v.Use.Container))
			}
		}
	}
	if !first {
		return hidden, nil
	}
	a.note(s)
	return hidden, nil
}

// dropSeen forgets containers that are no longer there. That a mount was proven
// in one of them stays in the journal.
func (s *podState) dropSeen(uses []plan.Use) {
	for id := range s.seen {
		if !slices.ContainsFunc(uses, func(u plan.Use) bool { return u.ID == id }) {
			delete(s.seen, id)
		}
	}
}

// unproven are the running containers that have not been seen to have every
// standing mount.
func (s *podState) unproven(uses []plan.Use) []plan.Use {
	var open []plan.Use
	for _, u := range uses {
		if u.ID == "" || !u.HostToContainer {
			continue
		}
		for _, e := range s.j.Mounts {
			if e.State == journal.Mounted && !s.seen[u.ID][e.Target] {
				open = append(open, u)
				break
			}
		}
	}
	return open
}

// provenBefore is nil where every standing mount has been proven in some
// container of the Pod, and else says that there is no proof yet, and why.
func (s *podState) provenBefore(why string) error {
	for _, e := range s.j.Mounts {
		if e.State == journal.Mounted && !e.Proven {
			return notYet("%s", why)
		}
	}
	return nil
}
