// Package nodeview is the document in which an agent describes its node: what it
// answers at /gateway, and what the command line asks every node for. It names
// folders and Secrets, and no credential.
package nodeview

import (
	"time"

	"github.com/datalayer/node-mounts/grant"
)

// Node is one node as its agent sees it.
type Node struct {
	Node      string `json:"node"`
	Namespace string `json:"namespace,omitempty"` // whose Pods are served; "" is all
	Version   string `json:"version"`
	Ready     bool   `json:"ready"`
	Reason    string `json:"reason,omitempty"` // why it is not

	MountPath   string       `json:"mount_path"`
	VolumeName  string       `json:"volume_name"`
	Root        string       `json:"root"`
	KubeletDir  string       `json:"kubelet_dir"`
	Serves      []grant.Kind `json:"serves"`
	Credentials bool         `json:"credentials"` // Secrets that grants name are read

	Facts Facts `json:"facts"`
	// Keeper is nil where no kind is served whose filesystem is a process.
	Keeper *Keeper `json:"keeper,omitempty"`
	// LostThreads wait in calls to storage that does not answer.
	LostThreads int `json:"lost_threads"`
	// Leaked are the mounts that should be gone and are not, now.
	Leaked int   `json:"leaked"`
	Pods   []Pod `json:"pods"`
}

// Keeper is what runs the filesystems that are processes.
type Keeper struct {
	There    bool   `json:"there"`
	Reason   string `json:"reason,omitempty"` // why it is not
	Version  string `json:"version,omitempty"`
	Instance string `json:"instance,omitempty"` // another one after each start
	Children int    `json:"children"`           // processes that run
}

// Propagation is what becomes of a mount made beneath a path.
type Propagation string

// Propagations.
const (
	Shared  Propagation = "shared"  // it reaches the node and its Pods
	Slave   Propagation = "slave"   // it stays where it is made; what the node mounts arrives
	Private Propagation = "private" // it stays where it is made
	Unknown Propagation = "unknown"
)

// Facts are what the agent found out about its node when it was asked.
type Facts struct {
	Kernel       string `json:"kernel"`        // release, such as 6.8.0-1057-aws
	MountSetattr bool   `json:"mount_setattr"` // probed, not guessed from the release
	// KubeletPropagation and RootPropagation are of the two host paths.
	KubeletPropagation Propagation `json:"kubelet_propagation"`
	RootPropagation    Propagation `json:"root_propagation"`
	// KubeletFound: kubelet keeps its Pods in the folder the agent was told.
	KubeletFound bool  `json:"kubelet_found"`
	SELinux      bool  `json:"selinux"`
	Claim        Claim `json:"claim"`
}

// Sights.
const (
	SightNode = "node"
	SightSelf = "self"
)

// Probe is what `node-mounts-agent probe` prints: the facts of a node without an
// agent, and what keeps it from serving. No faults: it can.
type Probe struct {
	Facts
	// Sight is whose mount table the host paths were looked up in: SightNode, or
	// SightSelf where the node's first process could not be looked at.
	Sight  string   `json:"sight"`
	Faults []string `json:"faults"`
}

// Backing is what keeps a filesystem answering.
type Backing string

// Backings.
const (
	// BackedByKernel: it goes on when the Pod that mounted it is replaced.
	BackedByKernel Backing = "kernel"
	// BackedByProcess: a process answers for it (FUSE, or a tunnel on loopback). It may
	// end with the Pod that runs that process.
	BackedByProcess Backing = "process"
	BackingUnknown  Backing = "unknown"
)

// Claim is the shared filesystem claim on the node.
type Claim struct {
	Path       string  `json:"path"`
	Mounted    bool    `json:"mounted"`              // a filesystem of its own stands there
	Filesystem string  `json:"filesystem,omitempty"` // nfs4, ext4, fuse.juicefs, …
	Backing    Backing `json:"backing"`
	Answers    bool    `json:"answers"` // within the bound
}

// Pod is a Pod that has something on the node.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Published bool   `json:"published"`
	// Tree is the filesystem type of the Pod's tree, "" where it has none.
	Tree   string        `json:"tree,omitempty"`
	Mounts []Mount       `json:"mounts"`
	Held   []Held        `json:"held,omitempty"`
	Answer *grant.Status `json:"answer,omitempty"`
	Phase  string        `json:"phase,omitempty"`
	// Leaked are the Pod's mounts that should be gone and are not.
	Leaked int `json:"leaked"`
}

// Mount is one grant.
type Mount struct {
	Target    string     `json:"target"`
	Kind      grant.Kind `json:"kind"`
	Source    string     `json:"source"`
	Mode      grant.Mode `json:"mode"`
	AllowExec bool       `json:"allow_exec"`
	Revision  string     `json:"revision,omitempty"`
	Secret    string     `json:"secret,omitempty"`
	State     string     `json:"state"` // granting, mounted, revoking, or StateFetching
	Flags     string     `json:"flags,omitempty"`
	Progress  *Progress  `json:"progress,omitempty"`
}

// StateFetching is the state of a grant whose content is being made.
const StateFetching = "fetching"

// Progress is how far a content has come.
type Progress struct {
	Phase string    `json:"phase"` // waiting, resolving, proving, fetching, measuring, writing or publishing
	Bytes int64     `json:"bytes"` // on the node's disk so far
	Since time.Time `json:"since"`
}

// Held is a mount that was taken away and that a process still has.
type Held struct {
	Target string `json:"target"`
	Why    string `json:"why"`
}
