package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/datalayer/node-mounts/internal/nodeview"
)

const (
	// maxDocument bounds what one agent may send: 20,000 mounts of a long source.
	maxDocument = 64 << 20
	// maxComplaint bounds what is kept of its errors.
	maxComplaint = 4 << 10
)

// ErrForbidden says that who asks may not run commands in the agents' Pods, which
// needs create on pods/exec there.
var ErrForbidden = errors.New("you may not run commands in the agents' Pods (create on pods/exec)")

// command is what is run in the agent's container. It is the agent's own program: an
// image has no other that is certain to be there.
func command() []string { return []string{"node-mounts-agent", "gateway"} }

// Ask implements Agents.
func (c *Cluster) Ask(ctx context.Context, a Agent) (nodeview.Node, error) {
	out := &Bounded{Most: maxDocument}
	complaint := &Bounded{Most: maxComplaint, Drop: true}
	in := Containers{Client: c.Client, Config: c.Config}
	err := in.Exec(ctx, Place{a.Namespace, a.Pod, Container}, command(), Streams{Out: out, Err: complaint})
	if err != nil {
		return nodeview.Node{}, explained(err, complaint.String())
	}
	var view nodeview.Node
	if err := json.Unmarshal(out.Bytes(), &view); err != nil {
		return nodeview.Node{}, fmt.Errorf("the agent's answer cannot be read: %w", err)
	}
	return view, nil
}

// explained adds what the command complained of: its error, and not the hint.
func explained(err error, complaint string) error {
	// The refusal of an upgrade has lost its type on the way.
	if strings.Contains(err.Error(), " is forbidden: ") {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	line, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(complaint), "error: "), "\n")
	if line == "" {
		return fmt.Errorf("run a command in the agent's container: %w", err)
	}
	return fmt.Errorf("ask the agent in its container: %s (%w)", line, err)
}
