package operator

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The lists of containers that a Pod's spec has.
const (
	sectionInit       = "initContainers"
	sectionContainers = "containers"
	sectionEphemeral  = "ephemeralContainers"
)

// container is one container of any list.
type container struct {
	corev1.Container
	section string
	field   string // its path
	// trusted: it runs no user code. blocker: it is the init container that blocks
	// the metadata service, which runs none either and has ended before any runs.
	trusted, blocker bool
}

// stays tells whether it runs beside the Pod's other containers.
func (k container) stays() bool { return k.section != sectionInit || k.restarts() }

// restarts tells whether it is a sidecar: an init container that does not end.
func (k container) restarts() bool {
	return k.RestartPolicy != nil && *k.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// userCode tells whether what runs in it is the user's.
func (k container) userCode() bool { return !k.trusted && !k.blocker }

func (c *checker) list() []container {
	var all []container
	add := func(section string, i int, k corev1.Container) {
		all = append(all, container{
			Container: k, section: section, field: fmt.Sprintf("spec.%s[%d]", section, i),
			trusted: section != sectionEphemeral && slices.Contains(c.rules.Trusted, k.Name),
			// A restart policy of its own makes it run longer, or again, whichever
			// it is: the exception is for a container that runs once, and first.
			blocker: section == sectionInit && k.Name == c.rules.Blocker && k.RestartPolicy == nil,
		})
	}
	for i, k := range c.spec.InitContainers {
		add(sectionInit, i, k)
	}
	for i, k := range c.spec.Containers {
		add(sectionContainers, i, k)
	}
	for i, k := range c.spec.EphemeralContainers {
		add(sectionEphemeral, i, corev1.Container(k.EphemeralContainerCommon))
	}
	return all
}

func (c *checker) container(k container) {
	if k.section == sectionEphemeral {
		c.add(ReasonEphemeral, k.field, "%q is an ephemeral container", k.Name)
	}
	c.unknownVolumes(k)
	c.gatewayMounts(k)
	c.environment(k)
	if !k.blocker {
		c.powers(k)
	}
	if k.userCode() {
		c.reach(k)
	}
}

// gatewayMounts is about how a container mounts the gateway volume.
func (c *checker) gatewayMounts(k container) {
	for i, m := range k.VolumeMounts {
		if !c.ofGateway(m) {
			continue
		}
		field := fmt.Sprintf("%s.volumeMounts[%d]", k.field, i)
		// Bidirectional would carry mounts as well, and those of the container out to
		// the node.
		if m.MountPropagation == nil || *m.MountPropagation != corev1.MountPropagationHostToContainer {
			c.add(ReasonNoPropagation, field+".mountPropagation", "%q mounts the volume without HostToContainer", k.Name)
		}
		if m.SubPath != "" {
			c.add(ReasonSubPath, field+".subPath", "%q mounts a sub-path of the volume", k.Name)
		}
		if m.SubPathExpr != "" {
			c.add(ReasonSubPath, field+".subPathExpr", "%q mounts a sub-path of the volume", k.Name)
		}
		c.mountPath(k, field+".mountPath", m)
		c.overlaps(k, m)
	}
}

// overlaps finds other volumes at, above or beneath the mount m. The kernel lets
// a folder be removed or renamed that is a mount point in another mount namespace
// only, and the mount goes with it: so a volume above is one that another
// container of the Pod can pull from under the grants. One beneath is hidden by
// the publication, and leaves a folder in the gateway volume.
func (c *checker) overlaps(k container, m corev1.VolumeMount) {
	for i, other := range k.VolumeMounts {
		if !c.ofGateway(other) && (within(other.MountPath, m.MountPath) || within(m.MountPath, other.MountPath)) {
			c.add(ReasonOverlap, fmt.Sprintf("%s.volumeMounts[%d].mountPath", k.field, i), "%q mounts the volume %q at %s and the gateway volume at %s",
				k.Name, other.Name, other.MountPath, m.MountPath)
		}
	}
	for i, device := range k.VolumeDevices {
		if within(device.DevicePath, m.MountPath) {
			c.add(ReasonOverlap, fmt.Sprintf("%s.volumeDevices[%d].devicePath", k.field, i), "%q has the device %q in the gateway volume", k.Name, device.Name)
		}
	}
}

// within tells whether the path is the folder or lies in it. A relative path is
// one from the container's root, as the runtimes take it.
func within(file, folder string) bool {
	file, folder = path.Clean("/"+file), path.Clean("/"+folder)
	return file == folder || folder == "/" || strings.HasPrefix(file, folder+"/")
}

func (c *checker) environment(k container) {
	for i, e := range k.Env {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && c.projectsGrant(e.ValueFrom.FieldRef.FieldPath) {
			c.add(ReasonAnnotationInReach, fmt.Sprintf("%s.env[%d].valueFrom.fieldRef.fieldPath", k.field, i), "%q has %s in its environment",
				k.Name, e.ValueFrom.FieldRef.FieldPath)
		}
	}
}

// powers is about what the kernel lets a container do.
func (c *checker) powers(k container) {
	var profile *corev1.SeccompProfile
	if c.spec.SecurityContext != nil {
		profile = c.spec.SecurityContext.SeccompProfile
	}
	field := k.field + ".securityContext"
	if own := k.SecurityContext; own != nil {
		if own.Privileged != nil && *own.Privileged {
			c.add(ReasonPrivileged, field+".privileged", "%q is privileged", k.Name)
		}
		if own.Capabilities != nil {
			for i, added := range own.Capabilities.Add {
				if what := power(added); what != "" {
					c.add(ReasonCapability, fmt.Sprintf("%s.capabilities.add[%d]", field, i), "%q has %s (%s)", k.Name, added, what)
				}
			}
		}
		if own.SELinuxOptions != nil {
			c.add(ReasonSELinux, field+".seLinuxOptions", "%q has an SELinux context of its own", k.Name)
		}
		if own.SeccompProfile != nil {
			profile = own.SeccompProfile
		}
	}
	// A Localhost profile is the deployment's own choice of a filter.
	if profile == nil || profile.Type != corev1.SeccompProfileTypeRuntimeDefault && profile.Type != corev1.SeccompProfileTypeLocalhost {
		c.add(ReasonSeccomp, field+".seccompProfile", "%q runs without a seccomp filter", k.Name)
	}
}

// power says what a capability is refused for, "" where it is not. Those that
// the runtimes give to every container are not here.
func power(capability corev1.Capability) string {
	switch strings.TrimPrefix(strings.ToUpper(string(capability)), "CAP_") {
	case "ALL":
		return "all of them"
	case "SYS_ADMIN":
		return "it mounts, and makes a read-only grant writable"
	case "SYS_PTRACE":
		return "it reads the memory and the files of other processes"
	case "DAC_READ_SEARCH":
		// open_by_handle_at(2) takes a handle on any file of the filesystem, and a
		// grant is enough to name the filesystem.
		return "it opens any file of the filesystem that a granted folder is on"
	case "SYS_MODULE", "BPF", "PERFMON", "SYS_RAWIO", "SYS_BOOT":
		return "it is power over the node's kernel"
	case "NET_ADMIN":
		return "it takes the block of the metadata service away"
	}
	return ""
}

// reach is about what a container's user code can read.
func (c *checker) reach(k container) {
	for i, m := range k.VolumeMounts {
		field := fmt.Sprintf("%s.volumeMounts[%d]", k.field, i)
		v := c.volumes[m.Name]
		if v.HostPath != nil {
			c.add(ReasonHostPath, field, "%q mounts the node's %s", k.Name, v.HostPath.Path)
		}
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, credential) {
			c.add(ReasonTokenInReach, field, "%q mounts the volume %q, which holds a credential for the API", k.Name, m.Name)
		}
	}
}

// credential tells whether a projected source is one that the API server takes:
// a token, or a certificate in the Pod's name.
func credential(s corev1.VolumeProjection) bool {
	return s.ServiceAccountToken != nil || s.PodCertificate != nil
}

// order sees to it that nothing of the user's runs before the metadata service
// is blocked, in a Pod that blocks it.
func (c *checker) order() {
	blocker := slices.IndexFunc(c.containers, func(k container) bool { return k.blocker })
	for i, k := range c.containers {
		if i < blocker && k.userCode() {
			c.add(ReasonMetadataOpen, k.field, "%q runs before %q", k.Name, c.rules.Blocker)
		}
	}
}
