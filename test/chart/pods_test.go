package chart

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/operator"
)

// shape is a change of the pooled Pod and what the policy says of it, "" where it
// lets it pass.
type shape struct {
	what   string
	change func(*corev1.Pod)
	says   string
}

const (
	notMemory  = "emptyDir with medium: Memory"
	unreached  = "in a way that no grant reaches"
	privileged = "is privileged or adds a capability"
	hasToken   = "mounts a service account's token"
	projects   = "annotations are projected into a container"
	noSeccomp  = "no seccomp profile"
)

func volumeOf(p *corev1.Pod) *corev1.Volume     { return &p.Spec.Volumes[0] }
func runtimeOf(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }
func mountOf(p *corev1.Pod) *corev1.VolumeMount { return &p.Spec.Containers[0].VolumeMounts[0] }
func addVolume(p *corev1.Pod, name string, s corev1.VolumeSource, path string) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: s})
	c := runtimeOf(p)
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
}

func field(path string) *corev1.ObjectFieldSelector {
	return &corev1.ObjectFieldSelector{FieldPath: path}
}

func downward(path string) corev1.VolumeSource {
	return corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{Path: "x", FieldRef: field(path)}}}}
}

func projected(path string) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "x", FieldRef: field(path)}}},
	}}}}
}

func capability(c corev1.Capability) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		runtimeOf(p).SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{c}}}
	}
}

