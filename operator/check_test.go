package operator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/operator"
)

// template is a pooled Pod with everything that PodTemplate knows.
func template(t testing.TB) *corev1.PodTemplateSpec {
	t.Helper()
	made, err := operator.PodTemplate(operator.Runtime{
		Image:     "jupyter",
		Env:       []corev1.EnvVar{{Name: "A", Value: "b"}},
		Companion: &operator.Companion{Image: "companion"},
	})
	must(t, err)
	return made
}

// Where the containers of template are.
const (
	runtimeField   = "spec.containers[0]"
	companionField = "spec.containers[1]"
	blockerField   = "spec.initContainers[0]"
	gatewayName    = grant.DefaultVolumeName
)

type podTemplate = corev1.PodTemplateSpec

func runtimeOf(p *podTemplate) *corev1.Container   { return &p.Spec.Containers[0] }
func companionOf(p *podTemplate) *corev1.Container { return &p.Spec.Containers[1] }
func blockerOf(p *podTemplate) *corev1.Container   { return &p.Spec.InitContainers[0] }
func gateway(p *podTemplate) *corev1.EmptyDirVolumeSource {
	return p.Spec.Volumes[0].EmptyDir
}

// mounts puts a volume into the runtime container.
func mounts(p *podTemplate, at string, source corev1.VolumeSource) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "extra", VolumeSource: source})
	runtimeOf(p).VolumeMounts = append(runtimeOf(p).VolumeMounts, corev1.VolumeMount{Name: "extra", MountPath: at})
}

func disk() corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
}

func hostPath() corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}
}

func projected(sources ...corev1.VolumeProjection) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}
}

