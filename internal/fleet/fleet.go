// Package fleet finds the agents of a cluster and asks each what it sees on its
// node. An agent answers on loopback alone, so it is asked by a command that runs in
// its container: who asks needs the right to exec there, and no other.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/datalayer/node-mounts/internal/nodeview"
)

// What an agent's Pods and its DaemonSet are found by: the labels that the chart gives
// them.
const (
	NameLabel      = "app.kubernetes.io/name"
	ComponentLabel = "app.kubernetes.io/component"
	// Name is everything's that the chart makes, Component the agents' alone.
	Name      = "node-mounts"
	Component = "agent"
	Selector  = NameLabel + "=" + Name + "," + ComponentLabel + "=" + Component
	// Container is the agent's in its Pod.
	Container = "driver"
	// KeeperSelector finds the keepers' Pods, and KeeperContainer is the keeper's there.
	KeeperSelector  = NameLabel + "=" + Name + "," + ComponentLabel + "=keeper"
	KeeperContainer = "keeper"
	// versionLabel has the agent's version.
	versionLabel = "app.kubernetes.io/version"
)

// Agent is one node's agent, or that it has none: Pod is "" then, and Reason says
// why.
type Agent struct {
	Node      string `json:"node"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Ready     bool   `json:"ready"`
	// Version is what its labels say, "" where they do not.
	Version string `json:"version,omitempty"`
	// Reason says why it is not ready.
	Reason string `json:"reason,omitempty"`
}

// Found are the agents of a cluster.
type Found struct {
	Agents []Agent
	// Unknown says what could not be looked at, and therefore may be missing.
	Unknown []string
}

// Agents finds agents and asks one. Cluster is one; fleettest has one in memory.
type Agents interface {
	// Agents are all agents that there are, by node, and the nodes that should have
	// one and have none.
	Agents(ctx context.Context) (Found, error)
	// Ask has one agent describe its node.
	Ask(ctx context.Context, a Agent) (nodeview.Node, error)
}

// Answer is what became of asking one agent: the document, or why there is none.
type Answer struct {
	Agent
	View *nodeview.Node
	Err  error
}

// ErrNoAgent says that a node has no agent that could be asked.
var ErrNoAgent = errors.New("no agent runs on the node")

// ErrSilent says that an agent did not answer in time.
var ErrSilent = errors.New("the agent does not answer")

// Bounds of asking.
const (
	// DefaultBound is how long one agent may take. It answers within 5 seconds also
	// where its claim hangs.
	DefaultBound = 10 * time.Second
	// atOnce is how many are asked at the same time: each is a connection through
	// the API server.
	atOnce = 32
)

// Ask asks all of them, in parallel and each with the bound. A node that hangs or has
// no agent is told by its Answer, and costs the others nothing: who does not come
// back in time is not waited for. The answers are by node.
func Ask(ctx context.Context, agents Agents, of []Agent, bound time.Duration) []Answer {
	answers := make([]Answer, len(of))
	var asking errgroup.Group
	asking.SetLimit(atOnce)
	for i, a := range of {
		asking.Go(func() error {
			answers[i] = ask(ctx, agents, a, bound)
			return nil
		})
	}
	_ = asking.Wait() // what went wrong is in the answers
	slices.SortStableFunc(answers, func(a, b Answer) int { return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Pod, b.Pod)) })
	return answers
}

func ask(ctx context.Context, agents Agents, a Agent, bound time.Duration) Answer {
	if a.Pod == "" {
		return Answer{Agent: a, Err: fmt.Errorf("%w: %s", ErrNoAgent, a.Reason)}
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	done := make(chan Answer, 1) // not waited for: a connection may not notice its context's end
	go func() {
		view, err := agents.Ask(ctx, a)
		if err != nil {
			done <- Answer{Agent: a, Err: err}
			return
		}
		done <- Answer{Agent: a, View: &view}
	}()
	var out Answer
	select {
	case out = <-done:
	case <-ctx.Done():
		out = Answer{Agent: a, Err: ctx.Err()}
	}
	// Whatever it broke with. The connection's own deadline may come a moment earlier.
	if out.Err != nil && (errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(out.Err, os.ErrDeadlineExceeded)) {
		out.Err = fmt.Errorf("%w within %s", ErrSilent, bound)
	}
	return out
}
