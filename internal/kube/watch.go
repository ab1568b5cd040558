package kube

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// newInformer lists and watches the Pods of the node, as strip leaves them, by
// UID. It never resyncs: the agent sweeps what it has, which is more.
func (c *Controller) newInformer() (cache.SharedIndexInformer, error) {
	pods := c.cfg.Client.CoreV1().Pods(c.cfg.Namespace)
	state := &connection{log: c.cfg.Log}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = c.onNode()
			list, err := pods.List(ctx, o)
			state.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = c.onNode()
			w, err := pods.Watch(ctx, o)
			// A server that cannot begin a watch with a list says Invalid, and is
			// asked for a list next.
			if !apierrors.IsInvalid(err) || o.SendInitialEvents == nil {
				state.note(ctx, err)
			}
			return w, err
		},
	}
	informer := cache.NewSharedIndexInformerWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, c.cfg.Client), &corev1.Pod{},
		cache.SharedIndexInformerOptions{Indexers: cache.Indexers{uidIndex: indexByUID}})
	err := errors.Join(
		informer.SetTransform(func(obj any) (any, error) {
			if p, ok := obj.(*corev1.Pod); ok {
				return strip(p, c.cfg.Names, c.cfg.Volume), nil
			}
			return obj, nil
		}),
		// connection has told what failed; the default handler would tell it again
		// at each of the reflector's attempts.
		informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}))
	return informer, err
}

func (c *Controller) onNode() string {
	return fields.OneTermEqualSelector("spec.nodeName", c.cfg.Node).String()
}

func indexByUID(obj any) ([]string, error) {
	if p, ok := obj.(*corev1.Pod); ok {
		return []string{string(p.UID)}, nil
	}
	return nil, nil
}

// handler enqueues the UID of every Pod that came, changed or went.
func (c *Controller) handler() cache.ResourceEventHandler {
	enqueue := func(obj any) {
		if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = d.Obj
		}
		if p, ok := obj.(*corev1.Pod); ok {
			c.queue.Add(string(p.UID))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue,
		UpdateFunc: func(before, now any) {
			// The store's key is the name: a Pod that was deleted and made again
			// between two lists arrives as an update, and the old one has to be
			// released.
			enqueue(before)
			enqueue(now)
		},
		DeleteFunc: enqueue,
	}
}

// connection logs when the watch of the API stops working, and when it works
// again: once per change, not once per attempt.
type connection struct {
	log *slog.Logger

	mu      sync.Mutex
	failing string // what kind of failure, "" while it works
	since   time.Time
}

func (c *connection) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // we are stopping
	}
	kind := failure(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind == c.failing {
		return
	}
	if c.failing == "" {
		c.since = time.Now()
	}
	if kind == "" {
		c.log.Info("the Kubernetes API answers again", "after", time.Since(c.since).Round(time.Millisecond).String())
	} else {
		c.log.Warn("the pods of this node cannot be watched: mounts stay as they are until the Kubernetes API answers", "failure", kind, "error", err)
	}
	c.failing = kind
}

// failure names the kind of a failed list or watch, "" for none. An expired
// resource version asks for a new list and is no failure.
func failure(err error) string {
	if err == nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return ""
	}
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return "unreachable"
}

// withLogger gives client-go's own lines (a watch that ended, a slow list) to
// log instead of standard error.
func withLogger(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(log.Handler()))
}
