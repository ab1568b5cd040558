package bench

import (
	"context"
	"sync"
	"time"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

// part is something that a pass spends its time on.
type part int

const (
	partMounts    part = iota // calls on the mount table
	partProcesses             // looking through /proc
	partJournal               // records written
	partAnswer                // the API
	parts
)

// meter adds up the time that is spent in what the agent is given. Calls of one
// part that overlap are counted as often as they are.
type meter struct {
	mu    sync.Mutex
	spent [parts]time.Duration
}

// since is for a defer at the begin of a call.
func (m *meter) since(p part, began time.Time) {
	took := time.Since(began)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spent[p] += took
}

// take returns what was spent since the last call.
func (m *meter) take() [parts]time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	spent := m.spent
	m.spent = [parts]time.Duration{}
	return spent
}

type meteredTable struct {
	mnt.Table
	m *meter
}

func (t meteredTable) NewTree(on *beneath.Dir) (mnt.Record, error) {
	defer t.m.since(partMounts, time.Now())
	return t.Table.NewTree(on)
}

func (t meteredTable) Publish(tree, volume *beneath.Dir) (mnt.Record, error) {
	defer t.m.since(partMounts, time.Now())
	return t.Table.Publish(tree, volume)
}

func (t meteredTable) Bind(source, target *beneath.Dir, flags mnt.Flags) (mnt.Record, error) {
	defer t.m.since(partMounts, time.Now())
	return t.Table.Bind(source, target, flags)
}

func (t meteredTable) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	defer t.m.since(partMounts, time.Now())
	return t.Table.Unmount(dir, name, lazy)
}

func (t meteredTable) At(dir *beneath.Dir) (mnt.Place, error) {
	defer t.m.since(partMounts, time.Now())
	return t.Table.At(dir)
}

type meteredProcesses struct {
	agent.Processes
	m *meter
}

func (p meteredProcesses) Of(uid string) ([]procs.Process, error) {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Of(uid)
}

func (p meteredProcesses) Has(uid string) (bool, error) {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Has(uid)
}

func (p meteredProcesses) Known(uid string) []procs.Process {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Known(uid)
}

func (p meteredProcesses) Mounts(of procs.Process) ([]mnt.Mount, error) {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Mounts(of)
}

func (p meteredProcesses) Tables(ctx context.Context, ps []procs.Process) ([]procs.Table, error) {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Tables(ctx, ps)
}

func (p meteredProcesses) Holding(ctx context.Context, ps []procs.Process, ids map[int]bool) ([]procs.Holding, error) {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Holding(ctx, ps, ids)
}

func (p meteredProcesses) Loose(ctx context.Context, ps []procs.Process, devs map[mnt.Dev]bool, shown map[int]bool) ([]procs.Holding, error) {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Loose(ctx, ps, devs, shown)
}

func (p meteredProcesses) Others(ctx context.Context, ids map[int]bool) ([]procs.Process, error) {
	defer p.m.since(partProcesses, time.Now())
	return p.Processes.Others(ctx, ids)
}

type meteredJournal struct {
	agent.Journal
	m *meter
}

func (j meteredJournal) Save(p *journal.Pod) error {
	defer j.m.since(partJournal, time.Now())
	return j.Journal.Save(p)
}

type meteredAPI struct {
	agent.API
	m *meter
}

func (a meteredAPI) Answer(ctx context.Context, pod plan.Pod, ready *string) error {
	defer a.m.since(partAnswer, time.Now())
	return a.API.Answer(ctx, pod, ready)
}