func downward(path string) []corev1.DownwardAPIVolumeFile {
	return []corev1.DownwardAPIVolumeFile{{Path: "f", FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func fieldEnv(path string) corev1.EnvVar {
	return corev1.EnvVar{Name: "E", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func token() corev1.VolumeProjection {
	return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
}

func gatewayMount(propagation *corev1.MountPropagationMode) corev1.VolumeMount {
	return corev1.VolumeMount{Name: gatewayName, MountPath: "/granted", MountPropagation: propagation}
}

func hostToContainer() *corev1.MountPropagationMode {
	return ptr.To(corev1.MountPropagationHostToContainer)
}

func initContainer(p *podTemplate, first bool, k corev1.Container) {
	if first {
		p.Spec.InitContainers = append([]corev1.Container{k}, p.Spec.InitContainers...)
		return
	}
	p.Spec.InitContainers = append(p.Spec.InitContainers, k)
}

// shape is one change of a template.
type shape struct {
	name   string
	reason operator.Reason // the rule that it is about
	field  string          // where the problem is, "" where there is none
	change func(*podTemplate)
}

// refused break one rule each.
func refused() []shape {
	return slices.Concat(refusedPods(), refusedVolumes(), refusedNames(), refusedContainers())
}

func refusedPods() []shape {
	return []shape{
		{"no label", operator.ReasonLabel, "metadata.labels['" + names.Label + "']", func(p *podTemplate) { p.Labels = nil }},
		{"another label value", operator.ReasonLabel, "metadata.labels['" + names.Label + "']", func(p *podTemplate) { p.Labels[names.Label] = "false" }},
		{"an answer", operator.ReasonAnswered, "metadata.annotations['" + names.Ready + "']", func(p *podTemplate) {
			p.Annotations = map[string]string{names.Ready: "{}"}
		}},
		{"a mirror", operator.ReasonMirror, "metadata.annotations['" + corev1.MirrorPodAnnotationKey + "']", func(p *podTemplate) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}},
		{"a user namespace", operator.ReasonUserNamespace, "spec.hostUsers", func(p *podTemplate) { p.Spec.HostUsers = ptr.To(false) }},
		{"gVisor", operator.ReasonSandboxedRuntime, "spec.runtimeClassName", func(p *podTemplate) { p.Spec.RuntimeClassName = ptr.To("gvisor") }},
		{"a Kata class", operator.ReasonSandboxedRuntime, "spec.runtimeClassName", func(p *podTemplate) { p.Spec.RuntimeClassName = ptr.To("kata-qemu") }},
		{"SELinux options of the Pod", operator.ReasonSELinux, "spec.securityContext.seLinuxOptions", func(p *podTemplate) {
			p.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0:c1"}
		}},
		{"SELinux options of a container", operator.ReasonSELinux, runtimeField + ".securityContext.seLinuxOptions", func(p *podTemplate) {
			runtimeOf(p).SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0:c1"}
		}},
		{"the node's network", operator.ReasonHostNamespace, "spec.hostNetwork", func(p *podTemplate) { p.Spec.HostNetwork = true }},
		{"the node's processes", operator.ReasonHostNamespace, "spec.hostPID", func(p *podTemplate) { p.Spec.HostPID = true }},
		{"the node's IPC", operator.ReasonHostNamespace, "spec.hostIPC", func(p *podTemplate) { p.Spec.HostIPC = true }},
		{"processes shared with the companion", operator.ReasonSharedProcesses, "spec.shareProcessNamespace", func(p *podTemplate) {
			p.Spec.ShareProcessNamespace = ptr.To(true)
		}},
		{"processes shared with a companion that is a sidecar", operator.ReasonSharedProcesses, "spec.shareProcessNamespace", func(p *podTemplate) {
			p.Spec.ShareProcessNamespace = ptr.To(true)
			k := *companionOf(p)
			k.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			p.Spec.Containers = p.Spec.Containers[:1]
			initContainer(p, false, k)
		}},
		{"an ephemeral container", operator.ReasonEphemeral, "spec.ephemeralContainers[0]", func(p *podTemplate) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
		}},
	}
}

func refusedVolumes() []shape {
	return []shape{
		{"no volume", operator.ReasonVolumeMissing, "spec.volumes", func(p *podTemplate) { p.Spec.Volumes = p.Spec.Volumes[1:] }},
		{"a volume of another type", operator.ReasonVolumeMissing, "spec.volumes[0]", func(p *podTemplate) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}
		}},
		{"a volume on disk", operator.ReasonVolumeOnDisk, "spec.volumes[0].emptyDir.medium", func(p *podTemplate) { gateway(p).Medium = "" }},
		{"a volume of huge pages", operator.ReasonVolumeOnDisk, "spec.volumes[0].emptyDir.medium", func(p *podTemplate) { gateway(p).Medium = "HugePages" }},
		{"no size limit", operator.ReasonVolumeSize, "spec.volumes[0].emptyDir.sizeLimit", func(p *podTemplate) { gateway(p).SizeLimit = nil }},
		{"a size limit of zero", operator.ReasonVolumeSize, "spec.volumes[0].emptyDir.sizeLimit", func(p *podTemplate) { gateway(p).SizeLimit = ptr.To(resource.MustParse("0")) }},
		{"a large size limit", operator.ReasonVolumeSize, "spec.volumes[0].emptyDir.sizeLimit", func(p *podTemplate) { gateway(p).SizeLimit = ptr.To(resource.MustParse("1048577")) }},
		{"nobody mounts the volume", operator.ReasonNotMounted, "spec.containers", func(p *podTemplate) { runtimeOf(p).VolumeMounts = nil }},
		{"an init container alone mounts the volume", operator.ReasonNotMounted, "spec.containers", func(p *podTemplate) {
			blockerOf(p).VolumeMounts, runtimeOf(p).VolumeMounts = runtimeOf(p).VolumeMounts, nil
		}},
		{"no propagation", operator.ReasonNoPropagation, runtimeField + ".volumeMounts[0].mountPropagation", func(p *podTemplate) {
			runtimeOf(p).VolumeMounts[0].MountPropagation = nil
		}},
		{"propagation None", operator.ReasonNoPropagation, runtimeField + ".volumeMounts[0].mountPropagation", func(p *podTemplate) {
			runtimeOf(p).VolumeMounts[0].MountPropagation = ptr.To(corev1.MountPropagationNone)
		}},
		{"propagation both ways", operator.ReasonNoPropagation, runtimeField + ".volumeMounts[0].mountPropagation", func(p *podTemplate) {
			runtimeOf(p).VolumeMounts[0].MountPropagation = ptr.To(corev1.MountPropagationBidirectional)
		}},
		{"a second container without propagation", operator.ReasonNoPropagation, companionField + ".volumeMounts[1].mountPropagation", func(p *podTemplate) {
			companionOf(p).VolumeMounts = append(companionOf(p).VolumeMounts, gatewayMount(nil))
		}},
		{"an init container without propagation", operator.ReasonNoPropagation, blockerField + ".volumeMounts[0].mountPropagation", func(p *podTemplate) {
			blockerOf(p).VolumeMounts = append(blockerOf(p).VolumeMounts, gatewayMount(nil))
		}},
		{"a sub-path", operator.ReasonSubPath, runtimeField + ".volumeMounts[0].subPath", func(p *podTemplate) { runtimeOf(p).VolumeMounts[0].SubPath = "x" }},
		{"a sub-path expression", operator.ReasonSubPath, runtimeField + ".volumeMounts[0].subPathExpr", func(p *podTemplate) { runtimeOf(p).VolumeMounts[0].SubPathExpr = "$(A)" }},
		{"a volume above", operator.ReasonOverlap, runtimeField + ".volumeMounts[1].mountPath", func(p *podTemplate) { mounts(p, "/mnt", disk()) }},
		{"a volume on the root", operator.ReasonOverlap, runtimeField + ".volumeMounts[1].mountPath", func(p *podTemplate) { mounts(p, "/", disk()) }},
		{"a volume beneath", operator.ReasonOverlap, runtimeField + ".volumeMounts[1].mountPath", func(p *podTemplate) { mounts(p, "/mnt/datalayer/x", disk()) }},
		{"a volume at the place itself, written in another way", operator.ReasonOverlap, runtimeField + ".volumeMounts[1].mountPath", func(p *podTemplate) {
			mounts(p, "mnt/x/..//datalayer/", disk())
		}},
		{"a device beneath", operator.ReasonOverlap, runtimeField + ".volumeDevices[0].devicePath", func(p *podTemplate) {
			runtimeOf(p).VolumeDevices = []corev1.VolumeDevice{{Name: "d", DevicePath: "/mnt/datalayer/d"}}
		}},
	}
}

// refusedNames are what the API would refuse as well, later and in other words.
func refusedNames() []shape {
	all := []shape{
		{"a grant that is no JSON", operator.ReasonGrantInvalid, "metadata.annotations['" + names.Mounts + "']", func(p *podTemplate) {
			p.Annotations = map[string]string{names.Mounts: "ada"}
		}},
		{"a grant with an entry that leaves the claim", operator.ReasonGrantInvalid, "metadata.annotations['" + names.Mounts + "']", func(p *podTemplate) {
			p.Annotations = map[string]string{names.Mounts: `[{"source":"../etc","target":"etc","mode":"rw"}]`}
		}},
		{"two volumes of a name", operator.ReasonDuplicateName, "spec.volumes[2].name", func(p *podTemplate) {
			p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[1])
		}},
		{"a container named as the blocker", operator.ReasonDuplicateName, companionField + ".name", func(p *podTemplate) {
			companionOf(p).Name, companionOf(p).VolumeMounts = operator.DefaultBlocker, nil
		}},
		{"a mount of no volume", operator.ReasonUnknownVolume, runtimeField + ".volumeMounts[1].name", func(p *podTemplate) {
			runtimeOf(p).VolumeMounts = append(runtimeOf(p).VolumeMounts, corev1.VolumeMount{Name: "gone", MountPath: "/gone"})
		}},
	}
	for _, at := range []string{"/", "/proc", "/proc/x", "/sys/fs", "/dev", "/etc", "/usr", "/mnt/../etc", "//x/", "/x/", "/mnt/./x", "mnt", ""} {
		all = append(all, shape{"the volume at " + at, operator.ReasonMountPath, runtimeField + ".volumeMounts[0].mountPath", func(p *podTemplate) {
			runtimeOf(p).VolumeMounts[0].MountPath = at
		}})
	}
	return all
}