func shapes() []shape {
	grantKey := "metadata.annotations['" + names.Mounts + "']"
	return []shape{
		{"the pooled Pod of the reference", func(*corev1.Pod) {}, ""},
		{"no label, and nothing fits", func(p *corev1.Pod) { p.Labels, p.Spec.HostPID = nil, true }, ""},

		{"no gateway volume", func(p *corev1.Pod) { p.Spec.Volumes, runtimeOf(p).VolumeMounts = p.Spec.Volumes[1:], nil }, notMemory},
		{"a volume on the node's disk", func(p *corev1.Pod) { volumeOf(p).EmptyDir.Medium = "" }, notMemory},
		{"a volume that is a claim", func(p *corev1.Pod) {
			volumeOf(p).VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
		}, notMemory},
		{"a volume without a limit", func(p *corev1.Pod) { volumeOf(p).EmptyDir.SizeLimit = nil }, "is memory and holds mount points alone"},
		{"a limit of nothing, which is none", func(p *corev1.Pod) { volumeOf(p).EmptyDir.SizeLimit = ptr.To(resource.MustParse("0")) }, "is memory and holds mount points alone"},
		{"a volume of a gigabyte", func(p *corev1.Pod) { volumeOf(p).EmptyDir.SizeLimit = ptr.To(resource.MustParse("1Gi")) }, "is memory and holds mount points alone"},
		{"the limit in bytes", func(p *corev1.Pod) { volumeOf(p).EmptyDir.SizeLimit = ptr.To(resource.MustParse("1048576")) }, ""},
		{"nobody mounts it", func(p *corev1.Pod) { runtimeOf(p).VolumeMounts = nil }, "no container mounts the volume"},

		{"no propagation", func(p *corev1.Pod) { mountOf(p).MountPropagation = nil }, "container runtime " + "mounts the volume node-mount-gateway " + unreached},
		{"propagation None", func(p *corev1.Pod) { mountOf(p).MountPropagation = ptr.To(corev1.MountPropagationNone) }, unreached},
		{"a subPath", func(p *corev1.Pod) { mountOf(p).SubPath = "x" }, unreached},
		{"a subPathExpr", func(p *corev1.Pod) {
			runtimeOf(p).Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
			mountOf(p).SubPathExpr = "$(A)"
		}, unreached},
		{"Bidirectional", func(p *corev1.Pod) {
			mountOf(p).MountPropagation = ptr.To(corev1.MountPropagationBidirectional)
			runtimeOf(p).SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		}, unreached},
		{"a second container with it", func(p *corev1.Pod) {
			p.Spec.Containers[1].VolumeMounts = append(p.Spec.Containers[1].VolumeMounts, *mountOf(p))
		}, ""},
		{"a second container with it and no propagation", func(p *corev1.Pod) {
			m := *mountOf(p)
			m.MountPropagation = nil
			p.Spec.Containers[1].VolumeMounts = append(p.Spec.Containers[1].VolumeMounts, m)
		}, "container companion mounts the volume"},
		{"an init container with it and no propagation", func(p *corev1.Pod) {
			m := *mountOf(p)
			m.MountPropagation = nil
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "prepare", Image: "x", VolumeMounts: []corev1.VolumeMount{m}})
		}, "container prepare mounts the volume"},
		{"another volume inside it", func(p *corev1.Pod) {
			addVolume(p, "cache", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, "/mnt/datalayer/cache")
		}, "mounts another volume in or above the volume"},
		{"another volume above it", func(p *corev1.Pod) {
			addVolume(p, "cache", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, "/mnt/")
		}, "mounts another volume in or above the volume"},
		{"another volume beside it", func(p *corev1.Pod) {
			addVolume(p, "cache", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, "/mnt/datalayer-cache")
		}, ""},

		{"a user namespace", func(p *corev1.Pod) {
			p.Spec.HostUsers = ptr.To(false)
			p.Spec.InitContainers = nil
		}, "hostUsers: false"},
		{"hostUsers true", func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(true) }, ""},
		{"SELinux options of the Pod", func(p *corev1.Pod) { p.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0"} }, "seLinuxOptions"},
		{"SELinux options of a container", func(p *corev1.Pod) {
			runtimeOf(p).SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}
		}, "seLinuxOptions"},

		{"the node's processes", func(p *corev1.Pod) { p.Spec.HostPID = true }, "hostPID, hostIPC and hostNetwork"},
		{"the node's network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "hostPID, hostIPC and hostNetwork"},
		{"the node's IPC", func(p *corev1.Pod) { p.Spec.HostIPC = true }, "hostPID, hostIPC and hostNetwork"},
		{"a privileged container", func(p *corev1.Pod) { runtimeOf(p).SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)} }, "container runtime " + privileged},
		{"another privileged init container", func(p *corev1.Pod) { p.Spec.InitContainers[0].Name = "prepare" }, "container prepare " + privileged},
		{"the privileged init container as a sidecar", func(p *corev1.Pod) {
			p.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}, privileged},
		{"a container of the privileged one's name", func(p *corev1.Pod) {
			p.Spec.Containers[1].Name = "block-cloud-metadata"
			p.Spec.Containers[1].VolumeMounts = nil
			p.Spec.Containers[1].SecurityContext, p.Spec.InitContainers = p.Spec.InitContainers[0].SecurityContext, nil
		}, privileged},
		{"SYS_ADMIN", capability("SYS_ADMIN"), privileged},
		{"cap_sys_ptrace", capability("cap_sys_ptrace"), privileged},
		{"DAC_READ_SEARCH", capability("DAC_READ_SEARCH"), privileged},
		{"every capability", capability("ALL"), privileged},
		{"NET_ADMIN", capability("NET_ADMIN"), privileged},
		{"an init container before the privileged one", func(p *corev1.Pod) {
			p.Spec.InitContainers = append([]corev1.Container{{Name: "prepare", Image: "x"}}, p.Spec.InitContainers...)
		}, "init container prepare runs before block-cloud-metadata"},
		{"an init container behind it", func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "prepare", Image: "x"})
		}, ""},
		{"NET_BIND_SERVICE", capability("NET_BIND_SERVICE"), ""},
		{"a folder of the node", func(p *corev1.Pod) {
			addVolume(p, "host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, "/host")
		}, "container runtime mounts a folder of the node"},

		{"a folder of the node for the companion", func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}})
			p.Spec.Containers[1].VolumeMounts = append(p.Spec.Containers[1].VolumeMounts, corev1.VolumeMount{Name: "host", MountPath: "/x"})
		}, ""},

		{"a token in every container", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(true) }, "automountServiceAccountToken: true"},
		{"a token as the account's default would put it", func(p *corev1.Pod) {
			runtimeOf(p).VolumeMounts = append(runtimeOf(p).VolumeMounts, corev1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"})
		}, "container runtime " + hasToken},
		{"a token in an init container", func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{
				Name: "prepare", Image: "x", VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/t"}},
			})
		}, "container prepare " + hasToken},
		{"a Pod that leaves automount to its account", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, ""},
		{"shared processes with a token", func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = ptr.To(true) }, "shareProcessNamespace"},
		{"shared processes without one", func(p *corev1.Pod) {
			p.Spec.ShareProcessNamespace = ptr.To(true)
			p.Spec.Volumes, p.Spec.Containers = p.Spec.Volumes[:1], p.Spec.Containers[:1]
		}, ""},

		{"all annotations in a volume", func(p *corev1.Pod) { addVolume(p, "d", downward("metadata.annotations"), "/d") }, projects},
		{"the grant in a volume", func(p *corev1.Pod) { addVolume(p, "d", downward(grantKey), "/d") }, projects},
		{"all annotations in a projected volume", func(p *corev1.Pod) { addVolume(p, "d", projected("metadata.annotations"), "/d") }, projects},
		{"the grant in a projected volume", func(p *corev1.Pod) { addVolume(p, "d", projected(grantKey), "/d") }, projects},
		{"the grant in an environment", func(p *corev1.Pod) {
			runtimeOf(p).Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: field(grantKey)}}}
		}, projects},
		{"another annotation by its name", func(p *corev1.Pod) { addVolume(p, "d", downward("metadata.annotations['example.org/x']"), "/d") }, ""},
		{"the Pod's name in an environment", func(p *corev1.Pod) {
			runtimeOf(p).Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: field("metadata.name")}}, {Name: "B", Value: "c"}}
		}, ""},

		{"no seccomp profile", func(p *corev1.Pod) { p.Spec.SecurityContext = nil }, noSeccomp},
		{"seccomp profiles of the containers", func(p *corev1.Pod) {
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].SecurityContext = &corev1.SecurityContext{SeccompProfile: p.Spec.SecurityContext.SeccompProfile}
			}
			p.Spec.SecurityContext = nil
		}, ""},
		{"a container without the Pod's profile", func(p *corev1.Pod) {
			runtimeOf(p).SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
		}, noSeccomp},
	}
}

