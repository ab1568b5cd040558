// Package agent brings the mounts of this node's Pods to what their grant
// annotations ask for, and answers.
//
// One pass over one Pod is Reconcile. Its order is the design: a Pod that
// cannot receive mounts is told so; a finished or vanished Pod is released; a
// terminating one keeps its mounts until its processes have ended; what is no
// longer asked is revoked before any cap or error can end the pass; then caps,
// the tree and its publication, the grants, the proof, and one answer.
//
// The package knows nothing of client-go: what it needs of Kubernetes is API.
package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

// Errors that an API answers with.
var (
	// ErrConflict: the Pod has changed since it was read. Look again.
	ErrConflict = errors.New("the Pod has changed since it was read")
	// ErrGone: the Pod, with this uid, no longer exists.
	ErrGone = errors.New("the Pod no longer exists")
)

// API is what the agent needs of Kubernetes.
type API interface {
	// Pod is the watched copy of a Pod on this node.
	Pod(uid string) (plan.Pod, bool)
	// Confirm asks the API server itself whether the Pod exists. A watched copy
	// can be stale; a release on its word alone could take the mounts of a Pod
	// that runs.
	Confirm(ctx context.Context, ref plan.Ref) (plan.Pod, bool, error)
	// Answer writes the ready annotation, or removes it when ready is nil, if
	// the Pod is still the one that was read. Errors: ErrConflict, ErrGone.
	Answer(ctx context.Context, pod plan.Pod, ready *string) error
	// Enqueue asks for a pass over the Pod.
	Enqueue(uid string)
}

// Processes finds the processes of Pods. *procs.Finder is one.
type Processes interface {
	Of(uid string) ([]procs.Process, error)
	Has(uid string) (bool, error)
	Known(uid string) []procs.Process
	Mounts(p procs.Process) ([]mnt.Mount, error)
	Tables(ctx context.Context, ps []procs.Process) ([]procs.Table, error)
	Holding(ctx context.Context, ps []procs.Process, ids map[int]bool) ([]procs.Holding, error)
	Loose(ctx context.Context, ps []procs.Process, devs map[mnt.Dev]bool, shown map[int]bool) ([]procs.Holding, error)
	Others(ctx context.Context, ids map[int]bool) ([]procs.Process, error)
	WaitEnded(ctx context.Context, uid string) error
}

// Metrics is told what happens. obs.Recorder is one.
type Metrics interface {
	Granted(kind grant.Kind, took time.Duration)
	Failed(code grant.Code)
	Revoked()
	Released()
	Leaked()
	Ready(took time.Duration)
	SetPods(n int)
	SetMounts(n int)
	SetLeaked(n int)
}

// Journal keeps the records of Pods. *journal.Store is one.
type Journal interface {
	Load() ([]journal.Pod, error)
	Read() ([]journal.Pod, error)
	Save(p *journal.Pod) error
	// Try tells whether records can be written now.
	Try() error
	Remove(uid string) error
	Sign(word string) error
	Signature() (string, error)
	Close()
}

// Config is what an agent is made of.
type Config struct {
	Policy plan.Policy
	// Root is the agent's own folder: trees and journal. Kubelet is kubelet's.
	Root, Kubelet string
	// BootID is this boot of the node's: what mounts end with.
	BootID string
	// Journal is opened in Root where it is nil.
	Journal Journal
	Claim   Claim
	Table   mnt.Table
	// HostMounts reads the node's own mount table; nil where it is the agent's, or may
	// not be seen.
	HostMounts func() ([]mnt.Mount, error)
	Processes  Processes
	API        API
	// NFS says how exports are mounted, where the policy serves them.
	NFS delivery.NFS
	// Secrets is needed where the policy has credentials.
	Secrets Secrets
	// Checkouts opens the store of git's checkouts, once the agent has its folder for
	// itself; nil where the policy serves none.
	Checkouts func(ctx context.Context) (delivery.Checkouts, error)
	// Keeper runs filesystems that are processes, and Runners say how, by kind; nil
	// where the policy serves none.
	Keeper  delivery.Keeper
	Runners map[grant.Kind]delivery.Runner
	// Events are told to nobody where it is nil.
	Events  Events
	Budget  *deadline.Budget
	Metrics Metrics
	Clock   clock.Clock
	Log     *slog.Logger
}

