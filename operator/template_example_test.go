package operator_test

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/operator"
)

// A pool needs an image; everything that grants depend on is there.
func ExamplePodTemplate() {
	template, err := operator.PodTemplate(operator.Runtime{
		Image:     "quay.io/jupyter/base-notebook:2026-01-05",
		Companion: &operator.Companion{Image: "registry.example.org/companion:1.4"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A Pod of the pool, made from the template.
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.GenerateName = "pool-"

	for _, c := range pod.Spec.InitContainers {
		fmt.Println("first:", c.Name)
	}
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			fmt.Printf("%s: %s at %s\n", c.Name, m.Name, m.MountPath)
		}
	}
	// Output:
	// first: block-cloud-metadata
	// runtime: node-mount-gateway at /mnt/datalayer
	// companion: companion-token at /var/run/secrets/kubernetes.io/serviceaccount
}

// A runtime that asks for what grants cannot stand is told so when its template
// is made.
func ExamplePodTemplate_refused() {
	_, err := operator.PodTemplate(operator.Runtime{Image: "jupyter", RuntimeClass: "gvisor"})
	fmt.Println(err)
	// Output:
	// make a Pod template: the Pod is not fit for grants:
	//   spec.runtimeClassName: the runtime class is "gvisor": containers of this runtime have a kernel of their own and see nothing that is mounted later: use a runtime class whose containers share the node's kernel
}

// A template that somebody wrote by hand is checked as a whole: every problem is
// in the error.
func ExampleCheckTemplate() {
	template := &corev1.PodTemplateSpec{}
	template.Labels = map[string]string{"runtime-pools.datalayer.io/node-mount-gateway": "true"}
	template.Spec = corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: "runtime", Image: "jupyter",
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
			VolumeMounts:    []corev1.VolumeMount{{Name: "node-mount-gateway", MountPath: "/mnt/datalayer"}},
		}},
		Volumes: []corev1.Volume{{Name: "node-mount-gateway", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}
	var e *operator.TemplateError
	if err := operator.CheckTemplate(operator.Rules{}, template); errors.As(err, &e) {
		for _, p := range e.Problems {
			fmt.Printf("%-18s %s: %s\n", p.Reason, p.Field, p.Fix)
		}
	}
	// Output:
	// TokenAutomounted   spec.automountServiceAccountToken: set automountServiceAccountToken to false in the Pod's spec
	// VolumeOnDisk       spec.volumes[0].emptyDir.medium: set emptyDir.medium to Memory
	// VolumeSize         spec.volumes[0].emptyDir.sizeLimit: set emptyDir.sizeLimit to 1Mi
	// NoPropagation      spec.containers[0].volumeMounts[0].mountPropagation: set mountPropagation to HostToContainer
	// Privileged         spec.containers[0].securityContext.privileged: remove privileged; the one privileged container is the init container that blocks the metadata service
}
