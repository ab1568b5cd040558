package cli

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/internal/bundle"
)

// redactorFor takes out what the Pod itself says is not for others, wherever it shows
// up again: a program that cannot start has its arguments in an event.
func redactorFor(p *corev1.Pod) *bundle.Redactor {
	var values []string
	names := []string{p.Name, p.Namespace, p.Spec.NodeName, p.Spec.ServiceAccountName, "node-mounts-agent"}
	for _, c := range containersOf(p.Spec) {
		names = append(names, c.Name, c.Image)
		for _, e := range c.Env {
			values = append(values, e.Value)
		}
		for _, a := range slices.Concat(c.Command, c.Args) {
			_, value, _ := strings.Cut(a, "=")
			values = append(values, a, value)
		}
		values = append(values, handled(c)...)
		for _, m := range c.VolumeMounts {
			names = append(names, m.Name, m.MountPath)
		}
	}
	return bundle.NewRedactor(values, names)
}

// handled is what a container's probes and hooks run and ask for.
func handled(c corev1.Container) []string {
	var values []string
	of := func(exec *corev1.ExecAction, get *corev1.HTTPGetAction) {
		if exec != nil {
			values = append(values, exec.Command...)
		}
		if get != nil {
			values = append(values, get.Path)
			for _, h := range get.HTTPHeaders {
				values = append(values, h.Value)
			}
		}
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p != nil {
			of(p.Exec, p.HTTPGet)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				of(h.Exec, h.HTTPGet)
			}
		}
	}
	return values
}

// eventText is what kubelet says of a container. After the first colon of these comes
// what a probe or a hook printed, which is a program's to choose.
func eventText(reason, message string, redact *bundle.Redactor) string {
	if slices.Contains([]string{"Unhealthy", "ProbeWarning", "FailedPostStartHook", "FailedPreStopHook", "PostStartHookError"}, reason) {
		if before, printed, found := strings.Cut(message, ":"); found && strings.TrimSpace(printed) != "" {
			return redact.Strict(before) + ": " + bundle.Removed
		}
	}
	return redact.Strict(message)
}

// saidStrictly is a reduced Pod whose status tells no more than its events do.
func saidStrictly(p *corev1.Pod, redact *bundle.Redactor) *corev1.Pod {
	p.Status.Message = redact.Strict(p.Status.Message)
	p.Status.Conditions = slices.Clone(p.Status.Conditions)
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].Message = redact.Strict(p.Status.Conditions[i].Message)
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil {
				list[i].State.Waiting = &corev1.ContainerStateWaiting{Reason: w.Reason, Message: eventText(w.Reason, w.Message, redact)}
			}
		}
	}
	return p
}
