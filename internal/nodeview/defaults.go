package nodeview

// What an agent has unless its deployment says otherwise. The agent has them from
// here, and so has who looks for what an agent does not tell.
const (
	// DefaultNamespace is the one whose Pods are served.
	DefaultNamespace = "datalayer-runtimes"
	// DefaultRoot is the agent's own folder on the node.
	DefaultRoot = "/var/lib/datalayer/node-mount-gateway"
	// DefaultSharedRoot is where the agent has the shared claim.
	DefaultSharedRoot = "/mnt/shared-fs"
)
