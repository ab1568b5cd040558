package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
)

const (
	// turns is how often each number of Pods is measured, one Pod after the other.
	turns = 120
	// pause is from the begin of one measurement to that of the next. What the
	// last one leaves to be done in the background (the agent's second pass, its
	// event) is over then, and the agent's requests stay below the 50 a second that
	// its client allows itself: the limit is not what is measured.
	pause = 50 * time.Millisecond
	// rounds is how often many Pods are granted at once. roundEvery lets the limit
	// recover, whose burst is 100, from their two patches and two events each.
	rounds     = 8
	roundEvery = 3 * time.Second
	atOncePods = 32
	setSize    = 32
	setRounds  = 25
	changes    = 60
	// sweepTurns take longer than the agent's pause between two sweeps, 30 s.
	sweepTurns  = 160
	fullMounts  = 4096
	fullPods    = 16
	bareSuffix  = "bare-%03d"
	agentSuffix = "pod-%03d"
)

// latency is how long a grant takes from the patch of its annotation.
type latency struct {
	pods, others int
	bare         samples // answered by the bare responder
	visible      samples // first mount of a Pod, until it is seen in the container
	ready        samples // the same, until a watcher has the answer
	nextVisible  samples // one more mount
	nextReady    samples
}

// atOnce is the same for many Pods that are granted at the same time.
type atOnce struct {
	bare, ready       samples // each Pod
	bareAll, readyAll samples // until the last one
}

// memory in bytes.
type memory struct{ now, peak int64 }

// apiResult is what a grant costs by way of the API.
type apiResult struct {
	latencies []latency
	full      latency // with fullMounts on the node
	atOnce    atOnce
	set       samples // setSize grants on one Pod, until ready
	setBare   samples

	changes         int // of one Pod's set
	patches         int // by the agent, that the server accepted
	patchesRefused  int // by the agent, that met a changed Pod
	grants          int // of cpu
	cpu             time.Duration
	idle, many      memory // before the first Pod; with all Pods
	filled          memory // with fullMounts on the node
	filledTable     int
	filledGrants    int
	restarted       memory
	restartedPods   int
	restartedWithin time.Duration

	sharing []sharing // of a commit among Pods
}

// world is a node with the agent as a process, a cluster, and the responder that
// the agent is compared with.
type world struct {
	*cluster
	node     *simnode.Node
	path     string // of the agent's binary
	agent    *process
	pods     []*remotePod
	barePods []*remotePod
}

func measureAPI(b *testing.B, path string, repositories []*repository) apiResult {
	b.Helper()
	w := &world{node: newNode(b), path: path}
	others := newCrowd(b, w.node)
	w.cluster = newCluster(b)
	w.agent = startAgent(b, w.path, w.node, w.config)
	startBare(b, w.config)
	var out apiResult
	out.idle = w.memory()
	_, counts := sizesOfNode()
	began := w.agent.cpu()
	for _, n := range counts {
		w.grow(n)
		out.latencies = append(out.latencies, w.latency(turns))
		out.grants += 2 * turns
	}
	out.cpu = w.agent.cpu() - began
	out.many = w.memory()
	out.atOnce = w.atOnce()
	out.set, out.setBare = w.sets()
	out.changes = changes
	out.patches, out.patchesRefused = w.changes()
	w.fill(others, &out)
	out.sharing = w.sharing(repositories)
	return out
}

func (w *world) memory() memory {
	now, peak := w.agent.memory()
	return memory{now, peak}
}

// grow makes Pods until there are so many, and as many of the bare responder.
func (w *world) grow(want int) {
	w.b.Helper()
	for i := len(w.pods); i < want; i++ {
		home(w.b, w.node, i)
		home(w.b, w.node, 1000+i)
		p := w.newPod(fmt.Sprintf(agentSuffix, i), nodeName, i)
		p.run(w.node)
		w.pods = append(w.pods, p)
		w.barePods = append(w.barePods, w.newPod(fmt.Sprintf(bareSuffix, i), bareNode, i))
	}
}

// latency measures one Pod after the other: a first mount and one mount more, and
// before or after each, in turn, the same set answered without mounting.
func (w *world) latency(n int) latency {
	w.b.Helper()
	out := latency{pods: len(w.pods)}
	pace := time.NewTicker(pause)
	defer pace.Stop()
	for i := range n {
		p, bare := w.pods[i%len(w.pods)], w.barePods[i%len(w.barePods)]
		without := func(set string) {
			<-pace.C
			took, err := bare.grant(set)
			must(w.b, err)
			out.bare = append(out.bare, took)
		}
		with := func(set, target string, visible, ready *samples) {
			<-pace.C
			seen, began := p.look(target), time.Now()
			took, err := p.grant(set)
			must(w.b, err)
			*ready = append(*ready, took)
			at := <-seen
			must(w.b, at.err)
			*visible = append(*visible, at.at.Sub(began))
		}
		steps := []func(){
			func() { without(bare.first) },
			func() { with(p.first, target, &out.visible, &out.ready) },
			func() { without(bare.next) },
			func() { with(p.next, "work", &out.nextVisible, &out.nextReady) },
		}
		if i%2 == 1 {
			steps[0], steps[1], steps[2], steps[3] = steps[1], steps[0], steps[3], steps[2]
		}
		for _, step := range steps {
			step()
		}
		must(w.b, p.clear())
		must(w.b, bare.clear())
	}
	return out
}

