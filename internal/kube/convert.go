package kube

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/plan"
)

// PodFromAPI reads the facts of a Pod that the agent decides by: names are the
// annotations' names, volume is the name of the gateway volume. It judges
// nothing, and keeps no reference to p.
func PodFromAPI(p *corev1.Pod, names grant.Names, volume string) plan.Pod {
	pod := plan.Pod{
		UID:             string(p.UID),
		Namespace:       p.Namespace,
		Name:            p.Name,
		ResourceVersion: p.ResourceVersion,
		Node:            p.Spec.NodeName,
		Finished:        p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Grant:           annotation(p, names.Mounts),
		Ready:           annotation(p, names.Ready),
		Volume:          gatewayVolume(p, volume),
		HostUsers:       p.Spec.HostUsers == nil || *p.Spec.HostUsers,
	}
	if p.DeletionTimestamp != nil {
		pod.Terminating = true
		pod.Grace = time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second
	}
	if p.Spec.RuntimeClassName != nil {
		pod.RuntimeClass = *p.Spec.RuntimeClassName
	}
	_, pod.Mirror = p.Annotations[corev1.MirrorPodAnnotationKey]
	for _, c := range containers(p) {
		for _, m := range c.mounts {
			switch {
			case m.Name != volume:
				if !slices.Contains(pod.OtherPaths, m.MountPath) {
					pod.OtherPaths = append(pod.OtherPaths, m.MountPath)
				}
			case !c.ephemeral || propagates(m):
				pod.Uses = append(pod.Uses, plan.Use{
					Container:       c.name,
					ID:              c.id,
					Init:            c.init,
					Path:            m.MountPath,
					SubPath:         m.SubPath != "" || m.SubPathExpr != "",
					HostToContainer: propagates(m),
				})
			}
		}
	}
	return pod
}

// container is what containers of the three sorts have in common.
type container struct {
	name, id string
	init     bool
	// ephemeral marks a debugging container, added to a Pod that runs. Whether a
	// Pod can receive mounts is decided by what it was made with: one that mounts
	// the volume without propagation sees no grants, and must not cost the Pod its
	// folders, so PodFromAPI leaves it out.
	ephemeral bool
	mounts    []corev1.VolumeMount
}

func containers(p *corev1.Pod) []container {
	var all []container
	ids := runningIDs(p.Status.InitContainerStatuses)
	for _, c := range p.Spec.InitContainers {
		all = append(all, container{name: c.Name, id: ids[c.Name], init: true, mounts: c.VolumeMounts})
	}
	ids = runningIDs(p.Status.ContainerStatuses)
	for _, c := range p.Spec.Containers {
		all = append(all, container{name: c.Name, id: ids[c.Name], mounts: c.VolumeMounts})
	}
	ids = runningIDs(p.Status.EphemeralContainerStatuses)
	for _, c := range p.Spec.EphemeralContainers {
		all = append(all, container{name: c.Name, id: ids[c.Name], ephemeral: true, mounts: c.VolumeMounts})
	}
	return all
}

// runningIDs maps the names of running containers to their ids as the runtime
// spells them in cgroup paths: the API's "containerd://<id>" without the scheme.
func runningIDs(statuses []corev1.ContainerStatus) map[string]string {
	ids := make(map[string]string, len(statuses))
	for _, s := range statuses {
		if s.State.Running == nil {
			continue
		}
		id := s.ContainerID
		if _, after, ok := strings.Cut(id, "://"); ok {
			id = after
		}
		ids[s.Name] = id
	}
	return ids
}

func propagates(m corev1.VolumeMount) bool {
	return m.MountPropagation != nil &&
		(*m.MountPropagation == corev1.MountPropagationHostToContainer || *m.MountPropagation == corev1.MountPropagationBidirectional)
}

// gatewayVolume finds the emptyDir of that name. A volume of the name and of
// another type counts as none: it is not the one the agent may publish on.
func gatewayVolume(p *corev1.Pod, name string) *plan.Volume {
	for _, v := range p.Spec.Volumes {
		if v.Name == name && v.EmptyDir != nil {
			return &plan.Volume{Memory: v.EmptyDir.Medium == corev1.StorageMediumMemory}
		}
	}
	return nil
}

func annotation(p *corev1.Pod, name string) *string {
	if v, ok := p.Annotations[name]; ok {
		return &v
	}
	return nil
}

// strip returns the part of a Pod that PodFromAPI reads, for the informer's
// store: a full Pod is 5 to 20 kB, most of it managedFields, environment and
// probes, and none of the environment's values have business in the agent's
// memory.
func strip(p *corev1.Pod, names grant.Names, volume string) *corev1.Pod {
	s := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
			DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
			Annotations: make(map[string]string, 2),
		},
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, RuntimeClassName: p.Spec.RuntimeClassName, HostUsers: p.Spec.HostUsers,
		},
		Status: corev1.PodStatus{
			Phase:                      p.Status.Phase,
			ContainerStatuses:          stripStatuses(p.Status.ContainerStatuses),
			InitContainerStatuses:      stripStatuses(p.Status.InitContainerStatuses),
			EphemeralContainerStatuses: stripStatuses(p.Status.EphemeralContainerStatuses),
		},
	}
	for _, name := range []string{names.Mounts, names.Ready, corev1.MirrorPodAnnotationKey} {
		if v, ok := p.Annotations[name]; ok {
			s.Annotations[name] = v
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Name == volume {
			s.Spec.Volumes = append(s.Spec.Volumes, v)
		}
	}
	for _, c := range p.Spec.InitContainers {
		s.Spec.InitContainers = append(s.Spec.InitContainers, corev1.Container{Name: c.Name, VolumeMounts: c.VolumeMounts})
	}
	for _, c := range p.Spec.Containers {
		s.Spec.Containers = append(s.Spec.Containers, corev1.Container{Name: c.Name, VolumeMounts: c.VolumeMounts})
	}
	for _, c := range p.Spec.EphemeralContainers {
		s.Spec.EphemeralContainers = append(s.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, VolumeMounts: c.VolumeMounts},
		})
	}
	return s
}

func stripStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, s := range statuses {
		if s.State.Running != nil {
			out = append(out, corev1.ContainerStatus{
				Name: s.Name, ContainerID: s.ContainerID,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			})
		}
	}
	return out
}
