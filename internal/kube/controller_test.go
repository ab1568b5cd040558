package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/datalayer/node-mounts/internal/plan"
)

// reconciler records the passes and does in each what act says.
type reconciler struct {
	act func(ctx context.Context, uid string, pass int) (time.Duration, error)

	mu     sync.Mutex
	passes map[string][]time.Time
	now    map[string]int // passes running
	most   int            // most passes at once, over all Pods
	twice  bool           // two passes of one Pod at once
}

func (r *reconciler) Reconcile(ctx context.Context, uid string) (time.Duration, error) {
	r.mu.Lock()
	if r.passes == nil {
		r.passes, r.now = map[string][]time.Time{}, map[string]int{}
	}
	r.passes[uid] = append(r.passes[uid], time.Now())
	pass := len(r.passes[uid])
	r.twice = r.twice || r.now[uid] > 0
	r.now[uid]++
	running := 0
	for _, n := range r.now {
		running += n
	}
	r.most = max(r.most, running)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now[uid]--
	}()
	if r.act == nil {
		return 0, nil
	}
	return r.act(ctx, uid, pass)
}

// uids lists the Pods that were looked at.
func (r *reconciler) uids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var uids []string
	for uid := range r.passes {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

func (r *reconciler) count(uid string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.passes[uid])
}

// gaps are the times between the passes of a Pod.
func (r *reconciler) gaps(uid string) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(r.passes[uid]); i++ {
		gaps = append(gaps, r.passes[uid][i].Sub(r.passes[uid][i-1]))
	}
	return gaps
}

// journal is a log that may be read while it is written.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) lines(containing string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for line := range strings.Lines(j.b.String()) {
		if strings.Contains(line, containing) {
			n++
		}
	}
	return n
}

// run runs the controller in a bubble of virtual time until body returns.
func run(t *testing.T, client *fake.Clientset, log io.Writer, r Reconciler, body func(c *Controller, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := newController(t, client, log)
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx, r) }()
		synctest.Wait()
		stop := func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			close(done)
		}
		body(c, stop)
		if ctx.Err() == nil {
			stop()
		}
		synctest.Wait()
	})
}

// pass lets d go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestThePodsOfTheNodeAreReconciledAndNoOthers(t *testing.T) {
	other := runtimePod("elsewhere", "uid-2")
	other.Spec.NodeName = "node-b"
	client := newAPI(t, runtimePod("sandbox", "uid-1"), other)
	r := &reconciler{}
	run(t, client, io.Discard, r, func(c *Controller, _ func()) {
		if got := r.uids(); !reflect.DeepEqual(got, []string{"uid-1"}) {
			t.Errorf("reconciled %v", got)
		}
		if _, ok := c.Pod("uid-2"); ok {
			t.Error("the informer holds a Pod of another node")
		}
		pod, ok := c.Pod("uid-1")
		want := runtimeFacts("sandbox", "uid-1")
		want.ResourceVersion = pod.ResourceVersion
		if !ok || !reflect.DeepEqual(pod, want) {
			t.Errorf("Pod = %+v, %v", pod, ok)
		}
		if !c.Synced() {
			t.Error("not synced")
		}
		pods := client.CoreV1().Pods("runtimes")
		p, _ := stored(t, client, "sandbox")
		p.Annotations[testNames().Mounts] = "changed"
		if _, err := pods.Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if pod, _ := c.Pod("uid-1"); r.count("uid-1") != 2 || *pod.Grant != "changed" {
			t.Errorf("after a change: %d passes, %+v", r.count("uid-1"), pod)
		}
		if err := pods.Delete(context.Background(), "sandbox", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, ok := c.Pod("uid-1"); r.count("uid-1") != 3 || ok {
			t.Errorf("after the deletion: %d passes, still there: %v", r.count("uid-1"), ok)
		}
	})
}

func TestNothingIsReconciledBeforeTheFirstList(t *testing.T) {
	var mu sync.Mutex
	down := true
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return down, nil, errors.New("connection refused")
	})
	r, log := &reconciler{}, &journal{}
	run(t, client, log, r, func(c *Controller, _ func()) {
		c.Enqueue("uid-1")
		c.Enqueue("orphan")
		pass(10 * time.Minute)
		if got := r.uids(); got != nil {
			t.Errorf("reconciled %v with no list", got)
		}
		if c.Synced() {
			t.Error("synced with no list")
		}
		if n := log.lines("cannot be watched"); n != 1 {
			t.Errorf("an API that is away for minutes is logged %d times", n)
		}
		mu.Lock()
		down = false
		mu.Unlock()
		pass(2 * time.Minute)
		if got := r.uids(); !reflect.DeepEqual(got, []string{"orphan", "uid-1"}) {
			t.Errorf("reconciled %v", got)
		}
		if n := log.lines("answers again"); n != 1 {
			t.Errorf("the API's return is logged %d times", n)
		}
	})
}

