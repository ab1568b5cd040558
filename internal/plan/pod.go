package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Pod is what the agent knows of a Pod: facts read from the API and nothing
// decided yet.
type Pod struct {
	UID, Namespace, Name string
	ResourceVersion      string
	Node                 string // spec.nodeName
	Finished             bool   // phase Succeeded or Failed
	// Terminating: the Pod is being deleted. Grace is how long it has from then
	// on, as long as the API says (metadata.deletionGracePeriodSeconds). When that
	// ends is the API server's to say, by a clock that is not this node's.
	Terminating bool
	Grace       time.Duration
	// Grant and Ready are the two annotations, nil where absent.
	Grant, Ready *string

	Volume       *Volume  // the gateway volume, nil when the Pod has none
	Uses         []Use    // every volumeMount of it, in every container
	OtherPaths   []string // where the Pod's containers mount their other volumes
	RuntimeClass string
	HostUsers    bool // false: the Pod has a user namespace of its own
	Mirror       bool // a static Pod's mirror
}

// Volume is the gateway volume as the Pod's spec declares it.
type Volume struct {
	// Memory: emptyDir with medium Memory. Anything else is deleted recursively
	// by kubelet when the Pod goes, through whatever is mounted in it.
	Memory bool
}

// Use is one container's mount of the gateway volume.
type Use struct {
	Container string
	// ID is the running container's id without the runtime's scheme, "" while
	// it is not running. A restarted container has another one.
	ID              string
	Init            bool // an init container (a sidecar included)
	Path            string
	SubPath         bool
	HostToContainer bool // mountPropagation HostToContainer or Bidirectional
}

// Unsupported says why the Pod can receive no mounts, in a sentence for the
// person who wrote it, or "" when it can. The check is on the spec alone; what
// only the node knows is checked when the volume is opened.
func (p Pod) Unsupported(pol Policy) string {
	switch {
	case p.Mirror:
		return "a static Pod's mirror cannot receive mounts: the node's agent does not own its volumes"
	case p.Volume == nil:
		return fmt.Sprintf("the Pod has no emptyDir volume named %q: create it from the pool's template", pol.VolumeName)
	case !p.Volume.Memory:
		return fmt.Sprintf("the volume %q is not memory-backed (emptyDir.medium: Memory): kubelet would delete through the mounts when the Pod goes", pol.VolumeName)
	case !p.HostUsers:
		return "the Pod runs in a user namespace of its own (hostUsers: false), where mounts would have the wrong owners"
	case slices.ContainsFunc(pol.SandboxedRuntimes, func(s string) bool { return s != "" && strings.HasPrefix(p.RuntimeClass, s) }):
		return fmt.Sprintf("the runtime class %q does not carry the node's mounts into a running container", p.RuntimeClass)
	case pol.SELinux:
		return "SELinux is enabled on this node: the container runtime would relabel the folders mounted into the volume"
	}
	return unsupportedUses(p.Uses, pol.VolumeName)
}

func unsupportedUses(uses []Use, volume string) string {
	propagates := false
	for _, u := range uses {
		switch {
		case u.SubPath:
			return fmt.Sprintf("container %q mounts the volume %q with a subPath, which no later mount reaches", u.Container, volume)
		case u.HostToContainer:
			propagates = propagates || !u.Init
		default:
			return fmt.Sprintf("container %q mounts the volume %q without mountPropagation: HostToContainer, so no later mount reaches it", u.Container, volume)
		}
	}
	if !propagates {
		return fmt.Sprintf("no container mounts the volume %q with mountPropagation: HostToContainer", volume)
	}
	return ""
}

// Ref names one Pod. Namespace and Name are empty where only a tree was found.
type Ref struct {
	UID, Namespace, Name string
}

// Ref names p.
func (p Pod) Ref() Ref { return Ref{UID: p.UID, Namespace: p.Namespace, Name: p.Name} }
