package system_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/datalayer/node-mounts/grant"
)

// killedAndAskedForSomethingElse kills the agent right before each system call by which it
// grants and revokes beside a mount that stays. What it was about is not asked for any
// more when the next agent comes, and nothing may be left of it.
func killedAndAskedForSomethingElse(t *testing.T, c *cluster) {
	ada := home("home/users/ada", "ada")
	from := []grant.Mount{ada, home("home/users/bob", "bob")}
	to := []grant.Mount{ada, home(made+"/cyd", "cyd"), dataset("datasets/cats", "cats")}
	then := []grant.Mount{ada}
	whole := beginFrom(t, c, "", from)
	whole.p.grant(to...)
	calls := whole.n.agent.calls()
	whole.end()
	var died atomic.Int64
	t.Run("points", func(t *testing.T) {
		for _, call := range watchedCalls() {
			for nth := range calls[armedCall+call] {
				point := fmt.Sprintf("before:%s:%d", call, nth+1)
				t.Run(point, func(t *testing.T) {
					t.Parallel()
					l := beginFrom(t, c, point, from)
					stays := l.p.ids()["ada"]
					l.p.ask(to...)
					eventually(t, "the agent to die or to answer", func() string {
						if l.n.agent.Alive() && l.p.ready() == nil {
							return "neither"
						}
						return ""
					})
					if !l.n.agent.Alive() {
						died.Add(1)
					}
					l.n.agent.Kill()
					l.p.ask(then...)
					l.n.startAgent(agentOptions{})
					eventually(t, "what is asked for now, and nothing else", func() string {
						if st := l.p.ready(); st == nil || !slices.Equal(st.Mounted, []string{"ada"}) {
							return fmt.Sprintf("the answer is %+v", st)
						}
						return l.p.differs(then)
					})
					if is := l.p.ids()["ada"]; is != stays {
						t.Errorf("what stayed is mount %d, and was %d", is, stays)
					}
					l.end()
				})
			}
		}
	})
	if died.Load() == 0 {
		t.Error("no agent was killed")
	}
}

// beginFrom has one Pod with these grants, on a node whose agent is to die at point from
// then on.
func beginFrom(t *testing.T, c *cluster, point string, from []grant.Mount) *life {
	t.Helper()
	n := c.node(t)
	n.made = filepath.Join(n.Claim, made)
	l := &life{t: t, n: n, p: n.run("sandbox")}
	arm := filepath.Join(t.TempDir(), "arm")
	n.startAgent(agentOptions{die: point, arm: arm, watch: true})
	l.p.grant(from...)
	must(t, os.WriteFile(arm, nil, 0o600))
	return l
}

// end deletes the Pod and what was made on the claim.
func (l *life) end() {
	l.t.Helper()
	l.p.delete()
	l.removeMade()
}
