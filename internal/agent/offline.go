package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/plan"
)

// Errors of Offline.
var (
	// ErrNoAgent: no agent has ever worked with this folder.
	ErrNoAgent = errors.New("no agent has kept a journal here")
	// ErrNotShared: what is unmounted in this mount namespace stays mounted on the
	// node.
	ErrNotShared = errors.New("not on a shared mount in this mount namespace, so what is unmounted here stays mounted on the node")
	// ErrUnknown: nothing of the Pod is on this node.
	ErrUnknown = errors.New("nothing of this Pod is on this node")
	// ErrInUse: the Pod is running.
	ErrInUse = errors.New("processes of the Pod run, and would lose their folders")
	// ErrUnseen: it cannot be told whether the Pod is running.
	ErrUnseen = errors.New("it cannot be told whether processes of the Pod run")
)

// Offline takes down what a dead agent has left of Pods, as the agent itself
// would once they are gone. While it is open no agent can start on the node.
type Offline struct {
	a *Agent
}

// OpenOffline opens an agent's folders without being an agent. Of cfg it needs
// Root, Kubelet, BootID, Table, Processes, Budget, Clock, Log and the policy's
// VolumeName; there is no API to ask, and no storage is looked at. Errors:
// ErrNoAgent, ErrNotShared, journal.ErrLocked.
func OpenOffline(ctx context.Context, cfg Config) (*Offline, error) {
	// Opened, a folder is made, and then a mistyped one would seem to be the
	// agent's.
	if _, err := os.Stat(filepath.Join(cfg.Root, "journal")); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	cfg.API, cfg.Metrics = nobody{}, unheard{}
	a, err := New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	o := &Offline{a: a}
	if err := o.load(); err != nil {
		a.Close()
		return nil, err
	}
	return o, nil
}

// Close lets an agent start.
func (o *Offline) Close() { o.a.Close() }

// load finds everything that an agent can have left, without changing anything.
func (o *Offline) load() error {
	a := o.a
	if err := a.readTable(); err != nil {
		return err
	}
	for _, dir := range []string{a.Root, a.Kubelet} {
		if !mnt.Shared(a.table(), dir) {
			return fmt.Errorf("%s is %w", dir, ErrNotShared)
		}
	}
	pods, err := a.store.Read()
	if err != nil {
		a.Log.Warn("some records cannot be read: of those Pods only the mounts are known", "error", err)
	}
	if err := a.know(pods); err != nil {
		return err
	}
	// A publication whose tree and record are lost is in kubelet's way all the same.
	for _, m := range a.table() {
		uid, _, _ := strings.Cut(strings.TrimPrefix(m.Point, path.Join(a.Kubelet, "pods")+"/"), "/")
		if m.Source == mnt.TreeSource && journal.ValidUID(uid) && m.Point == a.volumePath(uid) {
			a.state(uid, true)
		}
	}
	return nil
}

// readTable reads the mount table and nothing else of the node.
func (a *Agent) readTable() error {
	table, err := a.Table.List()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.filesystems = table
	return nil
}

// Pods are the Pods that something is known of, by namespace, name and uid. The
// names are empty where only mounts were found.
func (o *Offline) Pods() []plan.Ref {
	var refs []plan.Ref
	for uid, s := range o.a.states() {
		refs = append(refs, plan.Ref{UID: uid, Namespace: s.j.Namespace, Name: s.j.Name})
	}
	slices.SortFunc(refs, func(x, y plan.Ref) int {
		return slices.Compare([]string{x.Namespace, x.Name, x.UID}, []string{y.Namespace, y.Name, y.UID})
	})
	return refs
}

// Recovery is what Recover did.
type Recovery struct {
	Pod plan.Ref
	// Taken are the mounts that were taken down.
	Taken []nodeview.Mount
	// Held are mounts that were taken down while a process may still have them.
	Held []nodeview.Held
	// Left are the places where something still stands, and keeps kubelet from
	// removing the volume.
	Left []string
}

