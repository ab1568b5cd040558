package plan

import "github.com/datalayer/node-mounts/grant"

// Policy is the node's configuration as far as plans depend on it.
type Policy struct {
	Node string
	// MaxPerPod and MaxPerNode cap how many mounts may stand.
	MaxPerPod, MaxPerNode int
	// VolumeName is the name of the gateway volume in a Pod.
	VolumeName string
	// SandboxedRuntimes are prefixes of runtime class names whose containers
	// run behind a kernel of their own (gVisor, Kata).
	SandboxedRuntimes []string
	// SELinux: the node has it enabled.
	SELinux bool
	// Credentials: the agent may read the Secrets that grants name.
	Credentials bool
	// Serves are the kinds this agent can deliver.
	Serves map[grant.Kind]bool
}