// atOnce grants many Pods at the same time, in turns with the bare responder's.
func (w *world) atOnce() atOnce {
	w.b.Helper()
	var out atOnce
	pace := time.NewTicker(roundEvery)
	defer pace.Stop()
	for range rounds {
		w.together(w.barePods[:atOncePods], &out.bare, &out.bareAll)
		w.together(w.pods[:atOncePods], &out.ready, &out.readyAll)
		<-pace.C
	}
	return out
}

func (w *world) together(pods []*remotePod, each, all *samples) {
	w.b.Helper()
	took, errs := make(samples, len(pods)), make([]error, len(pods))
	every := func(do func(i int)) {
		var wg sync.WaitGroup
		for i := range pods {
			wg.Go(func() { do(i) })
		}
		wg.Wait()
		for _, err := range errs {
			must(w.b, err)
		}
	}
	began := time.Now()
	every(func(i int) { took[i], errs[i] = pods[i].grant(pods[i].first) })
	*all = append(*all, time.Since(began))
	*each = append(*each, took...)
	every(func(i int) { errs[i] = pods[i].clear() })
}

// table is how many lines the agent's mount table has: it is in our namespace.
func (w *world) table() int {
	w.b.Helper()
	ms, err := (&mnt.Kernel{}).List()
	must(w.b, err)
	return len(ms)
}

// set is the annotation with the Pod's full number of mounts.
func (w *world) set(first int) string {
	w.b.Helper()
	var mounts []grant.Mount
	for j := range setSize {
		mounts = append(mounts, files(home(w.b, w.node, first+j), fmt.Sprintf("t%02d", j)))
	}
	return encode(w.b, mounts...)
}

// sets measures setSize grants on one Pod.
func (w *world) sets() (ready, bare samples) {
	w.b.Helper()
	set := w.set(2000)
	pace := time.NewTicker(pause)
	defer pace.Stop()
	for i := range setRounds {
		for _, way := range []struct {
			p  *remotePod
			to *samples
		}{{w.barePods[i], &bare}, {w.pods[i], &ready}} {
			<-pace.C
			took, err := way.p.grant(set)
			must(w.b, err)
			*way.to = append(*way.to, took)
			must(w.b, way.p.clear())
		}
	}
	return ready, bare
}

// changes changes one Pod's set and counts the agent's patches of the Pod.
func (w *world) changes() (accepted, refused int) {
	w.b.Helper()
	p := w.pods[0]
	before := w.patches()
	for i := range changes {
		set := p.first
		if i%2 == 1 {
			set = p.next
		}
		_, err := p.grant(set)
		must(w.b, err)
	}
	// A patch too many follows within the pass that its own event causes.
	<-time.After(time.Second)
	after := w.patches()
	must(w.b, p.clear())
	for code, n := range after {
		if n -= before[code]; code == "200" {
			accepted = n - changes
		} else {
			refused += n
		}
	}
	return accepted, refused
}

// fill brings the node to fullMounts mounts, of which fullPods times setSize are
// grants, measures there, and restarts the agent.
func (w *world) fill(others *crowd, out *apiResult) {
	w.b.Helper()
	var mine int
	for i := range fullPods {
		p := w.pods[len(w.pods)-1-i]
		_, err := p.grant(w.set(3000 + i*setSize))
		must(w.b, err)
		mine += setSize
	}
	out.filledGrants = mine
	have := w.table()
	others.be(w.b, max(fullMounts-have, 0))
	out.filledTable = w.table()
	// One Pod of those that have nothing yet. The measurement takes longer than
	// one sweep of the agent, which reads the whole table.
	all, allBare := w.pods, w.barePods
	w.pods, w.barePods = w.pods[:1], w.barePods[:1]
	out.full = w.latency(sweepTurns)
	out.full.pods, out.full.others = len(all), others.have
	w.pods, w.barePods = all, allBare
	out.filled = w.memory()

	w.agent.kill()
	began := time.Now()
	w.agent = startAgent(w.b, w.path, w.node, w.config)
	_, err := w.pods[0].grant(w.pods[0].first)
	must(w.b, err)
	out.restartedWithin = time.Since(began)
	out.restartedPods = fullPods
	must(w.b, w.pods[0].clear())
	out.restarted = w.memory()
	w.agent.kill()
	others.be(w.b, 0)
}
