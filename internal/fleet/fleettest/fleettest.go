// Package fleettest has a fleet of agents in memory. They behave: one answers, one
// takes as long as its asker has patience, one is not there.
package fleettest

import (
	"context"
	"errors"
	"sync"

	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// ErrNoSuchPod is the answer for a Pod that is no agent of the fleet.
var ErrNoSuchPod = errors.New("pods not found")

// Fleet implements fleet.Agents. The zero value has no agents.
type Fleet struct {
	// Err is why the agents cannot be found.
	Err error

	mu      sync.Mutex
	agents  []fleet.Agent
	unknown []string
	views   map[string]nodeview.Node
	fails   map[string]error
	deaf    map[string]chan struct{} // closed when it gives up
	asked   []string
}

var _ fleet.Agents = (*Fleet)(nil)

func (f *Fleet) add(node string) fleet.Agent {
	a := fleet.Agent{Node: node, Namespace: "agents", Pod: "agent-" + node, Ready: true, Version: "v1"}
	f.agents = append(f.agents, a)
	return a
}

// Answers adds a node whose agent answers with view.
func (f *Fleet) Answers(view nodeview.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.views == nil {
		f.views = map[string]nodeview.Node{}
	}
	f.views[f.add(view.Node).Pod] = view
}

// Fails adds a node whose agent cannot be asked.
func (f *Fleet) Fails(node string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails == nil {
		f.fails = map[string]error{}
	}
	f.fails[f.add(node).Pod] = err
}

// Hangs adds a node whose agent does not answer, and does not notice that nobody waits
// for it any more either, until giveUp is called, once.
func (f *Fleet) Hangs(node string) (giveUp func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf == nil {
		f.deaf = map[string]chan struct{}{}
	}
	given := make(chan struct{})
	f.deaf[f.add(node).Pod] = given
	return func() { close(given) }
}

// Missing adds a node without an agent.
func (f *Fleet) Missing(node, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.agents = append(f.agents, fleet.Agent{Node: node, Reason: why})
}

// Unknown adds what cannot be looked at.
func (f *Fleet) Unknown(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unknown = append(f.unknown, what)
}

// Asked are the Pods that have been asked.
func (f *Fleet) Asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

// Agents implements fleet.Agents.
func (f *Fleet) Agents(context.Context) (fleet.Found, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Err != nil {
		return fleet.Found{}, f.Err
	}
	return fleet.Found{Agents: append([]fleet.Agent(nil), f.agents...), Unknown: append([]string(nil), f.unknown...)}, nil
}

// Ask implements fleet.Agents.
func (f *Fleet) Ask(_ context.Context, a fleet.Agent) (nodeview.Node, error) {
	f.mu.Lock()
	f.asked = append(f.asked, a.Pod)
	view, answers := f.views[a.Pod]
	err, hangs := f.fails[a.Pod], f.deaf[a.Pod]
	f.mu.Unlock()
	switch {
	case hangs != nil:
		<-hangs
		return nodeview.Node{}, context.Canceled
	case err != nil:
		return nodeview.Node{}, err
	case !answers:
		return nodeview.Node{}, ErrNoSuchPod
	}
	return view, nil
}
