package system_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// The life of a Pod, during which agents are killed: three grants, one of them
// changed, one revoked, and then the Pod is deleted.
func lifeOfAPod() [][]grant.Mount {
	ada, cats := home("home/users/ada", "ada"), dataset("datasets/cats", "cats")
	bob := home("home/users/bob", "bob")
	changed := bob
	changed.Mode = grant.ReadOnly
	return [][]grant.Mount{{ada, bob, cats}, {ada, changed, cats}, {ada, changed}}
}

// livesPerPoint is how many lives are tried for one point. How many grants are
// recorded by one writing depends on which ends first, and so does the number of
// writings: the last ones do not come in every life. How many points are reached is
// therefore the machine's to decide. Every life comes to the first point of each kind,
// and none that comes to its point may live on.
const livesPerPoint = 3

// killedAtEveryPoint lives that life once to count what the agent does, and then
// three times for each of these things, killing the agent right before or right
// after it: once another agent comes back at once, once only when nothing is asked
// for any more, once only when the Pod has gone.
func killedAtEveryPoint(t *testing.T, c *cluster) {
	calls := uneventfulLife(t, c)
	var points, reached atomic.Int64
	var kinds sync.Map // of points that were reached
	t.Run("points", func(t *testing.T) {
		for _, op := range steps() {
			if calls[op] == 0 {
				t.Errorf("the life of a Pod needs no %s", op)
			}
			for nth := range calls[op] {
				for _, when := range []string{"before", "after"} {
					for how, aftermath := range aftermaths() {
						point := fmt.Sprintf("%s:%s:%d", when, op, nth+1)
						t.Run(point+" "+how, func(t *testing.T) {
							t.Parallel()
							points.Add(1)
							for range livesPerPoint {
								if l := begin(t, c, point); l.liveUntilDeath() {
									reached.Add(1)
									kinds.Store(when+" "+op+", it "+how, true)
									aftermath(l)
									return
								}
							}
						})
					}
				}
			}
		}
	})
	t.Logf("killed at %d of %d points: %v", reached.Load(), points.Load(), calls)
	for _, op := range steps() {
		for _, when := range []string{"before", "after"} {
			for how := range aftermaths() {
				if kind := when + " " + op + ", it " + how; !kindReached(&kinds, kind) {
					t.Errorf("no agent was killed %s", kind)
				}
			}
		}
	}
}

// steps are what an agent does that the next one may find done, or not.
func steps() []string {
	return []string{"NewTree", "Publish", "Bind", "Unmount", "Save", "Remove", "Answer"}
}

// aftermaths are what happens after an agent was killed.
func aftermaths() map[string]func(*life) {
	return map[string]func(*life){
		"returns": (*life).agentReturns, "is asked for nothing": (*life).nothingIsAsked, "stays away": (*life).podGoesFirst,
	}
}

func kindReached(kinds *sync.Map, kind string) bool {
	_, reached := kinds.Load(kind)
	return reached
}

// life is one life of a Pod under an agent that is to be killed.
type life struct {
	t     *testing.T
	n     *node
	p     *pod
	a     *agentProcess
	point string // where the agent is to be killed, "" nowhere
	sets  [][]grant.Mount
	stage int // index in sets, or beyond: the Pod is being deleted
}

func begin(t *testing.T, c *cluster, point string) *life {
	t.Helper()
	n := c.node(t)
	l := &life{t: t, n: n, p: n.run("sandbox"), point: point, sets: lifeOfAPod()}
	l.a = n.startAgent(agentOptions{die: point})
	return l
}

func uneventfulLife(t *testing.T, c *cluster) map[string]int {
	t.Helper()
	l := begin(t, c, "")
	if l.liveUntilDeath() {
		t.Fatal("the agent died by itself")
	}
	return l.a.calls()
}

// liveUntilDeath goes on until the agent dies, and tells whether it did. One that
// comes to its point and lives on fails the test.
func (l *life) liveUntilDeath() bool {
	l.t.Helper()
	for i, set := range l.sets {
		l.stage = i
		if l.diedInStage(set) {
			return true
		}
	}
	l.stage++
	l.p.terminate(60)
	must(l.t, l.p.ctr.Stop())
	eventually(l.t, "the agent to die or the release to end", func() string {
		if l.a.Alive() && (l.p.known() || l.doomed()) {
			return "neither"
		}
		return ""
	})
	if l.a.Alive() {
		l.p.tornDown()
		l.p.remove()
		return false
	}
	return l.mustBeKilled()
}

