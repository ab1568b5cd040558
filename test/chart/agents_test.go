package chart

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const theirs = "the agents of node-mounts are root on their nodes"

// A sandbox's account whose role reaches the namespace of the agents, as it does
// where both are in one.
func agentsAreNotTouched(t *testing.T, j *judge) {
	tenant := j.as(t, serviceAccount(runtimes, "datalayer-runtimes-sa", nodeOne))
	own := func(t *testing.T, name string) *corev1.Pod {
		t.Helper()
		p, err := j.admin.CoreV1().Pods(namespace).Create(t.Context(), pod(name), metav1.CreateOptions{})
		ok(t, err)
		t.Cleanup(func() {
			_ = j.admin.CoreV1().Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		})
		return p
	}
	image := patch{"", map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": "other"}}}}}
	enter := func(ctx context.Context, p *corev1.Pod, how string) error {
		return tenant.CoreV1().RESTClient().Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource(how).
			Param("command", "sh").Param("container", "main").Param("stdout", "true").Do(ctx).Error()
	}
	for name, try := range map[string]func(context.Context, *corev1.Pod) error{
		"another image": func(ctx context.Context, p *corev1.Pod) error { return j.patch(ctx, tenant, p, image) },
		"a label": func(ctx context.Context, p *corev1.Pod) error {
			return j.patch(ctx, tenant, p, labels("a", "b"))
		},
		"a status": func(ctx context.Context, p *corev1.Pod) error {
			return j.patch(ctx, tenant, p, patch{"status", map[string]any{"status": map[string]any{"phase": "Failed"}}})
		},
		"a debugging container": func(ctx context.Context, p *corev1.Pod) error {
			return j.patch(ctx, tenant, p, patch{"ephemeralcontainers", map[string]any{"spec": map[string]any{"ephemeralContainers": []any{
				map[string]any{"name": "debug", "image": "other"},
			}}}})
		},
		"its end": func(ctx context.Context, p *corev1.Pod) error {
			return tenant.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
		},
		"the end of all": func(ctx context.Context, p *corev1.Pod) error {
			return tenant.CoreV1().Pods(p.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"a command":    func(ctx context.Context, p *corev1.Pod) error { return enter(ctx, p, "exec") },
		"its terminal": func(ctx context.Context, p *corev1.Pod) error { return enter(ctx, p, "attach") },
	} {
		for _, whose := range []string{fullname + "-x7k2p", fullname + "-keeper-x7k2p", fullname + "-claim-holder-x7k2p"} {
			t.Run(name+" of "+whose, func(t *testing.T) { verdict(t, try(t.Context(), own(t, whose)), theirs) })
		}
	}
	t.Run("Pods of its own it may touch, in that namespace too", func(t *testing.T) {
		p := own(t, "sandbox-in-the-same-namespace")
		verdict(t, j.patch(t.Context(), tenant, p, image), "")
		verdict(t, tenant.CoreV1().Pods(p.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{}), "")
	})
	t.Run("others may", func(t *testing.T) {
		operator := j.as(t, serviceAccount("ops", "operator", ""))
		verdict(t, j.patch(t.Context(), operator, own(t, fullname+"-x7k2q"), image), "")
	})
}
