package verify

import (
	"context"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A load balancer without a backend answers 404 too, and client-go takes it for
// NotFound: it is no word that the Pod has gone.
func TestWhatAProxyAnswersIsNoWordThatThePodHasGone(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "probe", UID: "u"}}
	for said, test := range map[string]struct {
		err  error
		gone bool
	}{
		"by a proxy":       {apierrors.NewGenericServerResponse(http.StatusNotFound, "get", corev1.Resource("pods"), pod.Name, "", 0, true), false},
		"by an API server": {apierrors.NewNotFound(corev1.Resource("pods"), pod.Name), true},
	} {
		client := fake.NewClientset(pod)
		client.PrependReactor("*", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.err })
		on := &probed{Probe: Probe{API: client, Namespace: pod.Namespace}, pod: pod}
		ctx, cancel := context.WithTimeout(t.Context(), 2*probeInterval)
		err := on.ready(ctx, 0)
		if deleted := err != nil && strings.Contains(err.Error(), "somebody has deleted"); deleted != test.gone {
			t.Errorf("404 %s: waiting for it: %v", said, err)
		}
		client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
		_, err = deletePod(ctx, on)
		if (err == nil) != test.gone {
			t.Errorf("404 %s: deleting it: %v", said, err)
		}
		cancel()
	}
}
