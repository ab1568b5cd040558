package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/facts"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/proof"
)

// SweepInterval is how often the agent compares everything it knows with the
// mount table. It reads the table once for the whole node.
const SweepInterval = 30 * time.Second

// faultInterval is the same on a node that cannot mount: what is missing may
// come at any time, and every Pod waits for it.
const faultInterval = 2 * time.Second

// sweepsAtOnce is how many Pods' storage is asked in parallel. What they share says
// how often it is asked at once itself; this is for what they do not share, the
// processes of buckets, each of which may take its time.
const sweepsAtOnce = 32

// sweepBound is how long a sweep asks storage. What had no turn until then stays what
// it was said to be, and the next sweep asks in another order.
const sweepBound = SweepInterval

// Start reads the journal and the mount table and finds out what still stands.
// It changes nothing on the node: that is for the passes, which the caller asks
// for by the uids it returns.
func (a *Agent) Start(ctx context.Context) ([]string, error) {
	if err := a.sign(); err != nil && !isUnwritable(err) {
		return nil, err
	}
	pods, err := a.store.Load()
	if err != nil {
		a.Log.Error("some records cannot be read: those Pods' mounts are made anew", "error", err)
	}
	if err := a.know(pods); err != nil {
		return nil, err
	}
	if err := a.examine(ctx); err != nil {
		return nil, err
	}
	var uids []string
	for uid, s := range a.states() {
		s.mu.Lock()
		a.adopt(ctx, s, a.table())
		s.mu.Unlock()
		uids = append(uids, uid)
	}
	a.openCheckouts(ctx)
	a.recoverUserspace(ctx)
	return uids, nil
}

// know begins to know the Pods of these records, and those of which only a tree is
// there.
func (a *Agent) know(pods []journal.Pod) error {
	for _, j := range pods {
		a.state(j.UID, true).j = j
	}
	trees, err := os.ReadDir(a.podsDir())
	if err != nil {
		return err
	}
	for _, t := range trees {
		if journal.ValidUID(t.Name()) {
			a.state(t.Name(), true)
		}
	}
	return nil
}

// Run sweeps until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	for {
		pause := SweepInterval
		if a.Fault() != "" {
			pause = faultInterval
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.Clock.After(pause):
		}
		if err := bug.Guard(a.Log, func() error { return a.Sweep(ctx) }); err != nil {
			a.Log.Error("sweep", "error", err)
		}
	}
}

// Sweep looks for what has changed without an event: mounts that others took
// away or made, storage that stopped answering, a node that became able to
// mount or unable.
func (a *Agent) Sweep(ctx context.Context) error {
	before, fault := a.passCounts(), a.Fault()
	if err := a.examine(ctx); err != nil {
		return err
	}
	mended := fault != "" && a.Fault() == ""
	table := a.table()
	asking, cancel := context.WithTimeout(ctx, sweepBound)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(sweepsAtOnce)
	for uid, s := range a.states() {
		group.Go(func() error {
			_ = bug.Guard(a.Log, func() error { a.sweepPod(ctx, asking, s, table, before[uid], mended); return nil }, "uid", uid)
			a.API.Enqueue(uid)
			return nil
		})
	}
	a.tendCheckouts()
	a.tendUserspace()
	return group.Wait()
}

// sweepPod is the sweep of one Pod. mended: what kept grants from being made has gone.
func (a *Agent) sweepPod(ctx, asking context.Context, s *podState, table []mnt.Mount, passes int, mended bool) {
	if !s.mu.TryLock() {
		return // a pass is under way; the next sweep will see
	}
	defer s.mu.Unlock()
	if mended {
		s.retryNow()
	}
	a.mu.Lock()
	outdated := s.passes != passes
	a.mu.Unlock()
	if !outdated {
		a.adopt(ctx, s, table)
	}
	a.askStorage(asking, s)
}

func (a *Agent) passCounts() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]int, len(a.known))
	for uid, s := range a.known {
		out[uid] = s.passes
	}
	return out
}

// adopt takes over what the mount table proves. s.mu is held.
func (a *Agent) adopt(ctx context.Context, s *podState, table []mnt.Mount) {
	was := s.j
	at := places{tree: a.treePath(s.j.UID), volume: a.volumePath(s.j.UID)}
	s.j = reconciled(s.j, table, at, a.BootID, func(target string, rec mnt.Record) (string, bool) {
		tree, err := a.pods.Open(s.j.UID)
		if err != nil {
			return "", false
		}
		defer tree.Close()
		e := journal.Entry{Target: target, Record: &rec}
		if known := was.Find(target); known != nil {
			e.Identity = known.Identity
		}
		now := a.current(ctx, tree, e)
		return now.Root, now.Root != rec.Root
	})
	a.reserve(s, len(s.j.Mounts))
	a.giveBack(was, s.j)
	if reflect.DeepEqual(was, s.j) {
		return
	}
	a.Log.Warn("the mount table differs from the journal", "pod", s.j.Ref(), "entries", len(was.Mounts), "standing", len(s.j.Mounts))
	clear(s.seen)
	a.note(s)
}

