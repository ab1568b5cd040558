package grant

import "strings"

const (
	// WholeSet is the key under which a refusal of the whole set is reported.
	WholeSet = "*"

	// MaxEntries is the number of entries a set may have. A longer set is refused
	// whole, with CodeTooManyMounts.
	MaxEntries = 1000

	// MaxAnnotationBytes is the size of the largest annotation that is read or
	// written. The Kubernetes API allows this much for all annotations of an
	// object together.
	MaxAnnotationBytes = 256 << 10

	// DefaultPrefix is the domain that the annotations and the label live under
	// unless a deployment chooses its own.
	DefaultPrefix = "runtime-pools.datalayer.io"

	// DefaultVolumeName is the name of the gateway volume in a Pod, unless a
	// deployment chooses its own.
	DefaultVolumeName = "node-mount-gateway"

	// DefaultMountPath is where a Pod's containers mount that volume, unless a
	// deployment chooses its own.
	DefaultMountPath = "/mnt/datalayer"
)

// DefaultSandboxedRuntimes are the runtime classes whose containers do not share
// the node's kernel and see none of its mounts, by prefix of their names.
func DefaultSandboxedRuntimes() []string { return []string{"gvisor", "runsc", "kata"} }

// Names are the keys that a deployment uses on its Pods.
type Names struct {
	Mounts string // annotation: the grant, written by the operator
	Ready  string // annotation: the answer, written by the agent
	Label  string // label: the Pod carries the gateway volume
}

// NamesFor returns the keys under a prefix such as "example.org"; a slash at its
// end does not matter, and an empty prefix means DefaultPrefix.
func NamesFor(prefix string) Names {
	prefix = strings.TrimRight(prefix, "/")
	if prefix == "" {
		prefix = DefaultPrefix
	}
	base := prefix + "/node-mount-gateway"
	return Names{Mounts: base + "-mounts", Ready: base + "-ready", Label: base}
}
