package verify

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/internal/kube"
)

// perPod judges every gateway Pod: judge returns what is wrong with one, and
// whether that is certain. right is the verdict where nothing is.
func perPod(f Facts, right string, judge func(corev1.Pod) (problem string, certain bool)) []Result {
	if f.Pods.Err != nil {
		return unread("the Pods of the runtimes", f.Pods.Err)
	}
	if len(f.Pods.Value) == 0 {
		return one(Skip, "no Pod carries the gateway's label or its volume")
	}
	var failed, doubtful []string
	for _, p := range f.Pods.Value {
		problem, certain := judge(p)
		told := p.Namespace + "/" + p.Name + ": " + problem
		switch {
		case problem == "":
		case certain:
			failed = append(failed, told)
		default:
			doubtful = append(doubtful, told)
		}
	}
	count := func(n int) string { return fmt.Sprintf("%d of %s: ", n, plural(len(f.Pods.Value), "Pod", "Pods")) }
	var all []Result
	if len(failed) > 0 {
		all = append(all, Result{Status: Fail, Detail: count(len(failed)) + some(failed, "; ")})
	}
	if len(doubtful) > 0 {
		all = append(all, Result{Status: Warn, Detail: count(len(doubtful)) + some(doubtful, "; ")})
	}
	if len(all) == 0 {
		all = one(OK, right+" ("+plural(len(f.Pods.Value), "Pod", "Pods")+")")
	}
	return all
}

// carries tells whether a Pod's label says that it has the gateway's volume.
func carries(p corev1.Pod, label string) bool {
	v, ok := p.Labels[label]
	return ok && !strings.EqualFold(v, "false")
}

// volumeOf is a Pod's gateway volume, nil where it has none.
func volumeOf(p corev1.Pod, name string) *corev1.Volume {
	for _, v := range p.Spec.Volumes {
		if v.Name == name {
			return &v
		}
	}
	return nil
}

func memoryBacked(f Facts) []Result {
	return perPod(f, "emptyDir.medium: Memory", func(p corev1.Pod) (string, bool) {
		v := volumeOf(p, f.Settings.Volume)
		switch {
		case v == nil:
			return fmt.Sprintf("no volume %q, though the label %s says so", f.Settings.Volume, f.Settings.Names.Label), true
		case v.EmptyDir == nil:
			return fmt.Sprintf("the volume %q is no emptyDir", v.Name), true
		case v.EmptyDir.Medium != corev1.StorageMediumMemory:
			return fmt.Sprintf("the volume %q is on the node's disk", v.Name), true
		case !carries(p, f.Settings.Names.Label):
			return fmt.Sprintf("it has the volume and not the label %s=true: an Operator that looks for the label does not use it", f.Settings.Names.Label), false
		}
		return "", true
	})
}

func reaches(f Facts) []Result {
	return perPod(f, "HostToContainer, no subPath", func(p corev1.Pod) (string, bool) {
		if volumeOf(p, f.Settings.Volume) == nil {
			return "", true // memoryBacked tells
		}
		facts := kube.PodFromAPI(&p, f.Settings.Names, f.Settings.Volume)
		inside := false
		for _, u := range facts.Uses {
			switch {
			case u.SubPath:
				return fmt.Sprintf("container %q mounts it with a subPath", u.Container), true
			case !u.HostToContainer:
				return fmt.Sprintf("container %q mounts it without mountPropagation: HostToContainer", u.Container), true
			}
			inside = inside || !u.Init
		}
		switch {
		case !inside:
			return "no container mounts it", true
		case facts.Mirror:
			return "it is a static Pod's mirror, whose volumes the agent does not know", true
		}
		return "", true
	})
}

func runtimeClass(f Facts) []Result {
	results := perPod(f, "the node's kernel", func(p corev1.Pod) (string, bool) {
		if p.Spec.HostUsers != nil && !*p.Spec.HostUsers {
			return "it has a user namespace of its own (hostUsers: false)", true
		}
		if p.Spec.RuntimeClassName == nil {
			return "", true
		}
		class := *p.Spec.RuntimeClassName
		handler, known := f.Handlers.Value[class]
		for _, s := range f.Settings.SandboxedRuntimes {
			if s != "" && (strings.HasPrefix(class, s) || strings.HasPrefix(handler, s)) {
				return fmt.Sprintf("runtime class %q (handler %q)", class, cmp.Or(handler, "unknown")), true
			}
		}
		if !known {
			return fmt.Sprintf("the handler of runtime class %q could not be read", class), false
		}
		return "", true
	})
	return results
}

// seccomp looks at what is there while user code runs. An init container that ends
// is not: the one that blocks the metadata address is privileged, and has ended.
func seccomp(f Facts) []Result {
	return perPod(f, "filtered", func(p corev1.Pod) (string, bool) {
		unset := ""
		for _, c := range staying(p) {
			switch profile := profileOf(p, c); {
			case c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged:
				return fmt.Sprintf("container %q is privileged", c.Name), true
			case profile == corev1.SeccompProfileTypeUnconfined:
				return fmt.Sprintf("container %q is Unconfined", c.Name), true
			case profile == "" && unset == "":
				unset = fmt.Sprintf("container %q has no seccompProfile: it is Unconfined unless kubelet runs with seccompDefault", c.Name)
			}
		}
		return unset, false
	})
}

// restarts tells whether an init container stays: a sidecar.
func restarts(c corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func profileOf(p corev1.Pod, c corev1.Container) corev1.SeccompProfileType {
	if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
		return c.SecurityContext.SeccompProfile.Type
	}
	if p.Spec.SecurityContext != nil && p.Spec.SecurityContext.SeccompProfile != nil {
		return p.Spec.SecurityContext.SeccompProfile.Type
	}
	return ""
}