// askStorage finds the mounts whose storage has stopped answering. They are
// left standing: an error says that something is wrong, an empty folder does
// not. All are asked at once, so that it takes as long as one, or twice as long where
// many share a storage and wait for their turn. What could not be asked stays what it
// was said to be.
func (a *Agent) askStorage(ctx context.Context, s *podState) {
	tree, err := a.pods.Open(s.j.UID)
	if err != nil {
		return
	}
	defer tree.Close()
	maps.DeleteFunc(s.dead, func(target, _ string) bool {
		e := s.j.Find(target)
		return e == nil || e.State != journal.Mounted
	})
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, e := range s.j.Mounts {
		d, ok := a.by[e.Delivery()]
		if !ok || e.State != journal.Mounted {
			continue
		}
		group.Go(func() {
			err := bug.Guard(a.Log, func() error { return d.Alive(ctx, tree, e.Target, a.storageOf(e)...) }, "pod", s.j.Ref(), "target", e.Target)
			if errors.Is(err, deadline.ErrNoTurn) || err != nil && ctx.Err() != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			s.noteDead(e.Target, err)
		})
	}
	group.Wait()
}

// storageOf is what a standing mount shares with others, and hangs together with them.
// A bucket shares nothing: its process is its filesystem.
func (*Agent) storageOf(e journal.Entry) []deadline.Key {
	switch {
	case e.Delivery() == grant.DeliveryProcess || e.Record == nil:
		return nil
	case e.Delivery() == grant.DeliveryFilesystem:
		return delivery.Server(e.Identity.Source)
	}
	return []deadline.Key{proof.Filesystem(e.Record.Dev)}
}

// examine reads the mount table and finds out whether this node can mount.
func (a *Agent) examine(ctx context.Context) error {
	table, err := a.Table.List()
	if err != nil {
		return err
	}
	fault, unusable := a.findFault(ctx, table), ""
	if fault == "" {
		unusable = a.findUnusable(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setFault(&a.fault, fault)
	a.setFault(&a.unusable, unusable)
	a.filesystems, a.swept = table, a.Clock.Now()
	a.claimed = mnt.Beneath(table, a.Claim.Path)
	return nil
}

func (a *Agent) table() []mnt.Mount {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.filesystems
}

// findFault says why nothing could be mounted correctly here, "" when it could.
func (a *Agent) findFault(ctx context.Context, table []mnt.Mount) string {
	if err := a.Table.Probe(a.pods); err != nil {
		return "this node cannot mount: " + facts.NoMounts(err)
	}
	host := a.hostMounts()
	for _, dir := range []string{a.Kubelet, a.Root} {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Sprintf("%s does not exist on this node: check the agent's volumes and flags", dir)
		}
		if p := facts.Propagation(table, host, dir); p != nodeview.Shared {
			return facts.NotShared(dir, p) + ", then delete this agent's Pod, which has to mount it Bidirectional"
		}
	}
	if err := a.tryJournal(); err != nil {
		return err.Error()
	}
	// What hangs is no answer: the folder may well be there.
	if found, err := facts.KeepsPods(ctx, a.Budget, "/", a.Kubelet); err == nil && !found {
		return facts.NoPods(a.Kubelet)
	}
	return ""
}

// findUnusable says why some delivery can mount nothing, "" when each can. The others
// go on: each of its own grants says so too.
func (a *Agent) findUnusable(ctx context.Context) string {
	for _, d := range a.by {
		if err := d.Usable(ctx); err != nil {
			_, why := delivery.Explain(err)
			return why
		}
	}
	return ""
}

// threadsPerSource is how many threads may hang per source.
const threadsPerSource = 1

// Keys are what a thread that hangs at path is charged to: the source, so that
// trying again costs nothing more, and the filesystem it lies on, so that one
// dead server leaves the others alone.
func (a *Agent) Keys(p string) []deadline.Key {
	a.mu.Lock()
	claimed := a.claimed
	a.mu.Unlock()
	fsys, _ := mnt.Covering(claimed, p)
	return []deadline.Key{
		{Name: "source:" + p, Limit: threadsPerSource},
		proof.Filesystem(fsys.Dev),
	}
}

// Alive is nil while the sweep goes on. It touches no storage.
func (a *Agent) Alive() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if late := a.Clock.Since(a.swept); late > 4*SweepInterval {
		return fmt.Errorf("no sweep for %s", late.Round(time.Second))
	}
	return nil
}
