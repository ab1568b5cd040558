package kube

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/datalayer/node-mounts/internal/keeper"
)

// keeperPod is a Pod with a keeper's labels, made at a minute.
func keeperPod(namespace, uid string, minute int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "keeper-" + uid, Namespace: namespace, UID: types.UID(uid), Labels: map[string]string{"app": "keeper"},
			CreationTimestamp: metav1.NewTime(time.Unix(int64(60*minute), 0)),
		},
		Spec: corev1.PodSpec{NodeName: "node-a"},
	}
}

// listenAt has a keeper's socket in the volume of a Pod.
func listenAt(t *testing.T, kubelet, uid string) {
	t.Helper()
	l, err := keeper.Listen(filepath.Join(kubelet, "pods", uid, "volumes", "kubernetes.io~empty-dir", KeeperVolume, KeeperSocket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

func TestTheKeeperIsTheNewestPodOfItsNamespaceThatIsNotOnItsWayOut(t *testing.T) {
	kubelet, err := os.MkdirTemp("", "kubelet") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(kubelet) })
	leaving, failed, tenant := keeperPod("system", "leaving", 9), keeperPod("system", "failed", 8), keeperPod("runtimes", "tenant", 7)
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{Time: time.Unix(600, 0)}, []string{"test/x"}
	failed.Status.Phase = corev1.PodFailed
	other := keeperPod("system", "other-labels", 6)
	other.Labels = nil
	client := fake.NewClientset(leaving, failed, tenant, other, keeperPod("system", "old", 1), keeperPod("system", "new", 2))
	var asked clienttesting.ListRestrictions
	client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		asked = a.(clienttesting.ListAction).GetListRestrictions()
		return false, nil, nil
	})
	for _, uid := range []string{"leaving", "failed", "tenant", "other-labels", "old", "new"} {
		if err := os.MkdirAll(filepath.Join(kubelet, "pods", uid, "volumes", "kubernetes.io~empty-dir", KeeperVolume), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listenAt(t, kubelet, "tenant")
	k := &Keeper{Client: client, Namespace: "system", Selector: "app=keeper", Node: "node-a", Kubelet: kubelet}
	if conn, err := k.Dial(t.Context()); err == nil {
		_ = conn.Close()
		t.Fatal("something other than the keeper was believed")
	}
	listenAt(t, kubelet, "new")
	for range 2 { // the second knows the Pod from the first
		conn, err := k.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	if asked.Fields.String() != "spec.nodeName=node-a" || asked.Labels.String() != "app=keeper" {
		t.Errorf("it asked for Pods by %v and %v", asked.Fields, asked.Labels)
	}
}

func TestANodeWithoutAKeeperIsSaidToHaveNone(t *testing.T) {
	k := &Keeper{Client: fake.NewClientset(keeperPod("runtimes", "tenant", 1)), Namespace: "system", Selector: "app=keeper", Node: "node-a", Kubelet: t.TempDir()}
	if _, err := k.Dial(context.Background()); !errors.Is(err, ErrNoKeeperPod) {
		t.Errorf("%v", err)
	}
}
