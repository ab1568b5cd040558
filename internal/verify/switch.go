package verify

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// OperatorOn tells whether Pods of the Operator write grants: whether the variable
// is on in one of their containers. A value that comes from elsewhere is not known,
// and counts as off.
func OperatorOn(pod corev1.PodSpec) bool {
	return slices.ContainsFunc(slices.Concat(pod.InitContainers, pod.Containers), ContainerOn)
}

// ContainerOn tells the same of one container.
func ContainerOn(c corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		on, said := switched(e.Value)
		return e.Name == EnabledVariable && on && said
	})
}

// switchedOff tells whether a DaemonSet says that the agent's half is off, and in
// which words. One that says nothing is on: it is there for nothing else.
func switchedOff(ds appsv1.DaemonSet) (value string, off bool) {
	value, _ = setting(ds, EnabledVariable, "")
	on, said := switched(value)
	return strings.TrimSpace(value), said && !on
}

// switched reads a switch as it stands in a manifest: true or 1, false or 0, written
// as Go's strconv does or in any other case, and with spaces around it. said is
// whether it is one.
func switched(value string) (on, said bool) {
	on, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(value)))
	return on, err == nil
}
