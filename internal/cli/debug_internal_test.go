package cli

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
)

func secretive() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sandbox", Namespace: "runtimes"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "runtime", Image: "jupyter", Env: []corev1.EnvVar{{Name: "PIN", Value: "4711"}, {Name: "WORDS", Value: "correct horse"}},
			Args:          []string{"--key=battery staple"},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health/t0psecret"}}},
			Lifecycle: &corev1.Lifecycle{
				PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"login", "hookpass"}}},
			},
		}}},
		Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Message: "4711 is unready"}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "PostStartHookError", Message: "Exec lifecycle hook failed: printed CANARY",
			}}}},
		},
	}
}

func TestWhatKubeletSaysOfContainersLosesTheirValues(t *testing.T) {
	p := secretive()
	redact := redactorFor(p)
	for _, e := range []struct{ reason, message, want string }{
		{"Unhealthy", "Liveness probe failed: printed CANARY", "Liveness probe failed: (removed)"},
		{"FailedPostStartHook", "PostStartHook failed: CANARY: more", "PostStartHook failed: (removed)"},
		{"FailedPreStopHook", "PreStopHook failed", "PreStopHook failed"},
		{"Failed", `Error: exec: "staple": not found in runtime of sandbox`, `Error: exec: "(removed)": not found in runtime of sandbox`},
		{"Failed", "4711 horse hookpass t0psecret", "(removed) (removed) (removed) (removed)"},
		{"Pulled", "Successfully pulled image jupyter", "Successfully pulled image jupyter"},
	} {
		if got := eventText(e.reason, e.message, redact); got != e.want {
			t.Errorf("%s %q: %q, want %q", e.reason, e.message, got, e.want)
		}
	}
	said, err := json.Marshal(saidStrictly(reducedPod(p, grant.NamesFor("")), redact))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"CANARY", "4711", "horse", "staple", "t0psecret", "hookpass"} {
		if strings.Contains(string(said), secret) {
			t.Errorf("%s is in %s", secret, said)
		}
	}
	if p.Status.Conditions[0].Message != "4711 is unready" {
		t.Error("the Pod itself was changed")
	}
}