// A Pod with the label must be able to receive folders safely.
func podsWithTheLabel(t *testing.T, j *judge) {
	for _, s := range shapes() {
		t.Run(s.what, func(t *testing.T) {
			p := gatewayPod()
			s.change(p)
			verdict(t, j.create(t.Context(), j.admin, runtimes, p, true), s.says)
		})
	}
	t.Run("a sandboxed runtime class", func(t *testing.T) {
		// A class must exist before a Pod may name it.
		runtimeClasses(t, j, "gvisor-fast", "runc-fast")
		for class, says := range map[string]string{"gvisor-fast": "the runtime class gvisor-fast does not carry", "runc-fast": ""} {
			p := gatewayPod()
			p.Spec.RuntimeClassName = &class
			verdict(t, j.create(t.Context(), j.admin, runtimes, p, true), says)
		}
	})
	t.Run("in another namespace everything passes", func(t *testing.T) {
		p := gatewayPod()
		volumeOf(p).EmptyDir.Medium = ""
		verdict(t, j.create(t.Context(), j.admin, "elsewhere", p, true), "")
	})
	t.Run("the label on a Pod that is there already", func(t *testing.T) {
		p := pod("")
		verdict(t, j.patch(t.Context(), j.admin, j.put(t, runtimes, p, ""), labels(names.Label, "true")), notMemory)
	})
	t.Run("a Pod with the label goes on changing", func(t *testing.T) {
		verdict(t, j.patch(t.Context(), j.admin, j.put(t, runtimes, gatewayPod(), ""), labels("a", "b")), "")
	})
	debugging(t, j)
}

