package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/datalayer/node-mounts/grant"
)

// event is what a watcher learns of a Pod.
type event struct {
	at      time.Time
	granted bool          // it has a grant annotation
	answer  *grant.Status // nil where it has none that can be read
}

// follower watches all Pods and hands each Pod's events on.
type follower struct {
	mu    sync.Mutex
	to    map[string]chan event
	ended bool
}

// eventsHeld is how many events of a Pod may wait for somebody to look: more than
// any measurement causes.
const eventsHeld = 1024

func newFollower(b *testing.B, pods corev1client.PodInterface, names grant.Names) *follower {
	b.Helper()
	f := &follower{to: map[string]chan event{}}
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	list, err := pods.List(ctx, metav1.ListOptions{})
	must(b, err)
	go func() {
		defer f.end()
		// An error is told to whoever waits for an event, by the end.
		_ = follow(ctx, pods, metav1.ListOptions{ResourceVersion: list.ResourceVersion}, func(p *corev1.Pod) {
			f.hand(p, time.Now(), names)
		})
	}()
	return f
}

// follow hands every event on, from the version in options. A server that is
// short of time ends watches that it cannot serve fast enough (seen with 32 Pods at
// once on two cores); then it goes on from where that was.
func follow(ctx context.Context, pods corev1client.PodInterface, options metav1.ListOptions, hand func(*corev1.Pod)) error {
	for {
		w, err := pods.Watch(ctx, options)
		if err != nil {
			return err
		}
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				return fmt.Errorf("an event of %T", e.Object)
			}
			options.ResourceVersion = p.ResourceVersion
			hand(p)
		}
	}
}

func (f *follower) hand(p *corev1.Pod, at time.Time, names grant.Names) {
	e := event{at: at}
	_, e.granted = p.Annotations[names.Mounts]
	if text, ok := p.Annotations[names.Ready]; ok {
		if st, err := grant.DecodeStatus(text); err == nil {
			e.answer = &st
		}
	}
	select {
	case f.channel(p.Name) <- e:
	default: // nobody looks at this Pod
	}
}

func (f *follower) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, to := range f.to {
		close(to)
	}
}

// events are those of the Pod of this name from now on.
func (f *follower) events(name string) <-chan event { return f.channel(name) }

func (f *follower) channel(name string) chan event {
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.to[name]
	if to == nil {
		to = make(chan event, eventsHeld)
		f.to[name] = to
		if f.ended {
			close(to)
		}
	}
	return to
}
