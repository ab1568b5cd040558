package servertest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/internal/kube/servertest"
)

func TestAUserMayDoWhatItsRulesSayAndNothingElse(t *testing.T) {
	s := servertest.Start(t)
	reader, _ := s.User(t, "reader", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}})
	if _, err := reader.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := reader.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("create: %v, want forbidden", err)
	}
	if _, err := s.Client(t).CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}
