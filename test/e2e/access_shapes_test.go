package e2e_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/test/node"
)

func tokenRequest(bound *authenticationv1.BoundObjectReference) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
}

// badShape is a Pod that no folder reaches, or that would keep one.
type badShape struct {
	name   string
	change func(*corev1.PodSpec)
	// refusal is of the policy, answer of the agent where there is no policy.
	refusal, answer string
}

func badShapes() []badShape {
	return []badShape{
		{"disk", onDisk, "needs a volume node-mount-gateway of kind emptyDir with medium: Memory", "Memory"},
		{
			"subpath", func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].SubPath = "inside" },
			"container runtime mounts the volume node-mount-gateway in a way that no grant reaches", "subPath",
		},
		{"private", noPropagation, "container runtime mounts the volume node-mount-gateway in a way that no grant reaches", "HostToContainer"},
		{
			"second", func(s *corev1.PodSpec) {
				second := *s.Containers[0].DeepCopy()
				second.Name, second.VolumeMounts[0].MountPropagation = "beside", nil
				s.Containers = append(s.Containers, second)
			},
			"container beside mounts the volume node-mount-gateway in a way that no grant reaches", "HostToContainer",
		},
	}
}

func onDisk(s *corev1.PodSpec)        { s.Volumes[0].EmptyDir.Medium = "" }
func noPropagation(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].MountPropagation = nil }

// shaped is a pooled Pod that was changed afterwards: the operator's own template
// is never of that shape.
func shaped(t *testing.T, name string, change func(*corev1.PodSpec)) *corev1.Pod {
	t.Helper()
	p := pooled(t, name, nil)
	change(&p.Spec)
	return p
}

func badShapesAreRefused(t *testing.T, w *world) {
	ctx := within(t, time.Minute)
	for _, shape := range badShapes() {
		_, err := w.api.CoreV1().Pods(runtimes).Create(ctx, shaped(t, shape.name, shape.change), metav1.CreateOptions{})
		wantRefusal(t, "a Pod of the shape "+shape.name, err, byPolicy, shape.refusal)
		if err != nil {
			t.Logf("%s: %v", shape.name, err)
		}
	}
	pods, err := w.api.CoreV1().Pods(runtimes).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, p := range pods.Items {
		if slices.ContainsFunc(badShapes(), func(s badShape) bool { return s.name == p.Name }) {
			t.Errorf("%s was created", p.Name)
		}
	}
}

func badShapesAreAnswered(t *testing.T, w *world) {
	w.policyIsGone(t)
	for _, shape := range badShapes() {
		t.Run(shape.name, func(t *testing.T) {
			p := w.run(t, shaped(t, shape.name, shape.change))
			got := w.grant(t, p, home("ada"))
			if got.State != grant.StateFailed || got.Failed[grant.WholeSet] != grant.CodePodUnsupported || len(got.Mounted) > 0 {
				t.Errorf("the answer: %+v", got)
			}
			if message := got.Messages[grant.WholeSet]; !strings.Contains(message, shape.answer) {
				t.Errorf("the answer does not speak of %s: %q", shape.answer, message)
			}
			if out := w.in(t, p, "ls", "-A", "/mnt/datalayer"); strings.TrimSpace(out) != "" {
				t.Errorf("the folder has %q", out)
			}
			w.remove(t, p)
			w.leftNothing(t, p)
		})
	}
}

// policyIsGone waits until the API server has forgotten the policy about Pods,
// which is a moment after its deletion.
func (w *world) policyIsGone(t *testing.T) {
	t.Helper()
	p := shaped(t, "dry", onDisk)
	must(t, node.Until(within(t, time.Minute), "the policy's end", func(ctx context.Context) error {
		_, err := w.api.CoreV1().Pods(runtimes).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}))
}
