// Package agenttest has what tests of the agent stand on: a Kubernetes API in
// memory, and a node in namespaces with an agent on it.
package agenttest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/plan"
)

// API is a Kubernetes API in memory that keeps the rules agents depend on:
// resource versions, conflicts, uids. Its watched copy is always up to date
// unless Hide makes it stale.
type API struct {
	mu        sync.Mutex
	pods      map[string]plan.Pod
	hidden    map[string]bool
	behind    map[string]plan.Pod
	down      error
	version   int
	answers   int
	queue     map[string]bool
	enqueued  chan struct{}
	meanwhile func(uid string)
}

var _ agent.API = (*API)(nil)

// NewAPI makes an API without Pods.
func NewAPI() *API {
	return &API{pods: map[string]plan.Pod{}, hidden: map[string]bool{}, behind: map[string]plan.Pod{}, queue: map[string]bool{}, enqueued: make(chan struct{})}
}

// Put creates or changes a Pod.
func (a *API) Put(p plan.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	p.ResourceVersion = strconv.Itoa(a.version)
	a.pods[p.UID] = p
	delete(a.behind, p.UID)
}

// Change edits a Pod.
func (a *API) Change(uid string, edit func(p *plan.Pod)) {
	a.mu.Lock()
	p := a.pods[uid]
	a.mu.Unlock()
	p.Uses = slices.Clone(p.Uses) // readers keep the copy they were given
	edit(&p)
	a.Put(p)
}

// Delete removes a Pod.
func (a *API) Delete(uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pods, uid)
}

// Hide makes the watched copy lack a Pod that exists, as after a stale list.
func (a *API) Hide(uid string, hide bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hidden[uid] = hide
}

// Behind has the watched copy of a Pod be this one, as when the watch is late, until
// the Pod is written the next time.
func (a *API) Behind(p plan.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.behind[p.UID] = p
}

// Down makes every request fail with err, nil ends that.
func (a *API) Down(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = err
}

// Meanwhile has f called once, with the Pod's uid, when the next answer arrives
// and before it is looked at: what f changes comes between the agent's reading
// and its writing.
func (a *API) Meanwhile(f func(uid string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.meanwhile = f
}

// Answers is how many answers have been written.
func (a *API) Answers() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answers
}

// Status is the Pod's answer as a reader sees it, nil when it has none.
func (a *API) Status(t testing.TB, uid string) *grant.Status {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pods[uid]
	if !ok || p.Ready == nil {
		return nil
	}
	st, err := grant.DecodeStatus(*p.Ready)
	if err != nil {
		t.Fatalf("the answer cannot be read: %v\n%s", err, *p.Ready)
	}
	return &st
}

// Pod implements agent.API.
func (a *API) Pod(uid string) (plan.Pod, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pods[uid]
	if late, is := a.behind[uid]; is {
		p = late
	}
	return p, ok && !a.hidden[uid]
}

// Confirm implements agent.API.
func (a *API) Confirm(_ context.Context, ref plan.Ref) (plan.Pod, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down != nil {
		return plan.Pod{}, false, a.down
	}
	p, ok := a.pods[ref.UID]
	return p, ok, nil
}

// Answer implements agent.API.
func (a *API) Answer(_ context.Context, pod plan.Pod, ready *string) error {
	a.mu.Lock()
	meanwhile := a.meanwhile
	a.meanwhile = nil
	a.mu.Unlock()
	if meanwhile != nil {
		meanwhile(pod.UID)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down != nil {
		return a.down
	}
	p, ok := a.pods[pod.UID]
	switch {
	case !ok:
		return agent.ErrGone
	case p.ResourceVersion != pod.ResourceVersion:
		return agent.ErrConflict
	}
	a.version++
	p.ResourceVersion, p.Ready = strconv.Itoa(a.version), ready
	a.pods[pod.UID] = p
	a.answers++
	return nil
}

// Enqueue implements agent.API. Queued tells what was asked for.
func (a *API) Enqueue(uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue[uid] = true
	close(a.enqueued)
	a.enqueued = make(chan struct{})
}

// Enqueued is closed at the next Enqueue, for whatever Pod.
func (a *API) Enqueued() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.enqueued
}

// Queued tells whether a pass was asked for since the last call.
func (a *API) Queued(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.queue[uid]
	delete(a.queue, uid)
	return was
}
