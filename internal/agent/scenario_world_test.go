package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/plan"
)

// world is what a story happens in: a node whose mounts are in memory, a
// Kubernetes API in memory, a clock that the story moves, and an agent.
type world struct {
	t                    testing.TB
	root, kubelet, claim string
	boots                int
	table                *mnttest.Table
	cast                 *cast
	api                  *storyAPI
	clock                *clocktesting.FakeClock
	policy               plan.Policy
	disk                 disk
	log                  logbook
	queue                queue
	pods                 map[string]bool // uids of all Pods that there ever were

	// Of the agent that runs, nil when none does.
	agent   *agent.Agent
	stop    context.CancelFunc
	death   *death
	metrics *obs.Recorder

	told int // lines of the table's log that the story has told
}

func newWorld(t testing.TB) *world {
	dir := t.TempDir()
	w := &world{
		t: t, root: filepath.Join(dir, "agent"), kubelet: filepath.Join(dir, "kubelet"), claim: filepath.Join(dir, "claim"),
		cast: newCast(), clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 9, 0, 0, 0, time.UTC)),
		policy: agent.DefaultPolicy(agenttest.NodeName), pods: map[string]bool{},
	}
	w.queue = queue{now: w.clock.Now}
	w.api = &storyAPI{API: agenttest.NewAPI(), w: w}
	for _, d := range []string{w.root, w.kubelet, filepath.Join(w.kubelet, "pods"), w.claim} {
		w.must(os.Mkdir(d, 0o755))
	}
	w.boot()
	t.Cleanup(w.stopAgent)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// boot is the node after a (re)boot: no mounts but the claim, no processes.
func (w *world) boot() {
	w.stopAgent()
	w.boots++
	w.cast.exit(func(*actor) bool { return true })
	w.table, w.told = mnttest.New(), 0
	w.table.MountDisk(w.claim)
	trees, err := filepath.Glob(filepath.Join(w.root, "pods", "*"))
	w.must(err)
	for _, tree := range trees {
		w.empty(tree)
	}
	w.startAgent()
}

// empty removes what lay in a memory filesystem that is gone. The table in
// memory leaves directories as they are.
func (w *world) empty(dir string) {
	entries, err := os.ReadDir(dir)
	w.must(err)
	for _, e := range entries {
		w.must(os.RemoveAll(filepath.Join(dir, e.Name())))
	}
}

// moved is told of every mount and unmount in a tree, and does to the folders what
// the kernel would: a tree that is gone takes its folders with it, and a folder on
// which something is mounted cannot be removed. Here it is a file in it that keeps
// it from being removed: ENOTEMPTY where the kernel says EBUSY.
func (w *world) moved(place string) {
	stands := slices.ContainsFunc(w.table.Mounts(), func(m mnt.Mount) bool { return m.Point == place })
	mark := filepath.Join(place, ".mounted")
	switch pods := filepath.Join(w.root, "pods"); {
	case filepath.Dir(place) == pods && !stands:
		w.empty(place)
	case filepath.Dir(filepath.Dir(place)) != pods:
	case stands:
		w.must(os.WriteFile(mark, nil, 0o600))
	default:
		w.must(os.RemoveAll(mark))
	}
}

// startAgent starts an agent that knows nothing but the journal and the mounts.
func (w *world) startAgent() {
	w.stopAgent()
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.metrics = cancel, obs.NewRecorder("story", "story")
	w.death = &death{journal: filepath.Join(w.root, "journal")}
	store, err := journal.Open(filepath.Join(w.root, "journal"))
	w.must(err)
	a, err := agent.New(ctx, agent.Config{
		Journal: paper{store, &w.disk},
		Claim:   agent.Claim{Path: w.claim, Owner: beneath.Owner{UID: userID, GID: groupID}, Bound: 5 * time.Second},
		Policy:  w.policy, Root: w.root, Kubelet: w.kubelet, BootID: fmt.Sprintf("boot-%d", w.boots),
		Table: mortal{Table: w.table, death: w.death, moved: w.moved}, Processes: w.cast, API: w.api, Budget: &deadline.Budget{},
		Metrics: w.metrics, Clock: w.clock, Log: slog.New(&w.log),
	})
	w.must(err)
	w.agent = a
	uids, err := a.Start(ctx)
	w.must(err)
	// Its queue is empty, and filled by what it found and by the first list.
	w.queue.reset()
	for uid := range w.pods {
		if _, listed := w.api.Pod(uid); listed {
			w.queue.event(uid)
		}
	}
	for _, uid := range uids {
		w.queue.event(uid)
	}
}

