package system_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/operator"
)

// killedWhileHeld kills the agent at every point of a revocation that the sandbox
// resists: it has a file open. The next agent knows it too, although the mount may
// have left every table, and nobody is told that it was revoked.
func killedWhileHeld(t *testing.T, c *cluster) {
	first := resist(t, c, "")
	first.mustBeHeld()
	calls := first.n.agent.calls()
	must(t, first.p.ctr.Drop(first.file))
	eventually(t, "the answer that it is held no longer", func() string {
		if st := first.p.ready(); st == nil || st.State != grant.StateReady {
			return fmt.Sprintf("it is %+v", st)
		}
		return ""
	})
	first.p.delete()

	var points, reached atomic.Int64
	t.Run("points", func(t *testing.T) {
		for _, op := range []string{"Unmount", "Save", "Answer"} {
			if calls[armedCall+op] == 0 {
				t.Errorf("a revocation needs no %s", op)
			}
			for nth := 1; nth <= calls[armedCall+op]; nth++ {
				for _, when := range []string{"before", "after"} {
					point := fmt.Sprintf("%s:%s:%d", when, op, nth)
					t.Run(point, func(t *testing.T) {
						t.Parallel()
						points.Add(1)
						h := resist(t, c, point)
						switch dies := h.dies(op, nth); {
						case dies:
							reached.Add(1)
						case nth == 1:
							t.Errorf("a revocation was answered without %s", op)
						}
						// One that has not come there would die later, at no point of a revocation.
						h.n.agent.Kill()
						h.n.startAgent(agentOptions{})
						h.mustBeHeld()
						h.p.delete()
					})
				}
			}
		}
	})
	t.Logf("killed at %d of %d points", reached.Load(), points.Load())
}

// heldLife is a Pod that has a file open in a mount that is no longer asked for.
type heldLife struct {
	n      *node
	p      *pod
	file   simnode.Handle
	asked  operator.Asked
	events watch.Interface
}

func resist(t *testing.T, c *cluster, point string) *heldLife {
	t.Helper()
	n := c.node(t)
	h := &heldLife{n: n, p: n.run("sandbox")}
	revoking := filepath.Join(t.TempDir(), "revoking")
	n.startAgent(agentOptions{die: point, arm: revoking})
	ada := home("home/users/ada", "ada")
	h.p.grant(ada, home("home/users/bob", "bob"))
	var err error
	h.file, err = h.p.ctr.Hold(in + "bob/file")
	must(t, err)
	h.events, err = c.admin.CoreV1().Pods(n.namespace).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	t.Cleanup(h.events.Stop)
	must(t, os.WriteFile(revoking, nil, 0o600))
	h.asked = h.p.ask(ada)
	return h
}

// dies tells whether the agent dies at the nth call of op. It answers without
// having come there where its grants were recorded in fewer writings.
func (h *heldLife) dies(op string, nth int) bool {
	h.n.t.Helper()
	a := h.n.agent
	eventually(h.n.t, "the agent to die or to answer", func() string {
		if a.Alive() && (h.p.ready() == nil || a.calls()[armedCall+op] >= nth) {
			return "neither"
		}
		return ""
	})
	if a.Alive() {
		return false
	}
	if !a.Killed() {
		h.n.t.Fatalf("the agent ended by itself: %v", a.State)
	}
	return true
}

// mustBeHeld waits for the answer that the mount is held, and wants every answer
// to the set until then to have said so.
func (h *heldLife) mustBeHeld() {
	t := h.n.t
	t.Helper()
	st := h.p.answered(h.asked)
	if st.Failed["bob"] != grant.CodeHeld {
		t.Fatalf("a file is open in bob, and the answer is %+v", st)
	}
	now, err := h.p.get()
	must(t, err)
	for {
		e := <-h.events.ResultChan()
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("the watch ended: %+v", e)
		}
		if text, ok := p.Annotations[h.n.c.names.Ready]; ok && p.Annotations[h.n.c.names.Mounts] == h.asked.Annotation {
			if st, err := grant.DecodeStatus(text); err != nil || st.Failed["bob"] != grant.CodeHeld {
				t.Errorf("a file is open in bob, and an answer was %+v, %v", st, err)
			}
		}
		if p.ResourceVersion == now.ResourceVersion {
			break
		}
	}
	h.p.mustHave([]grant.Mount{home("home/users/ada", "ada")})
	if got, err := h.p.ctr.HeldRead(h.file); err != nil || string(got) != "home/users/bob file" {
		t.Errorf("what is open reads %q, %v", got, err)
	}
}
