package operator

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
)

// Names of containers, unless a deployment chooses its own.
const (
	DefaultCompanion = "companion"
	DefaultBlocker   = "block-cloud-metadata"
)

// volumeLimit is what the gateway volume may hold at most: its inodes are mount
// points, and nothing else belongs there.
const volumeLimit = "1Mi"

// Rules are what a deployment's Pods are checked against. Zero values are the
// defaults of the agent.
type Rules struct {
	// Names are the keys of the annotations and the label.
	Names grant.Names
	// Volume is the name of the gateway volume.
	Volume string
	// SandboxedRuntimes are prefixes of runtime class names to refuse; nil means
	// grant.DefaultSandboxedRuntimes.
	SandboxedRuntimes []string
	// Trusted are the names of containers that run no user code and may hold a
	// token; nil means DefaultCompanion. Every other container runs user code.
	Trusted []string
	// Blocker is the name of the init container that blocks the metadata service,
	// the only one that may be privileged; empty means DefaultBlocker.
	Blocker string
}

func (r Rules) withDefaults() Rules {
	if r.Names == (grant.Names{}) {
		r.Names = grant.NamesFor("")
	}
	if r.Volume == "" {
		r.Volume = grant.DefaultVolumeName
	}
	if r.SandboxedRuntimes == nil {
		r.SandboxedRuntimes = grant.DefaultSandboxedRuntimes()
	}
	if r.Trusted == nil {
		r.Trusted = []string{DefaultCompanion}
	}
	if r.Blocker == "" {
		r.Blocker = DefaultBlocker
	}
	return r
}

// CheckTemplate says whether Pods of the template can be granted folders, and
// whether user code in them can neither grant itself any nor get past a grant.
// The error is a [*TemplateError] with every problem there is.
//
// It sees what the template says and no more. It cannot see
//
//   - whether a Secret that user code mounts or has in its environment holds a
//     service account's token, or what a CSI volume hands out;
//   - what a trusted container does with its token, and what the image of one
//     does at all;
//   - what only the node knows: SELinux, an old kernel, kubelet's propagation.
func CheckTemplate(rules Rules, template *corev1.PodTemplateSpec) error {
	c := newChecker(rules, template.ObjectMeta, template.Spec)
	c.answer()
	c.granted()
	c.check()
	return c.err()
}

// CheckPod is CheckTemplate for a Pod that exists: the last look before it is
// handed out. The Pod may have a grant and an answer.
func CheckPod(rules Rules, pod *corev1.Pod) error {
	c := newChecker(rules, pod.ObjectMeta, pod.Spec)
	c.check()
	return c.err()
}

// checker collects the problems of one Pod.
type checker struct {
	rules      Rules
	meta       metav1.ObjectMeta
	spec       corev1.PodSpec
	volumes    map[string]corev1.Volume
	containers []container
	reasons    map[Reason]ReasonInfo
	problems   []Problem
}

func newChecker(rules Rules, meta metav1.ObjectMeta, spec corev1.PodSpec) *checker {
	c := &checker{
		rules: rules.withDefaults(), meta: meta, spec: spec,
		volumes: make(map[string]corev1.Volume, len(spec.Volumes)), reasons: map[Reason]ReasonInfo{},
	}
	for _, v := range spec.Volumes {
		c.volumes[v.Name] = v
	}
	for _, r := range Reasons() {
		c.reasons[r.Reason] = r
	}
	c.containers = c.list()
	return c
}

// add notes a problem: what is there, in the format's words.
func (c *checker) add(reason Reason, field, format string, args ...any) {
	info := c.reasons[reason]
	c.problems = append(c.problems, Problem{
		Field: field, Reason: reason, Message: fmt.Sprintf(format, args...) + ": " + info.Why, Fix: info.Fix,
	})
}

func (c *checker) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	return &TemplateError{Problems: c.problems}
}

func (c *checker) check() {
	c.metadata()
	c.node()
	c.namespaces()
	c.tokens()
	c.duplicates()
	c.gatewayVolume()
	c.projections()
	for _, k := range c.containers {
		c.container(k)
	}
	c.order()
}

func (c *checker) answer() {
	if _, ok := c.meta.Annotations[c.rules.Names.Ready]; ok {
		c.add(ReasonAnswered, keyed("metadata.annotations", c.rules.Names.Ready), "the template carries an answer")
	}
}

func (c *checker) metadata() {
	if v, ok := c.meta.Labels[c.rules.Names.Label]; v != "true" {
		what := "the label is missing"
		if ok {
			what = fmt.Sprintf("the label is %q", v)
		}
		c.add(ReasonLabel, keyed("metadata.labels", c.rules.Names.Label), "%s", what)
	}
	if _, ok := c.meta.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		c.add(ReasonMirror, keyed("metadata.annotations", corev1.MirrorPodAnnotationKey), "the Pod is a mirror")
	}
}