// stopAgent ends the agent. Every mount is left standing.
func (w *world) stopAgent() {
	if w.agent != nil {
		w.stop()
		w.agent.Close()
		w.agent = nil
	}
}

func (w *world) volume(uid string) string {
	return filepath.Join(w.kubelet, "pods", uid, "volumes", "kubernetes.io~empty-dir", w.policy.VolumeName)
}

func (w *world) tree(uid string) string { return filepath.Join(w.root, "pods", uid) }

// newPod puts a pooled Pod into the API. Nothing of it is on the node yet.
func (w *world) newPod(uid, name string) {
	w.pods[uid] = true
	w.api.Put(plan.Pod{
		UID: uid, Namespace: "sandboxes", Name: name, Node: agenttest.NodeName, HostUsers: true,
		Volume: &plan.Volume{Memory: true},
		Uses:   []plan.Use{{Container: "runtime", Path: mnttest.MountPath, HostToContainer: true}},
	})
	w.queue.event(uid)
}

// change edits a Pod in the API, and the watch tells.
func (w *world) change(uid string, edit func(p *plan.Pod)) {
	w.t.Helper()
	if _, ok, err := w.api.Confirm(w.t.Context(), plan.Ref{UID: uid}); err == nil && !ok {
		w.t.Fatalf("there is no Pod %s in this story", uid)
	}
	w.api.Change(uid, edit)
	w.queue.event(uid)
}

// makeVolume is kubelet's part before it starts a Pod.
func (w *world) makeVolume(uid string) {
	w.must(os.MkdirAll(w.volume(uid), 0o755))
	w.table.MountTmpfs(w.volume(uid))
}

// start starts a container of the Pod, and the API tells its id. use is which of
// the Pod's containers it is.
func (w *world) start(uid, name string, use int, isolated bool) {
	view := w.table.Container
	if isolated {
		view = w.table.Isolated
	}
	id := uid + "/" + name
	w.cast.enter(uid, name, id, view(w.volume(uid)))
	w.change(uid, func(p *plan.Pod) { p.Uses[use].ID = id })
}

// end ends all of the Pod's processes.
func (w *world) end(uid string) { w.cast.exit(func(a *actor) bool { return a.uid == uid }) }

// pass makes one pass over the Pod, as the queue would.
func (w *world) pass(uid string) (time.Duration, error) {
	w.queue.begin(uid)
	again, err := w.agent.Reconcile(w.t.Context(), uid)
	w.queue.done(uid, again, err)
	if !w.death.struck() {
		return again, err
	}
	w.stopAgent()
	w.must(w.death.restoreJournal())
	return 0, errDead
}

// sweep makes one sweep.
func (w *world) sweep() {
	w.t.Helper()
	w.api.sweeping.Store(true)
	defer w.api.sweeping.Store(false)
	w.must(w.agent.Sweep(w.t.Context()))
}

// queue decides when there is a pass, as the agent's controller does: at once
// after an event, after the pause that a pass asked for, and with a backoff after
// an error. An event takes nothing away from a pause.
type queue struct {
	mu     sync.Mutex
	now    func() time.Time
	soon   map[string]bool
	later  map[string]time.Time
	errors map[string]int
}

// Backoff of passes that end with an error.
const (
	backoffFirst = 100 * time.Millisecond
	backoffLimit = 30 * time.Second
)

func (q *queue) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.soon, q.later, q.errors = map[string]bool{}, map[string]time.Time{}, map[string]int{}
}

