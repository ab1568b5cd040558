package agent

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/procs"
)

// ownNamespaces is the key of journal.Held.IDs for what the agent and the node see
// themselves, where no mount namespace has a number.
const ownNamespaces = 0

// maxOutsiders bounds what the journal keeps of processes that are not the Pod's.
const maxOutsiders = 16

// outsiders looks through every process of the node for who keeps these mounts busy
// while they still stand, and notes it in them: a person's shell, or a backup that
// passes through the kubelet's folder. No later look would find out.
//
// It knows the agent's own mount table and the node's. A process that has a copy in
// a third mount namespace is not found.
func (a *Agent) outsiders(ctx context.Context, q search, busy []journal.Held) []journal.Held {
	tables, err := a.Table.List()
	if err != nil {
		a.Log.Warn("reading the mount table for who keeps mounts busy", "uid", q.uid, "error", err)
	}
	tables = append(tables, a.hostMounts()...)
	out, err := searching(ctx, a, q, func(ctx context.Context) ([]journal.Held, error) {
		out := slices.Clone(busy)
		all := make(map[int]bool)
		for i := range out {
			own := ownIDs(q, tables, out[i])
			for _, id := range own {
				all[id] = true
			}
			out[i].IDs = withIDs(out[i].IDs, own)
		}
		ps, err := a.Processes.Others(ctx, all)
		for i := range out {
			ids := idsOf(out[i:i+1], nil)
			for _, p := range ps {
				holding, _ := a.Processes.Holding(ctx, []procs.Process{p}, ids) // what it has, or nothing
				if len(holding) > 0 && len(out[i].Outsiders) < maxOutsiders {
					out[i].Outsiders = append(out[i].Outsiders, journal.Process{PID: p.PID, Start: p.Start})
				}
			}
		}
		return out, err
	})
	if err != nil {
		a.Log.Warn("looking through the node's processes for who keeps mounts busy", "uid", q.uid, "error", err)
	}
	if out == nil {
		return busy
	}
	return out
}

// ownIDs are the ids of h's mounts in the tree and in the volume, in tables.
func ownIDs(q search, tables []mnt.Mount, h journal.Held) []int {
	var ids []int
	for _, m := range tables {
		ours := path.Base(m.Point) == h.Target && strings.Contains(m.Point, "/"+q.uid+"/")
		if ours && h.Record.Covers(m) && !slices.Contains(ids, m.ID) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// withIDs is a copy of ids with the agent's own.
func withIDs(ids map[uint64][]int, own []int) map[uint64][]int {
	out := map[uint64][]int{ownNamespaces: own}
	for ns, list := range ids {
		if ns != ownNamespaces {
			out[ns] = list
		}
	}
	return out
}

// stillOutside says of each mount which of the processes that are not the Pod's
// still has it, "" where none has.
func (a *Agent) stillOutside(ctx context.Context, held []journal.Held) ([]string, error) {
	out := make([]string, len(held))
	for i, h := range held {
		ps := make([]procs.Process, len(h.Outsiders))
		for n, p := range h.Outsiders {
			ps[n] = procs.Process{PID: p.PID, Start: p.Start}
		}
		if len(ps) == 0 {
			continue
		}
		holding, err := a.Processes.Holding(ctx, ps, idsOf(held[i:i+1], nil))
		switch {
		case len(holding) > 0:
			out[i] = fmt.Sprintf("process %d of the node, which is not one of the Pod's, still has it (%s)", holding[0].PID, holding[0].What)
		case err != nil:
			return out, err
		}
	}
	return out, nil
}