// Recover takes down everything of the Pod with this uid, as the agent does when
// the API server says that the Pod is gone: each grant, then the publication, then
// the tree, one mount at a time, and directories by rmdir alone. Repeating it does
// no harm. The Recovery tells what was done also beside an error.
//
// Errors: ErrUnknown, ErrInUse and ErrUnseen unless force is set, and what kept a
// mount from going.
func (o *Offline) Recover(ctx context.Context, uid string, force bool) (Recovery, error) {
	a := o.a
	s := a.state(uid, false)
	if s == nil {
		return Recovery{Pod: plan.Ref{UID: uid}}, ErrUnknown
	}
	rec := Recovery{Pod: plan.Ref{UID: uid, Namespace: s.j.Namespace, Name: s.j.Name}}
	if err := a.unused(uid); err != nil && !force {
		return rec, err
	}
	if err := a.readTable(); err != nil {
		return rec, err
	}
	s.mu.Lock()
	a.adopt(ctx, s, a.table())
	before := slices.Clone(s.j.Mounts)
	s.mu.Unlock()
	_, err := a.Reconcile(ctx, uid)
	for _, e := range before {
		if s.j.Find(e.Target) == nil {
			rec.Taken = append(rec.Taken, viewed(e))
		}
	}
	for _, h := range s.j.Held {
		rec.Held = append(rec.Held, nodeview.Held{Target: h.Target, Why: h.Why})
	}
	var lerr error
	rec.Left, lerr = o.left(uid)
	return rec, errors.Join(err, lerr)
}

// unused makes sure that no process of the Pod runs. Not being able to tell is
// no proof.
func (a *Agent) unused(uid string) error {
	if err := a.seesAsBefore(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	running, err := a.Processes.Has(uid)
	switch {
	case running:
		return ErrInUse
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	return nil
}

// sign leaves the name of the PID namespace that the agent finds Pods' processes
// in. In another one they are not there to be found, and every Pod seems to have
// ended.
func (a *Agent) sign() error {
	ns, err := os.Readlink(pidNamespace)
	if err != nil {
		return err
	}
	return a.unwritable(a.store.Sign(ns))
}

const pidNamespace = "/proc/self/ns/pid"

// seesAsBefore tells whether this process sees those that the last agent saw.
func (a *Agent) seesAsBefore() error {
	ns, err := os.Readlink(pidNamespace)
	if err != nil {
		return err
	}
	agents, err := a.store.Signature()
	if err == nil && agents != ns {
		err = fmt.Errorf("the agent looked for them in another PID namespace (%s) than this one (%s)", agents, ns)
	}
	return err
}

// left looks for mounts of the Pod, in a mount table of its own: what was done is
// proven by what stands.
func (o *Offline) left(uid string) ([]string, error) {
	table, err := o.a.Table.List()
	if err != nil {
		return nil, err
	}
	tree, volume := o.a.treePath(uid), o.a.volumePath(uid)
	var left []string
	for _, m := range table {
		if mnt.Within(tree, m.Point) || m.Point == volume && m.Source == mnt.TreeSource || mnt.Within(volume, m.Point) && m.Point != volume {
			left = append(left, m.Point)
		}
	}
	return left, nil
}

// nobody is an API that knows no Pod: all of them are gone.
type nobody struct{}

func (nobody) Pod(string) (plan.Pod, bool) { return plan.Pod{}, false }
func (nobody) Confirm(context.Context, plan.Ref) (plan.Pod, bool, error) {
	return plan.Pod{}, false, nil
}
func (nobody) Answer(context.Context, plan.Pod, *string) error { return ErrGone }
func (nobody) Enqueue(string)                                  {}

// unheard are metrics that nobody reads.
type unheard struct{}

func (unheard) Granted(grant.Kind, time.Duration) {}
func (unheard) Failed(grant.Code)                 {}
func (unheard) Revoked()                          {}
func (unheard) Released()                         {}
func (unheard) Leaked()                           {}
func (unheard) Ready(time.Duration)               {}
func (unheard) SetPods(int)                       {}
func (unheard) SetMounts(int)                     {}
func (unheard) SetLeaked(int)                     {}