func refusedContainers() []shape {
	capability := func(c corev1.Capability) func(*podTemplate) {
		return func(p *podTemplate) { runtimeOf(p).SecurityContext.Capabilities.Add = []corev1.Capability{c} }
	}
	const capabilities = runtimeField + ".securityContext.capabilities.add[0]"
	all := []shape{
		{"the token automounted", operator.ReasonTokenAutomounted, "spec.automountServiceAccountToken", func(p *podTemplate) {
			p.Spec.AutomountServiceAccountToken = ptr.To(true)
		}},
		{"automount left to the service account", operator.ReasonTokenAutomounted, "spec.automountServiceAccountToken", func(p *podTemplate) {
			p.Spec.AutomountServiceAccountToken = nil
		}},
		{"a token in the runtime", operator.ReasonTokenInReach, runtimeField + ".volumeMounts[1]", func(p *podTemplate) { mounts(p, "/t", projected(token())) }},
		{"a token among other things", operator.ReasonTokenInReach, runtimeField + ".volumeMounts[1]", func(p *podTemplate) {
			mounts(p, "/t", projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}, token()))
		}},
		{"a certificate of the Pod in the runtime", operator.ReasonTokenInReach, runtimeField + ".volumeMounts[1]", func(p *podTemplate) {
			mounts(p, "/t", projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}))
		}},
		{"the companion's token in the runtime", operator.ReasonTokenInReach, runtimeField + ".volumeMounts[1]", func(p *podTemplate) {
			runtimeOf(p).VolumeMounts = append(runtimeOf(p).VolumeMounts, companionOf(p).VolumeMounts[0])
		}},
		{"the companion's token in an init container", operator.ReasonTokenInReach, "spec.initContainers[1].volumeMounts[0]", func(p *podTemplate) {
			initContainer(p, false, corev1.Container{Name: "prepare", VolumeMounts: companionOf(p).VolumeMounts})
		}},
		{"an ephemeral container with the companion's name and token", operator.ReasonTokenInReach, "spec.ephemeralContainers[0].volumeMounts[0]", func(p *podTemplate) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: operator.DefaultCompanion, VolumeMounts: companionOf(p).VolumeMounts,
			}}}
		}},
		{"all annotations in a volume", operator.ReasonAnnotationInReach, "spec.volumes[2].downwardAPI.items[0].fieldRef.fieldPath", func(p *podTemplate) {
			mounts(p, "/a", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: downward("metadata.annotations")}})
		}},
		{"the grant in a projected volume", operator.ReasonAnnotationInReach, "spec.volumes[2].projected.sources[0].downwardAPI.items[0].fieldRef.fieldPath", func(p *podTemplate) {
			mounts(p, "/a", projected(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: downward("metadata.annotations['" + names.Mounts + "']")}}))
		}},
		{"the answer in the environment", operator.ReasonAnnotationInReach, runtimeField + ".env[1].valueFrom.fieldRef.fieldPath", func(p *podTemplate) {
			runtimeOf(p).Env = append(runtimeOf(p).Env, fieldEnv("metadata.annotations['"+names.Ready+"']"))
		}},
		{"the grant in the companion's environment", operator.ReasonAnnotationInReach, companionField + ".env[0].valueFrom.fieldRef.fieldPath", func(p *podTemplate) {
			companionOf(p).Env = []corev1.EnvVar{fieldEnv("metadata.annotations['" + names.Mounts + "']")}
		}},
		{"a privileged runtime", operator.ReasonPrivileged, runtimeField + ".securityContext.privileged", func(p *podTemplate) { runtimeOf(p).SecurityContext.Privileged = ptr.To(true) }},
		{"a privileged companion", operator.ReasonPrivileged, companionField + ".securityContext.privileged", func(p *podTemplate) { companionOf(p).SecurityContext.Privileged = ptr.To(true) }},
		{"another privileged init container", operator.ReasonPrivileged, "spec.initContainers[1].securityContext.privileged", func(p *podTemplate) {
			initContainer(p, false, corev1.Container{Name: "prepare", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}})
		}},
		{"a blocker that stays", operator.ReasonPrivileged, blockerField + ".securityContext.privileged", func(p *podTemplate) {
			blockerOf(p).RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}},
		{"a privileged container with the blocker's name", operator.ReasonPrivileged, "spec.containers[2].securityContext.privileged", func(p *podTemplate) {
			p.Spec.Containers = append(p.Spec.Containers, *blockerOf(p))
			p.Spec.InitContainers = nil
		}},
		{"a capability as the kernel spells it", operator.ReasonCapability, capabilities, capability("cap_sys_admin")},
		{"a capability of the companion", operator.ReasonCapability, companionField + ".securityContext.capabilities.add[1]", func(p *podTemplate) {
			companionOf(p).SecurityContext.Capabilities.Add = []corev1.Capability{"CHOWN", "SYS_PTRACE"}
		}},
		{"no seccomp", operator.ReasonSeccomp, runtimeField + ".securityContext.seccompProfile", func(p *podTemplate) {
			p.Spec.SecurityContext, runtimeOf(p).SecurityContext = nil, nil
		}},
		{"a container that opts out of seccomp", operator.ReasonSeccomp, runtimeField + ".securityContext.seccompProfile", func(p *podTemplate) {
			runtimeOf(p).SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		}},
		{"a folder of the node", operator.ReasonHostPath, runtimeField + ".volumeMounts[1]", func(p *podTemplate) { mounts(p, "/srv", hostPath()) }},
		{"an init container before the block", operator.ReasonMetadataOpen, blockerField, func(p *podTemplate) {
			initContainer(p, true, corev1.Container{Name: "prepare"})
		}},
	}
	for _, c := range []corev1.Capability{
		"ALL", "SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH", "SYS_MODULE", "BPF", "PERFMON", "SYS_RAWIO", "SYS_BOOT", "NET_ADMIN",
	} {
		all = append(all, shape{"capability " + string(c), operator.ReasonCapability, capabilities, capability(c)})
	}
	return all
}