// Agent is the state of the node's gateway. Make one with New, Start it, then
// call Reconcile for every Pod that changes.
type Agent struct {
	Config
	store Journal
	pods  *beneath.Dir    // <root>/pods
	life  context.Context //nolint:containedctx // the agent's lifetime, for what outlives a pass
	by    map[grant.Delivery]delivery.Delivery
	// contents are those that git makes, one of the deliveries.
	contents *delivery.Materialize
	opening  sync.Mutex // of its store
	// userspace are the filesystems that are processes, another one.
	userspace *delivery.Process

	mu    sync.Mutex
	known map[string]*podState
	// fault says why this node can mount nothing, "" when it can.
	fault string
	// unusable says why some delivery can mount nothing, "" when each can.
	unusable string
	// filesystems is the last mount table that a sweep read.
	filesystems []mnt.Mount
	// claimed is the part of it that the claim is on: few lines, asked per grant.
	claimed []mnt.Mount
	swept   time.Time
}

// podState is what the agent knows of one Pod. mu is held for a whole pass.
type podState struct {
	mu sync.Mutex
	j  journal.Pod
	// unsaved: j is not what the journal has.
	unsaved bool

	// asked is the annotation that is being answered, since when.
	asked string
	since time.Time
	// answeredIn is the version of the Pod that has the answer to it, or that it was
	// written to; "" where it has none yet.
	answeredIn string
	// counted: how long it took until all was there is measured, or never will be. It is
	// set by the pass that sees the answer, without which no other answer follows.
	counted bool
	// failures are grants that failed, and when each is tried again.
	failures map[string]failure
	// underway are grants whose content, or whose process, is being made.
	underway map[string]underway
	// seen are targets proven visible, by container id.
	seen map[string]map[string]bool
	// stuck are mounts that would not go, and are counted as leaked.
	stuck map[string]bool
	// searchTook is how long the last search for holders of held mounts took.
	searchTook time.Duration
	// dead are standing mounts whose storage stopped answering.
	dead map[string]string
	// storageAsked: this agent has asked the storage of what it found standing.
	storageAsked bool
	// dying is when the Pod was first seen to be terminating.
	dying time.Time
	// watched: a goroutine waits for the Pod's processes to end.
	watched bool

	// Guarded by Agent.mu:
	reserved int // mounts that this Pod counts for in the node's cap
	passes   int // begun and ended passes, to tell an outdated mount table
	view     nodeview.Pod
}

// New opens the agent's folders. ctx is the agent's lifetime. It fails only where
// nothing could be recorded, with journal.ErrLocked where another agent of the
// node runs; a node that cannot mount is found by Start and told to the Pods.
func New(ctx context.Context, cfg Config) (*Agent, error) {
	a := &Agent{Config: cfg, life: ctx, known: make(map[string]*podState), store: cfg.Journal}
	if a.Events == nil {
		a.Events = NoEvents{}
	}
	var err error
	if a.store == nil {
		if a.store, err = journal.Open(filepath.Join(cfg.Root, "journal")); err != nil {
			return nil, err
		}
	}
	a.contents = a.materialize(cfg.Claim)
	a.userspace = a.userspaceOf(cfg.Claim)
	a.by = a.deliveries(cfg.Claim)
	if err = os.MkdirAll(a.podsDir(), 0o755); err == nil {
		a.pods, err = beneath.OpenRoot(a.podsDir())
	}
	if err != nil {
		a.store.Close()
		return nil, err
	}
	return a, nil
}

func (a *Agent) podsDir() string { return filepath.Join(a.Root, "pods") }

// Close closes the agent's folders. Every mount is left standing.
func (a *Agent) Close() {
	a.contents.Close()
	a.userspace.Close()
	a.pods.Close()
	a.store.Close()
}

// state finds what is known of a Pod; create says whether to start knowing it.
func (a *Agent) state(uid string, create bool) *podState {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.known[uid]
	if s == nil && create {
		s = newState(journal.Pod{UID: uid, BootID: a.BootID})
		a.known[uid] = s
	}
	return s
}

func newState(j journal.Pod) *podState {
	return &podState{j: j, failures: map[string]failure{}, underway: map[string]underway{}, seen: map[string]map[string]bool{}, stuck: map[string]bool{}, dead: map[string]string{}}
}

// forget drops a Pod of which nothing is left.
func (a *Agent) forget(uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, uid)
	a.count()
}

// reserve counts n mounts for the Pod in the node's cap, and returns how many the
// other Pods count for.
func (a *Agent) reserve(s *podState, n int) (others int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.reserved = 0
	for _, o := range a.known {
		others += o.reserved
	}
	s.reserved = n
	return others
}

// Fault says why this node cannot mount all that it should, "" when it can.
func (a *Agent) Fault() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return cmp.Or(a.fault, a.unusable)
}

// refuses says why this node can mount nothing, "" when it can.
func (a *Agent) refuses() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fault
}

// states are the known Pods, by uid.
func (a *Agent) states() map[string]*podState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.known)
}
