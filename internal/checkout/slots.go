package checkout

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
)

// slots say whose work runs. Four things keep work waiting:
//
//   - every slot is taken;
//   - its server has its share. One that stalls leaves a slot to the others;
//   - its Pod has as many slots as are free, of all or of its server's share, or
//     more. A Pod that asks for much gets a half at most, and whoever has nothing
//     yet finds a place however much it asks for;
//   - somebody works on the same content, which is done once.
//
// Of what may run, that of the Pod with the least running comes first, of those the
// one whose last turn is longest ago, and then what has waited longest.
type slots struct {
	all, perHost int

	mu      sync.Mutex
	waiting []*turn // in the order in which they came
	running map[*turn]bool
	// last is when a Pod's last turn came, counted in turns; of Pods in the queue or at
	// work.
	last  map[string]int
	turns int
}

// turn is the place of one job, in the queue and then at work. The lock of the slots
// guards its pods and its payer.
type turn struct {
	host, content string
	// pods are those who wait for it, and how often each does. Any of them may pay with
	// its share, or who has asked first could hold up those who ask for the same.
	pods  map[string]int
	payer string
	begun chan struct{} // closed when it may run
}

func newSlots(all, perHost int) *slots {
	return &slots{all: all, perHost: perHost, running: map[*turn]bool{}, last: map[string]int{}}
}

// enter takes a place in the queue, which ends with leave.
func (s *slots) enter(host, content, pod string) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &turn{host: host, content: content, pods: map[string]int{pod: 1}, begun: make(chan struct{})}
	s.waiting = append(s.waiting, t)
	s.advance()
	return t
}

// join says that a Pod waits for the same, and part that it does no longer.
func (s *slots) join(t *turn, pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.pods[pod]++
	s.advance()
}

func (s *slots) part(t *turn, pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.pods[pod]--; t.pods[pod] == 0 {
		delete(t.pods, pod)
	}
}

// wait returns when the turn has come.
func (s *slots) wait(ctx context.Context, t *turn) error {
	select {
	case <-t.begun:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave ends a turn, whether it has come or not.
func (s *slots) leave(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, t)
	if i := slices.Index(s.waiting, t); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.forget()
	s.advance()
}

// forget drops what is known of Pods that have nothing here any more.
func (s *slots) forget() {
	here := map[string]bool{}
	for t := range s.running {
		here[t.payer] = true
	}
	for _, t := range s.waiting {
		for p := range t.pods {
			here[p] = true
		}
	}
	maps.DeleteFunc(s.last, func(p string, _ int) bool { return !here[p] })
}

// wants says whether anybody works on a content, or waits to.
func (s *slots) wants(content string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.running {
		if t.content == content {
			return true
		}
	}
	return slices.ContainsFunc(s.waiting, func(t *turn) bool { return t.content == content })
}

// advance lets run what may. The caller holds the lock.
func (s *slots) advance() {
	for {
		best, claim := -1, claim{}
		for i, t := range s.waiting {
			if c, ok := s.claim(t); ok && (best < 0 || c.before(claim)) {
				best, claim = i, c
			}
		}
		if best < 0 {
			return
		}
		t := s.waiting[best]
		s.waiting = slices.Delete(s.waiting, best, best+1)
		t.payer = claim.pod
		s.running[t] = true
		s.turns++
		s.last[t.payer] = s.turns
		close(t.begun)
	}
}

// claim is what a Pod has had when it is to pay for another turn.
type claim struct {
	pod           string
	running, last int
}

func (c claim) before(other claim) bool {
	return cmp.Or(cmp.Compare(c.running, other.running), cmp.Compare(c.last, other.last)) < 0
}

// claim is the best one of the Pods that wait for a turn and may have another slot.
func (s *slots) claim(t *turn) (best claim, ok bool) {
	ofHost := 0
	byPod, byPodOfHost := map[string]int{}, map[string]int{}
	for r := range s.running {
		if r.content == t.content {
			return claim{}, false
		}
		byPod[r.payer]++
		if r.host == t.host {
			ofHost++
			byPodOfHost[r.payer]++
		}
	}
	free, freeOfHost := s.all-len(s.running), s.perHost-ofHost
	for p := range t.pods {
		c := claim{p, byPod[p], s.last[p]}
		if c.running < free && byPodOfHost[p] < freeOfHost && (!ok || c.before(best)) {
			best, ok = c, true
		}
	}
	return best, ok
}
