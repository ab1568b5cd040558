package cli

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/bundle"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// What is put into a bundle is chosen here field by field: a field that nobody thought
// of is left out, and so is what it holds.

// containersOf are all containers of a Pod.
func containersOf(s corev1.PodSpec) []corev1.Container {
	all := slices.Concat(s.InitContainers, s.Containers)
	for _, e := range s.EphemeralContainers {
		all = append(all, corev1.Container(e.EphemeralContainerCommon))
	}
	return all
}

func reducedPod(p *corev1.Pod, names grant.Names) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
			OwnerReferences: p.OwnerReferences, Finalizers: p.Finalizers, Annotations: gatewayAnnotations(p.Annotations, names),
		},
		Spec: reducedSpec(p.Spec),
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, Conditions: p.Status.Conditions, Reason: p.Status.Reason, Message: p.Status.Message,
			StartTime: p.Status.StartTime, QOSClass: p.Status.QOSClass,
			InitContainerStatuses: reducedStatuses(p.Status.InitContainerStatuses), ContainerStatuses: reducedStatuses(p.Status.ContainerStatuses),
			EphemeralContainerStatuses: reducedStatuses(p.Status.EphemeralContainerStatuses),
		},
	}
}

// gatewayAnnotations are both of them, as far as they say what they are to say: a
// field without a meaning may hold anything.
func gatewayAnnotations(from map[string]string, names grant.Names) map[string]string {
	out := map[string]string{}
	if text, ok := from[names.Mounts]; ok {
		out[names.Mounts] = "(cannot be read)"
		set := grant.Decode(text)
		if clean, err := grant.Encode(set.Mounts); err == nil && set.Whole == nil {
			out[names.Mounts] = clean
		}
	}
	if text, ok := from[names.Ready]; ok {
		out[names.Ready] = "(cannot be read)"
		if st, err := grant.DecodeStatus(text); err == nil {
			out[names.Ready] = st.Encode()
		}
	}
	return out
}

func reducedSpec(s corev1.PodSpec) corev1.PodSpec {
	out := corev1.PodSpec{
		NodeName: s.NodeName, NodeSelector: s.NodeSelector, Tolerations: s.Tolerations, ServiceAccountName: s.ServiceAccountName,
		AutomountServiceAccountToken: s.AutomountServiceAccountToken, HostPID: s.HostPID, HostIPC: s.HostIPC, HostNetwork: s.HostNetwork,
		HostUsers: s.HostUsers, SecurityContext: s.SecurityContext, RuntimeClassName: s.RuntimeClassName, PriorityClassName: s.PriorityClassName,
		RestartPolicy: s.RestartPolicy, TerminationGracePeriodSeconds: s.TerminationGracePeriodSeconds, ShareProcessNamespace: s.ShareProcessNamespace,
	}
	for _, c := range s.InitContainers {
		out.InitContainers = append(out.InitContainers, reducedContainer(c))
	}
	for _, c := range s.Containers {
		out.Containers = append(out.Containers, reducedContainer(c))
	}
	for _, e := range s.EphemeralContainers {
		out.EphemeralContainers = append(out.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(reducedContainer(corev1.Container(e.EphemeralContainerCommon))),
		})
	}
	for _, v := range s.Volumes {
		out.Volumes = append(out.Volumes, reducedVolume(v))
	}
	return out
}

func reducedContainer(c corev1.Container) corev1.Container {
	out := corev1.Container{
		Name: c.Name, Image: c.Image, Resources: c.Resources, VolumeMounts: c.VolumeMounts, SecurityContext: c.SecurityContext,
		RestartPolicy: c.RestartPolicy, Ports: c.Ports, EnvFrom: c.EnvFrom,
	}
	for _, e := range c.Env {
		if e.Value != "" {
			e.Value = bundle.Removed
		}
		out.Env = append(out.Env, e)
	}
	for range c.Command {
		out.Command = append(out.Command, bundle.Removed)
	}
	for _, a := range c.Args {
		if c.Name != fleet.Container || !isSetting(a) {
			a = bundle.Removed
		}
		out.Args = append(out.Args, a)
	}
	return out
}