// accepted come close to a rule and break none.
func accepted() []shape {
	return []shape{
		{"other labels", operator.ReasonLabel, "", func(p *podTemplate) { p.Labels["a"] = "b" }},
		{"a grant in the template", operator.ReasonAnswered, "", func(p *podTemplate) { p.Annotations = map[string]string{names.Mounts: "[]"} }},
		{"a grant that can be read", operator.ReasonGrantInvalid, "", func(p *podTemplate) {
			p.Annotations = map[string]string{names.Mounts: `[{"source":"home/users/ada","target":"ada","mode":"rw"}]`}
		}},
		{"a volume named as a container", operator.ReasonDuplicateName, "", func(p *podTemplate) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: runtimeOf(p).Name, VolumeSource: disk()})
		}},
		{"a volume that nobody mounts", operator.ReasonUnknownVolume, "", func(p *podTemplate) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "extra", VolumeSource: disk()})
		}},
		{"the volume in a folder of the system", operator.ReasonMountPath, "", func(p *podTemplate) {
			runtimeOf(p).VolumeMounts[0].MountPath = "/var/granted"
		}},
		{"other annotations", operator.ReasonMirror, "", func(p *podTemplate) { p.Annotations = map[string]string{"kubernetes.io/config.source": "api"} }},
		{"the node's users, in words", operator.ReasonUserNamespace, "", func(p *podTemplate) { p.Spec.HostUsers = ptr.To(true) }},
		{"a runtime class", operator.ReasonSandboxedRuntime, "", func(p *podTemplate) { p.Spec.RuntimeClassName = ptr.To("nvidia") }},
		{"a security context without SELinux", operator.ReasonSELinux, "", func(p *podTemplate) { p.Spec.SecurityContext.FSGroup = ptr.To[int64](100) }},
		{"a host name", operator.ReasonHostNamespace, "", func(p *podTemplate) { p.Spec.Hostname = "sandbox" }},
		{"processes shared among user code", operator.ReasonSharedProcesses, "", func(p *podTemplate) {
			p.Spec.ShareProcessNamespace = ptr.To(true)
			p.Spec.Containers = p.Spec.Containers[:1]
		}},
		{"processes shared after a companion that ends", operator.ReasonSharedProcesses, "", func(p *podTemplate) {
			p.Spec.ShareProcessNamespace = ptr.To(true)
			initContainer(p, false, *companionOf(p))
			p.Spec.Containers = p.Spec.Containers[:1]
		}},
		{"a list of no ephemeral containers", operator.ReasonEphemeral, "", func(p *podTemplate) { p.Spec.EphemeralContainers = []corev1.EphemeralContainer{} }},
		{"the volume among others", operator.ReasonVolumeMissing, "", func(p *podTemplate) { slices.Reverse(p.Spec.Volumes) }},
		{"another volume on disk", operator.ReasonVolumeOnDisk, "", func(p *podTemplate) { mounts(p, "/scratch", disk()) }},
		{"a smaller size limit", operator.ReasonVolumeSize, "", func(p *podTemplate) { gateway(p).SizeLimit = ptr.To(resource.MustParse("64Ki")) }},
		{"the companion alone mounts the volume", operator.ReasonNotMounted, "", func(p *podTemplate) {
			companionOf(p).VolumeMounts = append(companionOf(p).VolumeMounts, runtimeOf(p).VolumeMounts...)
			runtimeOf(p).VolumeMounts = nil
		}},
		{"a second container with propagation", operator.ReasonNoPropagation, "", func(p *podTemplate) {
			companionOf(p).VolumeMounts = append(companionOf(p).VolumeMounts, gatewayMount(hostToContainer()))
		}},
		{"a sub-path of another volume", operator.ReasonSubPath, "", func(p *podTemplate) {
			mounts(p, "/scratch", disk())
			runtimeOf(p).VolumeMounts[1].SubPath = "x"
		}},
		{"a volume beside, with a name that begins alike", operator.ReasonOverlap, "", func(p *podTemplate) { mounts(p, "/mnt/datalayer-x", disk()) }},
		{"a volume above, in a container without the gateway volume", operator.ReasonOverlap, "", func(p *podTemplate) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "extra", VolumeSource: disk()})
			companionOf(p).VolumeMounts = append(companionOf(p).VolumeMounts, corev1.VolumeMount{Name: "extra", MountPath: "/mnt"})
		}},
		{"no token at all", operator.ReasonTokenAutomounted, "", func(p *podTemplate) {
			p.Spec.Containers, p.Spec.Volumes = p.Spec.Containers[:1], p.Spec.Volumes[:1]
		}},
		{"a projected volume without a credential", operator.ReasonTokenInReach, "", func(p *podTemplate) {
			mounts(p, "/c", projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}))
		}},
		{"other annotations and fields", operator.ReasonAnnotationInReach, "", func(p *podTemplate) {
			runtimeOf(p).Env = append(runtimeOf(p).Env, fieldEnv("metadata.annotations['example.org/theme']"), fieldEnv("metadata.name"))
			mounts(p, "/a", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: downward("metadata.labels")}})
		}},
		{"privileged: false", operator.ReasonPrivileged, "", func(p *podTemplate) { runtimeOf(p).SecurityContext.Privileged = ptr.To(false) }},
		{"a capability that every container has", operator.ReasonCapability, "", func(p *podTemplate) {
			runtimeOf(p).SecurityContext.Capabilities.Add = []corev1.Capability{"CHOWN", "CAP_NET_BIND_SERVICE"}
		}},
		{"NET_ADMIN for the blocker", operator.ReasonCapability, "", func(p *podTemplate) {
			blockerOf(p).SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}
		}},
		{"seccomp of the Pod", operator.ReasonSeccomp, "", func(p *podTemplate) { runtimeOf(p).SecurityContext = nil }},
		{"seccomp of the containers", operator.ReasonSeccomp, "", func(p *podTemplate) { p.Spec.SecurityContext = nil }},
		{"a filter of the deployment's own", operator.ReasonSeccomp, "", func(p *podTemplate) {
			runtimeOf(p).SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("p.json")}
		}},
		{"a folder of the node in the companion", operator.ReasonHostPath, "", func(p *podTemplate) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "extra", VolumeSource: hostPath()})
			companionOf(p).VolumeMounts = append(companionOf(p).VolumeMounts, corev1.VolumeMount{Name: "extra", MountPath: "/srv"})
		}},
		{"an init container after the block", operator.ReasonMetadataOpen, "", func(p *podTemplate) { initContainer(p, false, corev1.Container{Name: "prepare"}) }},
		{"an init container without a block", operator.ReasonMetadataOpen, "", func(p *podTemplate) {
			p.Spec.InitContainers = []corev1.Container{{Name: "prepare"}}
		}},
		{"the companion before the block", operator.ReasonMetadataOpen, "", func(p *podTemplate) {
			initContainer(p, true, *companionOf(p))
			p.Spec.Containers = p.Spec.Containers[:1]
		}},
	}
}