func TestStoppingBeforeTheFirstListReconcilesNothing(t *testing.T) {
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	failing(client, "list", errors.New("connection refused"))
	r := &reconciler{}
	run(t, client, io.Discard, r, func(c *Controller, stop func()) {
		c.Enqueue("uid-1")
		stop()
		if got := r.uids(); got != nil {
			t.Errorf("reconciled %v", got)
		}
	})
}

func TestAnAPIThatGoesAwayReleasesNothing(t *testing.T) {
	var mu sync.Mutex
	down := false
	refuse := func() (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return down, errors.New("connection refused")
	}
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	for _, verb := range []string{"list", "get"} {
		client.PrependReactor(verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			refused, err := refuse()
			return refused, nil, err
		})
	}
	var watches []watch.Interface
	client.PrependWatchReactor("pods", func(a clienttesting.Action) (bool, watch.Interface, error) {
		if refused, err := refuse(); refused {
			return true, nil, err
		}
		impl, _ := a.(clienttesting.WatchActionImpl)
		w, err := client.Tracker().Watch(a.GetResource(), a.GetNamespace(), impl.ListOptions)
		watches = append(watches, w)
		return true, w, err
	})
	r, log := &reconciler{}, &journal{}
	run(t, client, log, r, func(c *Controller, _ func()) {
		mu.Lock()
		down = true
		watches[0].Stop()
		mu.Unlock()
		pass(10 * time.Minute)
		if _, ok := c.Pod("uid-1"); !ok || !c.Synced() || r.count("uid-1") != 1 {
			t.Errorf("the Pod is known: %v, synced: %v, passes: %d", ok, c.Synced(), r.count("uid-1"))
		}
		if _, _, err := c.Confirm(context.Background(), plan.Ref{UID: "uid-1", Namespace: "runtimes", Name: "sandbox"}); err == nil {
			t.Error("an API that is away confirms")
		}
		if n := log.lines("cannot be watched"); n != 1 {
			t.Errorf("the API's absence is logged %d times", n)
		}
		mu.Lock()
		down = false
		mu.Unlock()
		pass(2 * time.Minute)
		if n := log.lines("answers again"); n != 1 {
			t.Errorf("the API's return is logged %d times", n)
		}
	})
}

func TestAPodMadeAgainUnderItsNameIsTwoPods(t *testing.T) {
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	r := &reconciler{}
	run(t, client, io.Discard, r, func(c *Controller, _ func()) {
		// As a list after a lost watch shows it: one update, another uid.
		err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), runtimePod("sandbox", "uid-2"), "runtimes")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r.count("uid-1") != 2 || r.count("uid-2") != 1 {
			t.Errorf("the old Pod had %d passes, the new one %d", r.count("uid-1"), r.count("uid-2"))
		}
		if _, ok := c.Pod("uid-1"); ok {
			t.Error("the old Pod is still known")
		}
		if _, ok := c.Pod("uid-2"); !ok {
			t.Error("the new Pod is not known")
		}
	})
}

func TestAPanicOverOnePodDoesNotCostTheOthers(t *testing.T) {
	client := newAPI(t, runtimePod("bad", "uid-bad"), runtimePod("good", "uid-good"))
	r, log := &reconciler{act: func(_ context.Context, uid string, _ int) (time.Duration, error) {
		if uid == "uid-bad" {
			panic("an index out of range, say")
		}
		return 0, nil
	}}, &journal{}
	run(t, client, log, r, func(c *Controller, _ func()) {
		pass(time.Minute)
		c.Enqueue("uid-good")
		synctest.Wait()
		if r.count("uid-good") != 2 {
			t.Errorf("the good Pod had %d passes", r.count("uid-good"))
		}
		if r.count("uid-bad") < 5 {
			t.Errorf("the bad Pod had %d passes in a minute: it is not tried again", r.count("uid-bad"))
		}
		if log.lines("controller_test.go") == 0 {
			t.Error("no stack was logged")
		}
	})
}