// isSetting tells whether an argument is a setting of the agent's, none of which is a
// secret.
func isSetting(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	return strings.HasPrefix(arg, "--") && slices.ContainsFunc(agentcmd.Options(), func(o agentcmd.Option) bool { return o.Flag == name })
}

// reducedVolume keeps what says where the volume is from, of those sorts that matter
// here, and the name of the others.
func reducedVolume(v corev1.Volume) corev1.Volume {
	out := corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
		EmptyDir: v.EmptyDir, HostPath: v.HostPath, PersistentVolumeClaim: v.PersistentVolumeClaim, NFS: v.NFS,
		ConfigMap: v.ConfigMap, Secret: v.Secret, Projected: v.Projected, DownwardAPI: v.DownwardAPI,
	}}
	if v.CSI != nil {
		out.CSI = &corev1.CSIVolumeSource{Driver: v.CSI.Driver, ReadOnly: v.CSI.ReadOnly, FSType: v.CSI.FSType}
	}
	return out
}

// reducedStatuses leaves out what a container says when it ends: that is a program's
// to choose.
func reducedStatuses(from []corev1.ContainerStatus) []corev1.ContainerStatus {
	state := func(s corev1.ContainerState) corev1.ContainerState {
		if t := s.Terminated; t != nil {
			s.Terminated = &corev1.ContainerStateTerminated{
				ExitCode: t.ExitCode, Signal: t.Signal, Reason: t.Reason, StartedAt: t.StartedAt, FinishedAt: t.FinishedAt, ContainerID: t.ContainerID,
			}
		}
		return s
	}
	var out []corev1.ContainerStatus
	for _, s := range from {
		out = append(out, corev1.ContainerStatus{
			Name: s.Name, Image: s.Image, ImageID: s.ImageID, ContainerID: s.ContainerID, Ready: s.Ready, Started: s.Started,
			RestartCount: s.RestartCount, State: state(s.State), LastTerminationState: state(s.LastTerminationState),
		})
	}
	return out
}

// viewFor is an agent's view for somebody who is to know about one Pod: of the others
// it keeps how many mounts they have and how they are, and not whose and which.
func viewFor(v nodeview.Node, uid string) nodeview.Node {
	pods := []nodeview.Pod{}
	for _, p := range v.Pods {
		if p.UID != uid {
			p = nodeview.Pod{UID: p.UID, Published: p.Published, Tree: p.Tree, Phase: p.Phase, Leaked: p.Leaked, Mounts: stripped(p.Mounts)}
		}
		pods = append(pods, p)
	}
	v.Pods = pods
	return v
}

func stripped(mounts []nodeview.Mount) []nodeview.Mount {
	out := []nodeview.Mount{}
	for _, m := range mounts {
		out = append(out, nodeview.Mount{Kind: m.Kind, State: m.State, Flags: m.Flags})
	}
	return out
}

// concerns tells whether a line of the agent's log is about this Pod or about none.
// What is no JSON, as a crash writes, is about none.
//
// A process of the keeper is called by the uid of its Pod and the mount's target.
func concerns(line string, p *corev1.Pod) bool {
	var l struct {
		Pod json.RawMessage `json:"pod"`
		UID string          `json:"uid"`
		Use string          `json:"use"`
	}
	err := json.Unmarshal([]byte(line), &l)
	if child := childsLine.FindStringSubmatch(line); err != nil && child != nil {
		return child[1] == string(p.UID)
	}
	if err != nil || l.Pod == nil && l.UID == "" && l.Use == "" {
		return true
	}
	if uid, _, isUse := strings.Cut(l.Use, "/"); isUse {
		return uid == string(p.UID)
	}
	var ref struct{ UID, Namespace, Name string }
	if json.Unmarshal(l.Pod, &ref) == nil && ref.UID != "" {
		return ref.UID == string(p.UID)
	}
	var name string
	if json.Unmarshal(l.Pod, &name) == nil && name != "" {
		return name == string(p.UID) || name == p.Name || name == p.Namespace+"/"+p.Name
	}
	return l.UID == string(p.UID)
}

// childsLine is what a process of the keeper printed, behind its name there and its id.
var childsLine = regexp.MustCompile(`\A([^/\s]+)/.* [A-Z2-7]{26}: `)