// node is about what keeps the node's mounts from containers, or changes them.
func (c *checker) node() {
	if c.spec.HostUsers != nil && !*c.spec.HostUsers {
		c.add(ReasonUserNamespace, "spec.hostUsers", "the Pod has a user namespace of its own")
	}
	if class := c.spec.RuntimeClassName; class != nil {
		for _, prefix := range c.rules.SandboxedRuntimes {
			if prefix != "" && strings.HasPrefix(*class, prefix) {
				c.add(ReasonSandboxedRuntime, "spec.runtimeClassName", "the runtime class is %q", *class)
				break
			}
		}
	}
	if c.spec.SecurityContext != nil && c.spec.SecurityContext.SELinuxOptions != nil {
		c.add(ReasonSELinux, "spec.securityContext.seLinuxOptions", "the Pod has an SELinux context of its own")
	}
}

func (c *checker) namespaces() {
	for _, host := range []struct {
		field string
		on    bool
	}{
		{"hostNetwork", c.spec.HostNetwork},
		{"hostPID", c.spec.HostPID},
		{"hostIPC", c.spec.HostIPC},
	} {
		if host.on {
			c.add(ReasonHostNamespace, "spec."+host.field, "the Pod is in a namespace of the node")
		}
	}
	// Two containers of one uid can ptrace each other once they see each other, and
	// /proc/<pid>/root leads past the other's mount namespace. Without a trusted
	// container there is nothing to reach.
	trusted := slices.ContainsFunc(c.containers, func(k container) bool { return k.trusted && k.stays() })
	if shared := c.spec.ShareProcessNamespace; shared != nil && *shared && trusted {
		c.add(ReasonSharedProcesses, "spec.shareProcessNamespace", "the containers see each other's processes")
	}
}

func (c *checker) tokens() {
	// Unset means what the service account says, and that means true unless it
	// says otherwise: neither is for this Pod to rely on.
	if auto := c.spec.AutomountServiceAccountToken; auto == nil || *auto {
		c.add(ReasonTokenAutomounted, "spec.automountServiceAccountToken", "it is not false")
	}
}

func (c *checker) gatewayVolume() {
	i := slices.IndexFunc(c.spec.Volumes, func(v corev1.Volume) bool { return v.Name == c.rules.Volume })
	if i < 0 {
		c.add(ReasonVolumeMissing, "spec.volumes", "there is no volume %q", c.rules.Volume)
		return
	}
	field := fmt.Sprintf("spec.volumes[%d]", i)
	dir := c.spec.Volumes[i].EmptyDir
	if dir == nil {
		c.add(ReasonVolumeMissing, field, "the volume %q is no emptyDir", c.rules.Volume)
		return
	}
	if dir.Medium != corev1.StorageMediumMemory {
		c.add(ReasonVolumeOnDisk, field+".emptyDir.medium", "the volume %q is not memory-backed", c.rules.Volume)
	}
	// kubelet takes a limit of zero for none.
	switch limit := dir.SizeLimit; {
	case limit == nil || limit.Sign() <= 0:
		c.add(ReasonVolumeSize, field+".emptyDir.sizeLimit", "the volume %q has no size limit", c.rules.Volume)
	case limit.Cmp(resource.MustParse(volumeLimit)) > 0:
		c.add(ReasonVolumeSize, field+".emptyDir.sizeLimit", "the volume %q may hold %s", c.rules.Volume, limit)
	}
	// A container that reaches it in another way than it should has a problem of
	// its own; this one is for a Pod in which nobody tries.
	if !slices.ContainsFunc(c.containers, func(k container) bool {
		return k.section == sectionContainers && slices.ContainsFunc(k.VolumeMounts, c.ofGateway)
	}) {
		c.add(ReasonNotMounted, "spec.containers", "no container mounts the volume %q", c.rules.Volume)
	}
}

func (c *checker) ofGateway(m corev1.VolumeMount) bool { return m.Name == c.rules.Volume }

// projections is about volumes that hold the Pod's annotations.
func (c *checker) projections() {
	for i, v := range c.spec.Volumes {
		field := fmt.Sprintf("spec.volumes[%d]", i)
		if v.DownwardAPI != nil {
			c.downward(field+".downwardAPI", v.DownwardAPI.Items)
		}
		if v.Projected == nil {
			continue
		}
		for j, source := range v.Projected.Sources {
			if source.DownwardAPI != nil {
				c.downward(fmt.Sprintf("%s.projected.sources[%d].downwardAPI", field, j), source.DownwardAPI.Items)
			}
		}
	}
}

func (c *checker) downward(field string, items []corev1.DownwardAPIVolumeFile) {
	for i, item := range items {
		if item.FieldRef != nil && c.projectsGrant(item.FieldRef.FieldPath) {
			c.add(ReasonAnnotationInReach, fmt.Sprintf("%s.items[%d].fieldRef.fieldPath", field, i), "the volume shows %s", item.FieldRef.FieldPath)
		}
	}
}

// projectsGrant tells whether a field path shows one of the annotations, or all.
func (c *checker) projectsGrant(path string) bool {
	rest, ok := strings.CutPrefix(path, "metadata.annotations")
	if !ok {
		return false
	}
	key := strings.TrimSuffix(strings.TrimPrefix(rest, "['"), "']")
	return key == "" || key == c.rules.Names.Mounts || key == c.rules.Names.Ready
}

// keyed is the field of one key in a map.
func keyed(field, key string) string { return field + "['" + key + "']" }
