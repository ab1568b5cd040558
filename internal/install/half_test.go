package install

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/datalayer/node-mounts/internal/verify"
)

// The checks judge the same Deployment: what they call on cannot be off here.
func TestTheOperatorsHalfIsOnWhereTheChecksSaySo(t *testing.T) {
	says := func(name, value string) corev1.Container {
		return corev1.Container{Name: name, Env: []corev1.EnvVar{{Name: gatewayVariable, Value: value}}}
	}
	for name, test := range map[string]struct {
		spec corev1.PodSpec
		on   bool
		// Whether there is something to write to turn it on, or off.
		writesOn, writesOff bool
	}{
		"on":              {corev1.PodSpec{Containers: []corev1.Container{says("a", "true")}}, true, false, true},
		"on, with spaces": {corev1.PodSpec{Containers: []corev1.Container{says("a", " 1 ")}}, true, false, true},
		"off":             {corev1.PodSpec{Containers: []corev1.Container{says("a", "0")}}, false, true, false},
		"nothing said":    {corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}, false, true, false},
		"a ConfigMap says it": {corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Env: []corev1.EnvVar{{
			Name: gatewayVariable, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "on"}},
		}}}}}, false, true, true},
		"an init container alone has it": {
			corev1.PodSpec{InitContainers: []corev1.Container{says("b", "true")}, Containers: []corev1.Container{{Name: "a"}}}, true, true, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: verify.DefaultOperator}}
			d.Spec.Template.Spec = test.spec
			for to, writes := range map[bool]bool{true: test.writesOn, false: test.writesOff} {
				client := fake.NewClientset(d.DeepCopy())
				c := Cluster{Client: client}
				h, err := c.half(t.Context(), Operator{Namespace: "ns", Name: d.Name})
				if err != nil {
					t.Fatal(err)
				}
				if found, err := c.onHalves(t.Context(), nil); err != nil || h.on != test.on || len(found) == 1 != test.on {
					t.Errorf("on: %t, and %v among all (%v)", h.on, found, err)
				}
				client.ClearActions()
				if err := c.turn(t.Context(), h, to); err != nil || len(client.Actions()) == 1 != writes {
					t.Errorf("turned to %t: %v, %v", to, client.Actions(), err)
				}
			}
		})
	}
}