func TestAFailingPodIsTriedAgainEverMoreSeldomAndASuccessForgets(t *testing.T) {
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	const failures = 12
	r := &reconciler{act: func(_ context.Context, _ string, pass int) (time.Duration, error) {
		if pass <= failures || pass == failures+2 {
			return time.Hour, errors.New("busy")
		}
		return 0, nil
	}}
	run(t, client, io.Discard, r, func(c *Controller, _ func()) {
		pass(20 * time.Minute)
		c.Enqueue("uid-1")
		pass(time.Minute)
		var want []time.Duration
		for d := backoffFirst; len(want) < failures; d *= 2 {
			want = append(want, min(d, backoffLimit))
		}
		got := r.gaps("uid-1")
		if len(got) != failures+2 || !reflect.DeepEqual(got[:failures], want) {
			t.Fatalf("waited %v, want %v", got, want)
		}
		if last := got[failures+1]; last != backoffFirst {
			t.Errorf("after a success the first failure waits %v", last)
		}
	})
}

func TestAReconcilerMayAskForAnotherLook(t *testing.T) {
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	r := &reconciler{act: func(_ context.Context, _ string, pass int) (time.Duration, error) {
		if pass < 4 {
			return 3 * time.Second, nil
		}
		return 0, nil
	}}
	run(t, client, io.Discard, r, func(_ *Controller, _ func()) {
		pass(time.Hour)
		if got := r.gaps("uid-1"); !reflect.DeepEqual(got, []time.Duration{3 * time.Second, 3 * time.Second, 3 * time.Second}) {
			t.Errorf("looked again after %v", got)
		}
	})
}

func TestOnePodIsNeverInTwoPassesAndPodsDoNotWaitForEachOther(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 20 {
		pods = append(pods, runtimePod(fmt.Sprintf("sandbox-%d", i), fmt.Sprintf("uid-%d", i)))
	}
	client := newAPI(t, pods...)
	r := &reconciler{act: func(context.Context, string, int) (time.Duration, error) {
		<-time.After(time.Second)
		return 0, nil
	}}
	run(t, client, io.Discard, r, func(c *Controller, _ func()) {
		for range 50 {
			for i := range 20 {
				c.Enqueue(fmt.Sprintf("uid-%d", i))
			}
			pass(100 * time.Millisecond)
		}
		pass(time.Minute)
		if r.twice {
			t.Error("two passes of one Pod ran at once")
		}
		if r.most != workers {
			t.Errorf("%d passes ran at once, want %d", r.most, workers)
		}
		if r.count("uid-0") < 2 || r.count("uid-0") > 20 {
			t.Errorf("50 requests made %d passes", r.count("uid-0"))
		}
	})
}

func TestStoppingWaitsForThePassesInFlightAndBeginsNone(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 2 * workers {
		pods = append(pods, runtimePod(fmt.Sprintf("sandbox-%d", i), fmt.Sprintf("uid-%d", i)))
	}
	client := newAPI(t, pods...)
	r, log := &reconciler{act: func(ctx context.Context, _ string, _ int) (time.Duration, error) {
		<-ctx.Done()
		<-time.After(time.Second) // a step that is not interrupted
		return 0, ctx.Err()
	}}, &journal{}
	run(t, client, log, r, func(_ *Controller, stop func()) {
		began := time.Now()
		stop()
		if took := time.Since(began); took != time.Second {
			t.Errorf("stopping took %v", took)
		}
		if n := len(r.uids()); n != workers {
			t.Errorf("%d Pods had a pass, want the %d in flight", n, workers)
		}
		if log.lines("failed") != 0 {
			t.Error("a pass that was stopped is logged as failed")
		}
	})
}

func TestAPodThatIsEnqueuedWhileTheControllerStopsHasNoPass(t *testing.T) {
	client := newAPI(t)
	r := &reconciler{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		c := newController(t, client, io.Discard)
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx, r) }()
		synctest.Wait()
		cancel()
		c.Enqueue("uid-1") // most often before Run has noticed
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := r.uids(); got != nil {
			t.Errorf("reconciled %v", got)
		}
	})
}

func TestAControllerNeedsToKnowItsNode(t *testing.T) {
	good := Config{Client: newAPI(t), Node: testNode, Names: testNames(), Volume: testVolume, Log: slog.New(slog.DiscardHandler)}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"client": func(c *Config) { c.Client = nil },
		"node":   func(c *Config) { c.Node = "" },
		"names":  func(c *Config) { c.Names.Ready = "" },
		"volume": func(c *Config) { c.Volume = "" },
		"logger": func(c *Config) { c.Log = nil },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("made without a %s", name)
		}
	}
}