func problems(t testing.TB, err error) []operator.Problem {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *operator.TemplateError
	if !errors.As(err, &e) || len(e.Problems) == 0 {
		t.Fatalf("%v is no list of problems", err)
	}
	return e.Problems
}

func TestATemplateThatBreaksARuleIsRefusedForIt(t *testing.T) {
	for _, s := range refused() {
		t.Run(s.name, func(t *testing.T) {
			p := template(t)
			s.change(p)
			found := problems(t, operator.CheckTemplate(operator.Rules{}, p))
			i := slices.IndexFunc(found, func(p operator.Problem) bool { return p.Reason == s.reason && p.Field == s.field })
			if i < 0 {
				t.Fatalf("%s at %s expected, got %v", s.reason, s.field, found)
			}
			if found[i].Message == "" || found[i].Fix == "" {
				t.Errorf("it does not explain itself: %+v", found[i])
			}
			// One that is a blocker no longer, or debugs, breaks rules on the way.
			for _, other := range found {
				if other.Reason != s.reason && !slices.Contains([]operator.Reason{
					operator.ReasonSeccomp, operator.ReasonEphemeral, operator.ReasonMetadataOpen,
				}, other.Reason) {
					t.Errorf("also %v", other)
				}
			}
		})
	}
}

func TestATemplateThatComesCloseToARulePasses(t *testing.T) {
	for _, s := range accepted() {
		t.Run(s.name, func(t *testing.T) {
			p := template(t)
			s.change(p)
			if err := operator.CheckTemplate(operator.Rules{}, p); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEveryRuleIsTestedBothWaysAndExplained(t *testing.T) {
	page, err := os.ReadFile("../docs/tasks/build-a-pool.md")
	must(t, err)
	about := func(shapes []shape, r operator.Reason) bool {
		return slices.ContainsFunc(shapes, func(s shape) bool { return s.reason == r })
	}
	seen := map[operator.Reason]bool{}
	for _, r := range operator.Reasons() {
		if seen[r.Reason] || r.Why == "" || r.Fix == "" {
			t.Errorf("%+v is not explained, or twice", r)
		}
		seen[r.Reason] = true
		if !about(refused(), r.Reason) || !about(accepted(), r.Reason) {
			t.Errorf("%s is not tested both ways", r.Reason)
		}
		if !strings.Contains(string(page), "`"+string(r.Reason)+"`") {
			t.Errorf("the page on pools says nothing about %s", r.Reason)
		}
	}
	for _, s := range slices.Concat(refused(), accepted()) {
		if !seen[s.reason] {
			t.Errorf("%s: %s is not in the table", s.name, s.reason)
		}
	}
}

func TestAllProblemsAreListedAtOnce(t *testing.T) {
	p := template(t)
	p.Labels = nil
	p.Spec.AutomountServiceAccountToken = nil
	runtimeOf(p).VolumeMounts[0].MountPropagation = nil
	companionOf(p).SecurityContext.Privileged = ptr.To(true)
	err := operator.CheckTemplate(operator.Rules{}, p)
	var got []operator.Reason
	for _, problem := range problems(t, err) {
		got = append(got, problem.Reason)
		if !strings.Contains(err.Error(), problem.String()) {
			t.Errorf("%q lacks %q", err, problem)
		}
	}
	want := []operator.Reason{operator.ReasonLabel, operator.ReasonTokenAutomounted, operator.ReasonNoPropagation, operator.ReasonPrivileged}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

func TestAPodIsCheckedWithItsGrantAndAnswer(t *testing.T) {
	made := template(t)
	p := &corev1.Pod{ObjectMeta: made.ObjectMeta, Spec: made.Spec}
	p.Annotations = map[string]string{names.Mounts: "[]", names.Ready: "{}"}
	if err := operator.CheckPod(operator.Rules{}, p); err != nil {
		t.Error(err)
	}
	p.Spec.HostPID = true
	if found := problems(t, operator.CheckPod(operator.Rules{}, p)); len(found) != 1 || found[0].Reason != operator.ReasonHostNamespace {
		t.Errorf("found %v", found)
	}
}

func TestADeploymentHasNamesOfItsOwn(t *testing.T) {
	rules := operator.Rules{
		Names: grant.NamesFor("example.org"), Volume: "folders", Trusted: []string{"helper"}, Blocker: "first", SandboxedRuntimes: []string{"vm"},
	}
	p := template(t)
	p.Labels = map[string]string{rules.Names.Label: "true"}
	p.Spec.Volumes[0].Name, runtimeOf(p).VolumeMounts[0].Name = "folders", "folders"
	companionOf(p).Name, blockerOf(p).Name = "helper", "first"
	p.Spec.RuntimeClassName = ptr.To("kata")
	if err := operator.CheckTemplate(rules, p); err != nil {
		t.Error(err)
	}
	var got []operator.Reason
	for _, problem := range problems(t, operator.CheckTemplate(operator.Rules{}, p)) {
		got = append(got, problem.Reason)
	}
	want := []operator.Reason{
		operator.ReasonLabel, operator.ReasonSandboxedRuntime, operator.ReasonVolumeMissing, operator.ReasonPrivileged, operator.ReasonTokenInReach,
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	rules.Trusted = []string{}
	if found := problems(t, operator.CheckTemplate(rules, p)); len(found) != 1 || found[0].Reason != operator.ReasonTokenInReach {
		t.Errorf("with nobody trusted: %v", found)
	}
}

// unsupported is what the agent says to a Pod of the template.
func unsupported(p *podTemplate) string {
	pol := agent.DefaultPolicy("n")
	pod := &corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
	return kube.PodFromAPI(pod, names, pol.VolumeName).Unsupported(pol)
}

func TestTheAgentTakesWhateverPasses(t *testing.T) {
	judge := func(t *testing.T, p *podTemplate) (passes, supported bool) {
		t.Helper()
		err, reason := operator.CheckTemplate(operator.Rules{}, p), unsupported(p)
		if err == nil && reason != "" {
			t.Errorf("it passes, and the agent says: %s", reason)
		}
		return err == nil, reason == ""
	}
	shapes := slices.Concat(refused(), accepted())
	byAgent := 0
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			p := template(t)
			s.change(p)
			if passes, supported := judge(t, p); !passes && !supported {
				byAgent++
			}
		})
	}
	// What the agent itself refuses in a spec: one that refused nothing, or was not
	// asked, would agree with anything.
	if byAgent < 10 {
		t.Errorf("the agent refuses %d of these Pods", byAgent)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		p := template(t)
		var applied []string
		for range 1 + random.IntN(3) {
			s := shapes[random.IntN(len(shapes))]
			if !changes(s, p) {
				continue
			}
			applied = append(applied, s.name)
		}
		if !t.Run(fmt.Sprint(applied), func(t *testing.T) { judge(t, p) }) {
			return
		}
	}
}

// changes applies the shape, and tells whether there was what it changes: an
// earlier shape may have taken it away.
func changes(s shape, p *podTemplate) (done bool) {
	tried := p.DeepCopy()
	defer func() {
		if recover() == nil {
			*p, done = *tried, true
		}
	}()
	s.change(tried)
	return true
}

func TestAGrantToAPodThatPassesIsPlanned(t *testing.T) {
	p := template(t)
	text, err := grant.Encode([]grant.Mount{home("ada")})
	must(t, err)
	p.Annotations = map[string]string{names.Mounts: text}
	must(t, operator.CheckTemplate(operator.Rules{}, p))
	pol := agent.DefaultPolicy("n")
	pod := kube.PodFromAPI(&corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: p.Spec}, names, pol.VolumeName)
	made := plan.Build(grant.Decode(*pod.Grant), pol)
	if made.Whole != nil || len(made.Refused) != 0 || len(made.Mounts) != 1 || made.Mounts[0].Target() != "ada" {
		t.Errorf("the plan is %+v", made)
	}
}

func TestTheDefaultsAreThoseOfTheAgent(t *testing.T) {
	defaults := map[string]string{}
	for _, o := range agentcmd.Options() {
		defaults[o.Flag] = o.Default
	}
	for flag, want := range map[string]string{
		"annotation-prefix":  grant.DefaultPrefix,
		"volume-name":        grant.DefaultVolumeName,
		"mount-path":         grant.DefaultMountPath,
		"owner":              fmt.Sprintf("%d:%d", operator.DefaultUser, operator.DefaultGroup),
		"sandboxed-runtimes": strings.Join(grant.DefaultSandboxedRuntimes(), ","),
	} {
		if defaults[flag] != want {
			t.Errorf("the agent's --%s is %q by default, a Pod has %q", flag, defaults[flag], want)
		}
	}
}
