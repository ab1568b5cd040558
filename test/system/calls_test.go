package system_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
)

// made is where the folder of newHome comes to be, two folders deep.
const made = "home/new"

// shortLife has one of everything: a home that has to be made, a dataset, one of
// them changed and the other revoked, and the Pod's end.
func shortLife() [][]grant.Mount {
	cyd := home(made+"/cyd", "cyd")
	changed := cyd
	changed.Mode = grant.ReadOnly
	return [][]grant.Mount{{cyd, dataset("datasets/cats", "cats")}, {changed}}
}

// killedBetweenSystemCalls lives that life once to count the system calls by which
// the agent changes the mount table, the journal and the claim, and then once for
// each of them, killing the agent right before it: in the middle of a tree that is
// made, a publication, a bind, a record that is written, a home that is made.
func killedBetweenSystemCalls(t *testing.T, c *cluster) {
	whole := beginShort(t, c, "")
	if whole.liveUntilDeath() {
		t.Fatal("the agent died by itself")
	}
	calls, want := whole.a.calls(), whole.folders()
	whole.removeMade()
	var missed sync.Map // calls with points that no life came to
	points := 0
	t.Run("points", func(t *testing.T) {
		for _, call := range watchedCalls() {
			for nth := range calls[call] {
				point := fmt.Sprintf("before:%s:%d", call, nth+1)
				how := []string{"returns", "is asked for nothing", "stays away"}[points%3]
				points++
				t.Run(point+" "+how, func(t *testing.T) {
					t.Parallel()
					for range livesPerPoint {
						l := beginShort(t, c, point)
						if l.liveUntilDeath() {
							aftermaths()[how](l)
							l.mustMakeItWhole(want)
							return
						}
						l.removeMade()
					}
					missed.Store(point, call)
				})
			}
		}
	})
	var of []string
	missed.Range(func(point, _ any) bool { of = append(of, point.(string)); return true })
	slices.Sort(of)
	t.Logf("killed at %d of %d points: %v; not at %v", points-len(of), points, calls, of)
	for _, call := range watchedCalls() {
		reached := calls[call]
		missed.Range(func(_, of any) bool {
			if of == call {
				reached--
			}
			return true
		})
		if reached <= 0 && !slices.Contains(unneeded(), call) {
			t.Errorf("no agent was killed before %s", call)
		}
	}
}

// unneeded are watched calls of which one does what the other would.
func unneeded() []string { return []string{"fchmodat", "fchmodat2"} }

func beginShort(t *testing.T, c *cluster, point string) *life {
	t.Helper()
	n := c.node(t)
	n.made = filepath.Join(n.Claim, made)
	l := &life{t: t, n: n, p: n.run("sandbox"), point: point, sets: shortLife()}
	l.a = n.startAgent(agentOptions{die: point, watch: true})
	return l
}

// folders are owner and mode of what was made.
func (l *life) folders() map[string]string {
	l.t.Helper()
	out := make(map[string]string)
	for _, rel := range []string{made, made + "/cyd"} {
		var st unix.Stat_t
		must(l.t, unix.Lstat(filepath.Join(l.n.Claim, rel), &st))
		out[rel] = fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode)
	}
	return out
}

// mustMakeItWhole: whatever a killed agent left of a home, the next grant of it to
// any Pod gives a home that is made as always.
func (l *life) mustMakeItWhole(want map[string]string) {
	l.t.Helper()
	q := l.n.run("another")
	q.grant(shortLife()[0]...)
	for rel, is := range l.folders() {
		if is != want[rel] {
			l.t.Errorf("%s is %s, want %s", rel, is, want[rel])
		}
	}
	q.delete()
	l.removeMade()
}

func (l *life) removeMade() {
	l.t.Helper()
	for _, rel := range []string{made + "/cyd", made} {
		if err := os.Remove(filepath.Join(l.n.Claim, rel)); err != nil && !os.IsNotExist(err) {
			l.t.Error(err)
		}
	}
}