func (q *queue) event(uid string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.soon[uid] = true
}

func (q *queue) begin(uid string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.soon, uid)
	if at, ok := q.later[uid]; ok && !at.After(q.now()) {
		delete(q.later, uid)
	}
}

func (q *queue) done(uid string, again time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		again = min(backoffFirst<<min(q.errors[uid], 20), backoffLimit)
		q.errors[uid]++
	} else {
		delete(q.errors, uid)
	}
	at := q.now().Add(again)
	if old, ok := q.later[uid]; again > 0 && (!ok || at.Before(old)) {
		q.later[uid] = at
	}
}

// next is the Pod that is due first, and when.
func (q *queue) next() (uid string, at time.Time, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.soon) > 0 {
		return slices.Sorted(maps.Keys(q.soon))[0], q.now(), true
	}
	for _, u := range slices.Sorted(maps.Keys(q.later)) {
		if !ok || q.later[u].Before(at) {
			uid, at, ok = u, q.later[u], true
		}
	}
	return uid, at, ok
}

// storyAPI is the API with an ear: it remembers the answers, and tells the queue
// of them, as the watch does.
type storyAPI struct {
	*agenttest.API
	w  *world
	mu sync.Mutex
	// wrote are the Pods whose answer was written or removed since the story last
	// told it.
	wrote    []string
	sweeping atomic.Bool
}

// Answer implements agent.API.
func (a *storyAPI) Answer(ctx context.Context, pod plan.Pod, ready *string) error {
	return a.w.death.at("answer", func() error {
		a.judge(pod, ready)
		if err := a.API.Answer(ctx, pod, ready); err != nil {
			return err
		}
		a.mu.Lock()
		a.wrote = append(a.wrote, pod.UID)
		a.mu.Unlock()
		a.w.queue.event(pod.UID)
		return nil
	})
}

// judge holds every answer against the truth, in every story: what it calls mounted
// stands, once, and a Pod that is called ready sees it.
func (a *storyAPI) judge(pod plan.Pod, ready *string) {
	if ready == nil {
		return
	}
	st, err := grant.DecodeStatus(*ready)
	if err != nil {
		a.w.t.Errorf("the answer cannot be read: %v", err)
	}
	times := map[string]int{}
	for _, m := range a.w.table.Mounts() {
		times[m.Point]++
	}
	for _, target := range st.Mounted {
		if n := times[filepath.Join(a.w.tree(pod.UID), target)]; n != 1 {
			a.w.t.Errorf("%s is answered as mounted and is %d times", target, n)
		}
		if x, ok := a.w.cast.find(pod.UID, ""); ok && st.State == grant.StateReady && !sees(x, target) {
			a.w.t.Errorf("%s is answered as ready and %s does not see it", target, x.name)
		}
	}
}

// Enqueue implements agent.API. What a sweep asks for is in the queue at once. What
// else asks does so when it comes to it: a story awaits it, or it never happens.
func (a *storyAPI) Enqueue(uid string) {
	if a.sweeping.Load() {
		a.w.queue.event(uid)
		return
	}
	a.API.Enqueue(uid)
}

// take is what was written since it was last asked.
func (a *storyAPI) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	wrote := a.wrote
	a.wrote = nil
	return wrote
}

// paths shortens the node's paths to what a story calls them.
func (w *world) paths(s string) string {
	for _, uid := range w.uids() {
		s = strings.ReplaceAll(s, w.volume(uid), "volume/"+uid)
	}
	return strings.NewReplacer(filepath.Join(w.root, "pods"), "tree", w.claim, "claim", w.root, "agent", w.kubelet, "kubelet").Replace(s)
}

// uids are the Pods that kubelet has folders of.
func (w *world) uids() []string {
	entries, err := os.ReadDir(filepath.Join(w.kubelet, "pods"))
	if err != nil {
		return nil
	}
	var uids []string
	for _, e := range entries {
		uids = append(uids, e.Name())
	}
	return uids
}
