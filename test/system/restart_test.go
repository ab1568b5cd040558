package system_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/operator"
)

const (
	restarts   = 100
	mostMounts = 32
)

// manyRestarts kills and starts the agent of a Pod with as many mounts as it may
// have. Every third agent is killed while it applies a change of one of them.
func manyRestarts(t *testing.T, c *cluster) {
	restart(t, c, t.TempDir(), func(*node) agentOptions { return agentOptions{} })
}

// overlappingRestarts is the same for an agent in whose namespace every host path
// is there more than once: the agent's own folder lies in what is mounted as
// kubelet's, and all of it is mounted once more as the host's root.
func overlappingRestarts(t *testing.T, c *cluster) {
	// The test's own temporary folder is private, so these are the agent's alone.
	dir := t.TempDir()
	restart(t, c, dir, func(n *node) agentOptions {
		return agentOptions{
			binds: []string{
				n.Dir + ":" + filepath.Join(dir, "host"),
				n.Kubelet + ":" + filepath.Join(dir, "kubelet"),
				filepath.Join(n.Kubelet, "agent") + ":" + filepath.Join(dir, "root"),
			},
			flags: []string{"--kubelet-dir", filepath.Join(dir, "kubelet"), "--root", filepath.Join(dir, "root")},
		}
	})
}

func restart(t *testing.T, c *cluster, elsewhere string, options func(*node) agentOptions) {
	n := c.node(t)
	base := options(n)
	if len(base.binds) > 0 {
		n.Root = filepath.Join(n.Kubelet, "agent")
		must(t, os.Mkdir(n.Root, 0o755))
	}
	set := make([]grant.Mount, mostMounts)
	for i := range set {
		rel := fmt.Sprintf("home/many/%02d", i)
		n.folder(rel)
		set[i] = home(rel, fmt.Sprintf("t%02d", i))
	}
	n.claim = n.checksums()
	p := n.run("sandbox")
	n.startAgent(base)
	p.grant(set...)
	before, changing := p.ids(), set[mostMounts-1].Target
	lines := n.lines(p, elsewhere)

	points := []string{"before:Unmount:1", "after:Unmount:1", "before:Bind:1", "after:Bind:1", "after:Save:1", "before:Save:3", "after:Save:4", "before:Answer:1"}
	deaths := 0
	var asked operator.Asked
	for i := range restarts {
		if i > 0 && i%3 == 0 {
			// The next change takes this one back. An agent that found neither made would
			// have nothing to do, and reach no point. (What an agent left half made may be
			// reported as held for a while.)
			if st := p.answered(asked); !slices.Equal(st.Mounted, targets(set)) {
				t.Fatalf("answered %s %v %v", st.State, st.Mounted, st.Messages)
			}
		}
		n.agent.Kill()
		o := base
		if i%3 != 0 {
			n.startAgent(o).Says("watching the node's pods")
			continue
		}
		last := &set[mostMounts-1]
		last.AllowExec = !last.AllowExec // its folder stays the same
		asked = p.ask(set...)
		o.die = points[i/3%len(points)]
		n.startAgent(o).WaitEnded()
		if n.agent.Killed() {
			deaths++
		}
	}
	n.agent.Kill()
	n.startAgent(base)
	p.grant(set...)
	after := p.ids()
	delete(before, changing)
	delete(after, changing)
	if !maps.Equal(before, after) {
		t.Errorf("unchanged mounts are %v, were %v", after, before)
	}
	if now := n.lines(p, elsewhere); !maps.Equal(lines, now) {
		t.Errorf("the mount tables have %v lines, had %v", now, lines)
	}
	if want := (restarts + 2) / 3; deaths != want {
		t.Errorf("%d agents were killed while they applied a change, not %d", deaths, want)
	}
	p.delete()
}

// lines are how long the mount tables are that show the Pod's mounts. elsewhere
// is where the agent has more of the node than it needs.
func (n *node) lines(p *pod, elsewhere string) map[string]int {
	n.t.Helper()
	host, err := n.Mounts()
	must(n.t, err)
	inside, err := p.ctr.Mounts()
	must(n.t, err)
	grants := 0
	for _, m := range inside {
		if strings.HasPrefix(m.Point, simnode.DefaultMountPath) {
			grants++
		}
	}
	table, ok := n.tableOf(n.agent.PID)
	if !ok {
		n.t.Fatal("the agent has ended")
	}
	agent := 0
	for _, m := range table {
		// Other tests' nodes are in it as well.
		if mnt.Within(n.Dir, m.Point) || mnt.Within(elsewhere, m.Point) {
			agent++
		}
	}
	return map[string]int{"host": len(host), "agent": agent, "container": len(inside), "grants": grants}
}
