package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// nodeRow is what is to be said of one node.
type nodeRow struct {
	Node    string `json:"node"`
	Agent   string `json:"agent"` // ready, not ready or none
	Version string `json:"version,omitempty"`
	// Pods, Mounts and Leaked are counted by the agent, and absent where it did not
	// answer.
	Pods   *int   `json:"pods,omitempty"`
	Mounts *int   `json:"mounts,omitempty"`
	Leaked *int   `json:"leaked,omitempty"`
	Reason string `json:"reason,omitempty"` // why something is not as it should be
	// View is the agent's whole document.
	View *nodeview.Node `json:"view,omitempty"`
}

// listNodes shows every node as its agent sees it.
func listNodes(ctx context.Context, out, errOut io.Writer, agents fleet.Agents, form output) error {
	found, err := agents.Agents(ctx)
	if err != nil {
		return err
	}
	for _, what := range found.Unknown {
		fmt.Fprintln(errOut, advice.Plain("not known: "+what))
	}
	answers := fleet.Ask(ctx, agents, found.Agents, fleet.DefaultBound)
	rows := []nodeRow{}
	for _, a := range answers {
		rows = append(rows, nodeRowOf(a))
	}
	if form.structured() {
		return writeDocument(out, form, map[string]any{"nodes": rows})
	}
	if len(rows) == 0 {
		fmt.Fprintf(errOut, "No agents are found (%s).\n", fleet.Selector)
		return nil
	}
	if err := writeNodes(out, rows); err != nil {
		return err
	}
	return writeGateway(out, answers, form == wide)
}

func nodeRowOf(a fleet.Answer) nodeRow {
	row := nodeRow{Node: a.Node, Agent: "none", Version: a.Version, Reason: a.Reason, View: a.View}
	switch {
	case a.Pod == "":
		return row
	case a.Ready:
		row.Agent = "ready"
	default:
		row.Agent = "not ready"
	}
	if a.Err != nil {
		row.Reason = a.Err.Error()
		return row
	}
	pods, mounts := 0, 0
	for _, p := range a.View.Pods {
		if len(p.Mounts) > 0 || p.Published {
			pods++
		}
		mounts += len(p.Mounts)
	}
	row.Version, row.Pods, row.Mounts, row.Leaked = a.View.Version, &pods, &mounts, &a.View.Leaked
	if !a.View.Ready {
		row.Agent, row.Reason = "not ready", a.View.Reason
	}
	return row
}

// count is a number, "" where it is not known.
func count(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func writeNodes(w io.Writer, nodes []nodeRow) error {
	fmt.Fprintln(w, "Nodes")
	var rows [][]string
	for _, n := range nodes {
		rows = append(rows, []string{n.Node, n.Agent, n.Version, count(n.Pods), count(n.Mounts), count(n.Leaked), n.Reason})
	}
	return writeTable(w, []string{"NODE", "AGENT", "VERSION", "PODS", "MOUNTS", "LEAKED", "REASON"}, rows)
}

// writeGateway writes a line for each folder that is bound, and for each that is held.
func writeGateway(w io.Writer, answers []fleet.Answer, wide bool) error {
	fmt.Fprintln(w, "\nNode Mount Gateway")
	head := []string{"NAMESPACE", "POD", "TARGET", "KIND", "SOURCE", "MODE", "STATE"}
	if wide {
		head = append(head, "FLAGS", "NODE", "UID")
	}
	var rows [][]string
	line := func(a fleet.Answer, p nodeview.Pod, cells ...string) {
		row := append([]string{p.Namespace, p.Name}, cells[:5]...)
		if wide {
			row = append(row, cells[5], a.Node, p.UID)
		}
		rows = append(rows, row)
	}
	for _, a := range answers {
		if a.View == nil {
			continue
		}
		for _, p := range a.View.Pods {
			for _, m := range p.Mounts {
				kind := string(m.Kind)
				line(a, p, m.Target, kindCell(&kind), m.Source, string(m.Mode), m.State, m.Flags)
			}
			for _, h := range p.Held {
				line(a, p, h.Target, "", "", "", targetHeld, "")
			}
		}
	}
	return writeTable(w, head, rows)
}
