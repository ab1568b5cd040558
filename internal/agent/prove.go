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
// errNotYet: no proof is possible before a container runs. A mount that was
// proven once stays so while the containers restart.
func (a *Agent) prove(ctx context.Context, s *podState, p plan.Pod, tree *beneath.Dir, failed outcome) (map[string]bool, error) {
	s.dropSeen(p.Uses)
	open := s.unproven(p.Uses)
	if len(open) == 0 {
		if s.allSeen() {
			return nil, nil
		}
		return nil, notYet("no container that mounts the volume is running")
	}
	ps, err := a.Processes.Of(s.j.UID)
	if err != nil && !errors.Is(err, procs.ErrCannotTell) {
		return nil, fmt.Errorf("looking for the Pod's processes: %w", err)
	}
	views, err := proof.Of(a.Processes, open, ps)
	if errors.Is(err, proof.ErrUnknown) {
		if s.allSeen() {
			return nil, nil
		}
		return nil, notYet("the container's processes cannot be seen (the agent needs hostPID)")
	}
	if err != nil {
		return nil, fmt.Errorf("reading a container's mounts: %w", err)
	}
	for i, e := range s.j.Mounts {
		hides := func(v proof.View) bool { return !v.Sees(e.Target, *e.Record) }
		if e.State == journal.Mounted && slices.ContainsFunc(views, hides) {
			// Perhaps under another name: a folder may be renamed while mounted.
			rec := a.current(ctx, tree, e.Target, *e.Record)
			s.j.Mounts[i].Record = &rec
		}
	}
	return s.look(views, failed), nil
}

// current is the record under the name that the mount's root has now.
func (a *Agent) current(ctx context.Context, tree *beneath.Dir, target string, rec mnt.Record) mnt.Record {
	place, _ := a.placeOf(ctx, tree, target) // not the same folder, where it fails
	return rec.Now(place)
}

// placeOf says what stands at target, with a deadline: entering an NFS mount may
// ask its server.
func (a *Agent) placeOf(ctx context.Context, tree *beneath.Dir, target string) (mnt.Place, error) {
	return deadline.Do(ctx, a.Budget, localBound, func() (mnt.Place, error) {
		dir, err := tree.Open(target)
		if err != nil {
			return mnt.Place{}, err
		}
		defer dir.Close()
		return a.Table.At(dir)
	}, nil, deadline.Key{Name: "mount:" + tree.Path() + "/" + target, Limit: 1})
}

// look compares the journal with what containers see.
func (s *podState) look(views []proof.View, failed outcome) map[string]bool {
	hidden := make(map[string]bool)
	for _, v := range views {
		if s.seen[v.Use.ID] == nil {
			s.seen[v.Use.ID] = make(map[string]bool)
		}
		for _, e := range s.j.Mounts {
			switch {
			case e.State != journal.Mounted || s.seen[v.Use.ID][e.Target]:
			case v.Sees(e.Target, *e.Record):
				s.seen[v.Use.ID][e.Target] = true
			default:
				hidden[e.Target] = true
				failed.add(e.Target, grant.CodeMountFailed, fmt.Sprintf(
					"the mount stands on the node but container %q does not see it: mountPropagation must be HostToContainer and kubelet's directory shared", v.Use.Container))
			}
		}
	}
	return hidden
}

// dropSeen forgets containers that are no longer there. What they have seen
// stays known by target under everSeen.
func (s *podState) dropSeen(uses []plan.Use) {
	running := map[string]bool{everSeen: true}
	for _, u := range uses {
		running[u.ID] = true
	}
	for id, targets := range s.seen {
		if running[id] {
			continue
		}
		for t := range targets {
			if s.seen[everSeen] == nil {
				s.seen[everSeen] = make(map[string]bool)
			}
			s.seen[everSeen][t] = true
		}
		delete(s.seen, id)
	}
}

// everSeen is the key in seen for containers that have ended.
const everSeen = ""

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

// allSeen tells whether every standing mount has been seen by some container.
func (s *podState) allSeen() bool {
	for _, e := range s.j.Mounts {
		found := e.State != journal.Mounted
		for _, targets := range s.seen {
			found = found || targets[e.Target]
		}
		if !found {
			return false
		}
	}
	return true
}
