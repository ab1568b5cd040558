package install

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestTheKeepersAreWaitedForAndOlderOnesCount(t *testing.T) {
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "keeper", Namespace: "system", Generation: 2, Labels: map[string]string{
			"app.kubernetes.io/name": "node-mounts", "app.kubernetes.io/component": "keeper",
		}},
	}
	client := fake.NewClientset(set)
	// Each look finds the set a step further.
	steps := []appsv1.DaemonSetStatus{
		{ObservedGeneration: 1, DesiredNumberScheduled: 2, NumberReady: 2},
		{ObservedGeneration: 2, DesiredNumberScheduled: 2, NumberReady: 1},
		{ObservedGeneration: 2, DesiredNumberScheduled: 2, NumberReady: 2, UpdatedNumberScheduled: 0},
	}
	looks := 0
	client.PrependReactor("list", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
		set.Status = steps[min(looks, len(steps)-1)]
		looks++
		return false, nil, client.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("daemonsets"), set, "system")
	})
	Cluster{Client: client, Interval: time.Millisecond}.keepers(t.Context(), "system")
	if looks != len(steps) {
		t.Errorf("it looked %d times", looks)
	}
	looks = 0
	Cluster{Client: client, Interval: time.Millisecond}.keepers(t.Context(), "elsewhere")
	if looks != 1 {
		t.Errorf("without a keeper it looked %d times", looks)
	}
	// Whoever does not want to wait any longer is not kept.
	ended, stop := context.WithCancel(t.Context())
	stop()
	Cluster{Client: client, Interval: time.Hour}.keepers(ended, "system")
}