// What the operator's own check accepts, the policy accepts, and what it makes.
func operatorsTemplates(t *testing.T, j *judge) {
	for name, r := range map[string]operator.Runtime{
		"alone":            {Image: "sandbox"},
		"with a companion": {Image: "sandbox", Companion: &operator.Companion{Image: "companion"}},
	} {
		t.Run(name, func(t *testing.T) {
			template, err := operator.PodTemplate(r)
			ok(t, err)
			p := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
			p.Name = "made"
			verdict(t, j.create(t.Context(), j.admin, runtimes, p, true), "")
		})
	}
	t.Run("shapes", func(t *testing.T) {
		for _, s := range shapes() {
			p := gatewayPod()
			s.change(p)
			if s.says != "" && operator.CheckPod(operator.Rules{}, p) == nil {
				t.Errorf("%s: the policy refuses it, and the operator would hand it out", s.what)
			}
		}
	})
}

// Each rule of a policy is one that some request breaks: without the rule that
// request would pass, and its test be red.
func TestEveryRuleOfThePoliciesRefusesSomething(t *testing.T) {
	said := map[string][]string{"grants": {}, "pods": {"the runtime class "}}
	for _, r := range requests() {
		said["grants"] = append(said["grants"], r.says)
	}
	for _, s := range shapes() {
		said["pods"] = append(said["pods"], s.says)
	}
	r := must(t, least)
	for suffix, texts := range said {
		policy := named[*admissionv1.ValidatingAdmissionPolicy](t, r.objects, fullname+"-"+suffix)
		for i, v := range policy.Spec.Validations {
			if !slices.ContainsFunc(texts, func(says string) bool { return saidBy(v, says) }) {
				t.Errorf("no request breaks rule %d of %s: %s", i, policy.Name, v.Message+v.MessageExpression)
			}
		}
	}
}

// saidBy says whether a text is what a rule says. Beside the names of a request, its
// message has the literals of an expression.
func saidBy(v admissionv1.Validation, says string) bool {
	if says == "" {
		return false
	}
	if v.Message != "" {
		return strings.Contains(v.Message, says)
	}
	for i, literal := range strings.Split(v.MessageExpression, `"`) {
		if i%2 == 0 {
			continue // between literals
		}
		words := strings.Fields(says)
		for n := range min(3, len(words)) { // "container NAME" comes first
			if tail := strings.Join(words[n:], " "); len(tail) > 8 && strings.Contains(literal, tail) {
				return true
			}
		}
		if trimmed := strings.TrimSpace(literal); len(trimmed) > 8 && strings.Contains(says, trimmed) {
			return true
		}
	}
	return false
}

func debugging(t *testing.T, j *judge) {
	gatewayMount := *mountOf(gatewayPod())
	closed := gatewayMount
	closed.MountPropagation = nil
	for name, test := range map[string]struct {
		container corev1.EphemeralContainerCommon
		says      string
	}{
		"a debugging container":                {corev1.EphemeralContainerCommon{}, ""},
		"one that sees the folders":            {corev1.EphemeralContainerCommon{VolumeMounts: []corev1.VolumeMount{gatewayMount}}, ""},
		"one that would keep the folders":      {corev1.EphemeralContainerCommon{VolumeMounts: []corev1.VolumeMount{closed}}, unreached},
		"one that is privileged":               {corev1.EphemeralContainerCommon{SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}, privileged},
		"one that reads the companion's token": {corev1.EphemeralContainerCommon{VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/t"}}}, hasToken},
	} {
		t.Run(name, func(t *testing.T) {
			made := j.put(t, runtimes, gatewayPod(), "")
			test.container.Name, test.container.Image, test.container.TerminationMessagePolicy = "debug", "x", corev1.TerminationMessageReadFile
			body, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": []any{corev1.EphemeralContainer{EphemeralContainerCommon: test.container}}}})
			ok(t, err)
			_, err = j.admin.CoreV1().Pods(runtimes).Patch(t.Context(), made.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "ephemeralcontainers")
			verdict(t, err, test.says)
		})
	}
}
