package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/plan"
)

const (
	// workers is how many Pods are reconciled at the same time.
	workers = 8

	// A Pod whose reconciliation fails is looked at again after backoffFirst,
	// then after twice as long each time, up to backoffLimit.
	backoffFirst = 100 * time.Millisecond
	backoffLimit = 30 * time.Second

	uidIndex = "uid"
)

// Reconciler brings one Pod to what its annotations ask for.
type Reconciler interface {
	// Reconcile looks at the Pod with this UID. after > 0 asks for another look
	// then, whatever happens meanwhile; an error asks for one after the Pod's own
	// backoff. It is never called twice at the same time for one UID, and it is
	// called for Pods that are gone.
	Reconcile(ctx context.Context, uid string) (after time.Duration, err error)
}

// Config is what a Controller needs; Client, Node, Names, Volume and Log are
// required.
type Config struct {
	Client kubernetes.Interface
	// Node is the name of this node: only its Pods are watched.
	Node string
	// Namespace restricts the watch to one namespace, "" watches all.
	Namespace string
	// Names are the annotations of grants and answers.
	Names grant.Names
	// Volume is the name of the gateway volume in a Pod.
	Volume string
	Log    *slog.Logger
}

// Controller watches the Pods of one node and hands each, by UID, to a
// Reconciler. Its methods may be called from any goroutine, before and during
// Run.
type Controller struct {
	cfg   Config
	pods  cache.SharedIndexInformer
	queue workqueue.TypedRateLimitingInterface[string]

	refused refusals
}

// New makes a Controller that watches nothing until Run. It fails when the
// configuration is incomplete.
func New(cfg Config) (*Controller, error) {
	switch {
	case cfg.Client == nil:
		return nil, errors.New("kube: no client")
	case cfg.Node == "":
		// An empty field selector would watch every Pod of the cluster, and
		// release what is not ours.
		return nil, errors.New("kube: no node name")
	case cfg.Names.Mounts == "" || cfg.Names.Ready == "":
		return nil, errors.New("kube: no annotation names")
	case cfg.Volume == "":
		return nil, errors.New("kube: no volume name")
	case cfg.Log == nil:
		return nil, errors.New("kube: no logger")
	}
	c := &Controller{
		cfg: cfg,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](backoffFirst, backoffLimit)),
	}
	informer, err := c.newInformer()
	if err != nil {
		return nil, fmt.Errorf("kube: prepare the watch of pods: %w", err)
	}
	c.pods = informer
	return c, nil
}

// Run watches the node's Pods and reconciles them until ctx ends; it returns nil
// then, after the passes in flight (which see ctx end) have returned. A
// Controller runs once. An API that cannot be reached is no error: Run goes on
// asking, and reconciles nothing before the first complete list.
func (c *Controller) Run(ctx context.Context, r Reconciler) error {
	// Handlers only enqueue; what they enqueue waits for the workers, and those
	// for the sync.
	handled, err := c.pods.AddEventHandler(c.handler())
	if err != nil {
		return fmt.Errorf("kube: watch pods: %w", err)
	}

	var passes sync.WaitGroup
	defer passes.Wait()
	defer c.queue.ShutDown()
	// Not waited for: while the API is away the reflector sleeps up to 30 s without
	// looking at its context, and it holds nothing that has to be put away.
	go c.pods.RunWithContext(withLogger(ctx, c.cfg.Log))
	select {
	case <-ctx.Done():
		return nil
	case <-handled.HasSyncedChecker().Done():
	}
	c.cfg.Log.Info("watching the node's pods", "node", c.cfg.Node, "namespace", c.cfg.Namespace, "pods", len(c.pods.GetStore().ListKeys()))
	for range workers {
		passes.Go(func() {
			for c.next(ctx, r) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

// next reconciles one Pod of the queue and tells whether to go on.
func (c *Controller) next(ctx context.Context, r Reconciler) bool {
	uid, down := c.queue.Get()
	if down {
		return false
	}
	defer c.queue.Done(uid)
	// A queue that is shut down still hands out what it holds; a new pass would
	// find its context ended.
	if ctx.Err() != nil {
		return false
	}
	after, err := c.guarded(ctx, r, uid)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		level := slog.LevelWarn
		if errors.Is(err, agent.ErrConflict) || errors.Is(err, agent.ErrGone) {
			level = slog.LevelDebug // somebody else wrote the Pod: the ordinary course of things
		}
		c.cfg.Log.Log(ctx, level, "reconciling a pod failed", "uid", uid, "attempt", c.queue.NumRequeues(uid)+1, "error", err)
		c.queue.AddRateLimited(uid)
	case after > 0:
		c.queue.Forget(uid)
		c.queue.AddAfter(uid, after)
	default:
		c.queue.Forget(uid)
	}
	return true
}

// guarded turns a panic into an error: a bug that one Pod brings out must not
// take the mounts of the other Pods' users out of care.
func (c *Controller) guarded(ctx context.Context, r Reconciler, uid string) (after time.Duration, err error) {
	err = bug.Guard(c.cfg.Log, func() (err error) {
		after, err = r.Reconcile(ctx, uid)
		return err
	}, "uid", uid)
	return after, err
}

// Enqueue asks for the Pod to be looked at, soon and once, however often it is
// asked before that.
func (c *Controller) Enqueue(uid string) { c.queue.Add(uid) }

// Synced tells whether the informer has held the node's Pods completely once.
// It stays true when the API goes away: what was read is then old, and
// Controller.Confirm fails.
func (c *Controller) Synced() bool { return c.pods.HasSynced() }

// Pod returns the informer's copy of a Pod. That it is not there does not mean
// that the Pod is gone: see Confirm.
func (c *Controller) Pod(uid string) (plan.Pod, bool) {
	found, err := c.pods.GetIndexer().ByIndex(uidIndex, uid)
	if err != nil || len(found) == 0 { // the only error is an index that New did not make
		return plan.Pod{}, false
	}
	p, ok := found[0].(*corev1.Pod)
	if !ok {
		return plan.Pod{}, false
	}
	return PodFromAPI(p, c.cfg.Names, c.cfg.Volume), true
}
