package agent_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/procs"
)

// cast are the processes of a story's Pods. What a process sees is a view of the
// mount table in memory; what it holds open is noted beside it.
type cast struct {
	mu      sync.Mutex
	actors  []*actor
	lastPID int
	// blind: the processes are found, but nobody may look into them. lost: they are
	// not even found.
	blind, lost bool
	changed     chan struct{} // closed when a process ends, or can be seen again
}

var _ agent.Processes = (*cast)(nil)

// actor is one process. Its view is nil where it has none of the Pod's mounts:
// the Pod's sandbox.
type actor struct {
	procs.Process
	uid, name string
	view      *mnttest.View
	open      map[string]openFile // by target
}

// openFile is a file in a mount. A process names the mount by its id, also when
// it has been detached.
type openFile struct {
	mountID int
	release func()
}

// sees tells whether the process has a mount at target.
func sees(a *actor, target string) bool {
	return slices.ContainsFunc(a.view.Mounts(), func(m mnt.Mount) bool {
		return m.Point == path.Join(mnttest.MountPath, target)
	})
}

func newCast() *cast { return &cast{lastPID: 100, changed: make(chan struct{})} }

// enter starts a process.
func (c *cast) enter(uid, name, container string, view *mnttest.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastPID++
	c.actors = append(c.actors, &actor{
		Process: procs.Process{PID: c.lastPID, Container: container, MountNS: uint64(c.lastPID), Start: uint64(c.lastPID)},
		uid:     uid, name: name, view: view, open: map[string]openFile{},
	})
}

// exit ends the processes that match.
func (c *cast) exit(match func(a *actor) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.actors = slices.DeleteFunc(c.actors, func(a *actor) bool {
		if !match(a) {
			return false
		}
		if a.view != nil {
			a.view.Stop()
		}
		return true
	})
	c.signal()
}

// signal wakes who waits for processes to end. c.mu is held.
func (c *cast) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// find is the Pod's process of that name, the first one for "".
func (c *cast) find(uid, name string) (*actor, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.actors {
		if a.uid == uid && a.view != nil && (name == "" || a.name == name) {
			return a, true
		}
	}
	return nil, false
}

// hold opens a file in the Pod's mount at target.
func (c *cast) hold(a *actor, target string) {
	release := a.view.Hold(target)
	c.mu.Lock()
	defer c.mu.Unlock()
	point := path.Join(mnttest.MountPath, target)
	for _, m := range a.view.Mounts() {
		if m.Point == point { // the topmost comes last
			a.open[target] = openFile{mountID: m.ID, release: release}
		}
	}
}

// letGo closes it.
func (c *cast) letGo(a *actor, target string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.open[target].release()
	delete(a.open, target)
}

func (c *cast) setBlind(blind, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blind, c.lost = blind, lost
	c.signal()
}

// doubt is what the real finder answers beside what it could read. c.mu is held.
func (c *cast) doubt() error {
	if c.blind || c.lost {
		return fmt.Errorf("%w: permission denied", procs.ErrCannotTell)
	}
	return nil
}

// Of implements agent.Processes.
func (c *cast) Of(uid string) ([]procs.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []procs.Process
	for _, a := range c.actors {
		if a.uid == uid && !c.lost {
			found = append(found, a.Process)
		}
	}
	return found, c.doubt()
}

// Has implements agent.Processes.
func (c *cast) Has(uid string) (bool, error) {
	ps, err := c.Of(uid)
	if len(ps) > 0 {
		return true, nil
	}
	return false, err
}

// Known implements agent.Processes. Nothing is, so that every look is a fresh one.
func (c *cast) Known(string) []procs.Process { return nil }

// Mounts implements agent.Processes.
func (c *cast) Mounts(p procs.Process) ([]mnt.Mount, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.actors {
		switch {
		case a.Process != p:
		case c.blind:
			return nil, fmt.Errorf("mounts of process %d: permission denied", p.PID)
		case a.view == nil:
			return nil, nil
		default:
			return a.view.Mounts(), nil
		}
	}
	return nil, fmt.Errorf("mounts of process %d: %w", p.PID, procs.ErrGone)
}

// Tables implements agent.Processes.
func (c *cast) Tables(_ context.Context, ps []procs.Process) ([]procs.Table, error) {
	var found []procs.Table
	for _, p := range ps {
		mounts, err := c.Mounts(p)
		if errors.Is(err, procs.ErrGone) {
			continue
		}
		if err != nil {
			return found, fmt.Errorf("%w: %w", procs.ErrCannotTell, err)
		}
		found = append(found, procs.Table{Process: p, Mounts: mounts})
	}
	return found, nil
}

// Holding implements agent.Processes.
func (c *cast) Holding(_ context.Context, ps []procs.Process, ids map[int]bool) ([]procs.Holding, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []procs.Holding
	for _, a := range c.actors {
		for target, f := range a.open {
			if slices.Contains(ps, a.Process) && ids[f.mountID] {
				found = append(found, procs.Holding{PID: a.PID, What: procs.OpenFile, Path: target, ID: f.mountID})
			}
		}
	}
	return found, c.doubt()
}

// WaitEnded implements agent.Processes.
func (c *cast) WaitEnded(ctx context.Context, uid string) error {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if ps, err := c.Of(uid); len(ps) == 0 && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
