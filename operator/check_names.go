package operator

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/grant"
)

// duplicates finds names that two volumes or two containers have. The API refuses
// them; here they would hide one behind the other, and a container is trusted by its
// name.
func (c *checker) duplicates() {
	seen := map[string]bool{}
	for i, v := range c.spec.Volumes {
		if seen[v.Name] {
			c.add(ReasonDuplicateName, fmt.Sprintf("spec.volumes[%d].name", i), "another volume is named %q too", v.Name)
		}
		seen[v.Name] = true
	}
	clear(seen)
	for _, k := range c.containers {
		if k.section == sectionEphemeral { // which have a rule of their own
			continue
		}
		if seen[k.Name] {
			c.add(ReasonDuplicateName, k.field+".name", "another container is named %q too", k.Name)
		}
		seen[k.Name] = true
	}
}

// unknownVolumes finds mounts of volumes that the Pod has not. The gateway volume has
// a rule of its own.
func (c *checker) unknownVolumes(k container) {
	for i, m := range k.VolumeMounts {
		if _, there := c.volumes[m.Name]; !there && !c.ofGateway(m) {
			c.add(ReasonUnknownVolume, fmt.Sprintf("%s.volumeMounts[%d].name", k.field, i), "%q mounts the volume %q, which is not there", k.Name, m.Name)
		}
	}
}

// mountPath is about where a container has the gateway volume.
func (c *checker) mountPath(k container, field string, m corev1.VolumeMount) {
	// What the runtimes mount themselves, and would be hidden, or hide the volume.
	taken := func(folder string) bool { return within(m.MountPath, folder) }
	// Without what is in these an image does not start.
	whole := []string{"/", "/bin", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var"}
	switch {
	case !path.IsAbs(m.MountPath) || path.Clean(m.MountPath) != m.MountPath:
		c.add(ReasonMountPath, field, "%q mounts the volume at %q, which is written with more than its way from the root", k.Name, m.MountPath)
	case slices.Contains(whole, m.MountPath), slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, taken):
		c.add(ReasonMountPath, field, "%q mounts the volume at %s", k.Name, m.MountPath)
	}
}

// granted is about a grant that every Pod of the template is born with.
func (c *checker) granted() {
	text, there := c.meta.Annotations[c.rules.Names.Mounts]
	if !there {
		return
	}
	field, set := keyed("metadata.annotations", c.rules.Names.Mounts), grant.Decode(text)
	if set.Whole != nil {
		c.add(ReasonGrantInvalid, field, "the grant cannot be read (%s)", set.Whole.Message)
	}
	for _, r := range set.Refused {
		c.add(ReasonGrantInvalid, field, "the grant's entry %q is refused (%s)", r.Key, r.Message)
	}
}