// doomed tells whether the agent has come to its point. After its last call nothing
// else shows that it is about to be killed.
func (l *life) doomed() bool {
	l.t.Helper()
	_, point, _ := strings.Cut(l.point, ":")
	op, nth, _ := strings.Cut(point, ":")
	n, err := strconv.Atoi(nth)
	return err == nil && l.a.calls()[op] >= n
}

func (l *life) diedInStage(set []grant.Mount) bool {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	go func() {
		select {
		case <-l.a.Done:
			cancel()
		case <-ctx.Done():
		}
	}()
	asked := l.p.ask(set...)
	st, err := l.n.operator.Wait(ctx, asked)
	switch {
	case err == nil:
		l.p.mustBeReady(st, set)
	case l.a.Alive():
		l.t.Fatalf("the agent lives and does not answer: %v", err)
	}
	return !l.a.Alive() && l.mustBeKilled()
}

func (l *life) mustBeKilled() bool {
	l.t.Helper()
	if !l.a.Killed() {
		l.t.Fatalf("the agent ended by itself: %v", l.a.State)
	}
	return true
}

// agentReturns: the next agent brings the Pod to what is asked, each mount once,
// and answers.
func (l *life) agentReturns() {
	l.t.Helper()
	sets := l.sets
	if l.stage == len(sets) {
		l.n.startAgent(agentOptions{})
		l.p.tornDown()
		l.p.remove()
		l.p.forgotten()
		return
	}
	before := l.p.ids()
	l.n.startAgent(agentOptions{})
	set := sets[l.stage]
	eventually(l.t, "the set to stand, each mount once", func() string { return l.p.differs(set) })
	eventually(l.t, "the answer", func() string {
		if st := l.p.ready(); st == nil || !slices.Equal(st.Mounted, targets(set)) {
			return fmt.Sprintf("it is %+v", st)
		}
		return ""
	})
	ids := l.p.ids()
	if l.stage > 0 {
		for _, m := range set {
			if slices.Contains(sets[l.stage-1], m) && ids[m.Target] != before[m.Target] {
				l.t.Errorf("%s, which nobody changed, is mount %d, was %d", m.Target, ids[m.Target], before[m.Target])
			}
		}
	}
	l.p.grant(set...) // once more, answered once more
	if now := l.p.ids(); !maps.Equal(ids, now) {
		l.t.Errorf("the mounts are %v, were %v", now, ids)
	}
	l.n.mustHaveClaim()
	l.p.grant()
	l.p.delete()
}

// nothingIsAsked: the annotation is removed while no agent runs, and with it all
// that says what was under way, but for the journal. The next agent leaves nothing.
func (l *life) nothingIsAsked() {
	l.t.Helper()
	if l.stage == len(l.sets) {
		l.agentReturns()
		return
	}
	must(l.t, l.n.operator.Clear(l.t.Context(), l.p.named()))
	l.n.startAgent(agentOptions{})
	l.p.forgotten()
	folders, err := l.p.ctr.ReadDir(simnode.DefaultMountPath)
	must(l.t, err)
	if len(folders) > 0 || len(l.p.ids()) > 0 || l.p.ready() != nil {
		l.t.Errorf("left: folders %v, mounts %v, answer %+v", folders, l.p.ids(), l.p.ready())
	}
	l.p.delete()
}

// podGoesFirst: the Pod is deleted while no agent runs. kubelet's teardown fails
// as long as a grant stands, and takes nothing with it.
func (l *life) podGoesFirst() {
	l.t.Helper()
	must(l.t, l.p.ctr.Stop())
	l.p.remove()
	host, err := l.n.Mounts()
	must(l.t, err)
	standing := names(host, l.p.VolumePath())
	for range 3 {
		how, err := l.p.TearDownVolume()
		if how == "disk" || len(standing) > 0 && !errors.Is(err, unix.EBUSY) {
			l.t.Errorf("with %v standing, kubelet's teardown (%s): %v", standing, how, err)
		}
	}
	host, err = l.n.Mounts()
	must(l.t, err)
	if now := names(host, l.p.VolumePath()); !slices.Equal(now, standing) {
		l.t.Errorf("%v stand, %v stood", now, standing)
	}
	l.n.mustHaveClaim()
	l.n.startAgent(agentOptions{})
	l.p.tornDown()
	l.p.forgotten()
}
