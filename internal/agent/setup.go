package agent

import (
	"cmp"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
)

// Defaults of a node's configuration.
const (
	DefaultMaxPerPod  = 32
	DefaultMaxPerNode = 512
	// DefaultBound is how long the claim may take to answer.
	DefaultBound = 5 * time.Second
)

// DefaultPolicy is the policy of a node that nobody has configured. It serves
// what is bound from the shared claim.
func DefaultPolicy(node string) plan.Policy {
	pol := plan.Policy{
		Node: node, MaxPerPod: DefaultMaxPerPod, MaxPerNode: DefaultMaxPerNode,
		VolumeName: grant.DefaultVolumeName, SandboxedRuntimes: grant.DefaultSandboxedRuntimes(),
		Serves: make(map[grant.Kind]bool),
	}
	for _, k := range grant.Kinds() {
		pol.Serves[k.Kind] = k.Delivery == grant.DeliveryBind
	}
	return pol
}

// Claim is the shared filesystem claim on this node.
type Claim struct {
	Path  string
	Owner beneath.Owner // of the folders that are made
	Bound time.Duration // how long it may take to answer
}

// deliveries are the ways to mount that this agent has. A new delivery is a line
// here; a new kind that is delivered like another is none.
func (a *Agent) deliveries(claim Claim) map[grant.Delivery]delivery.Delivery {
	return map[grant.Delivery]delivery.Delivery{
		grant.DeliveryBind: &delivery.Bind{
			Table:  a.Table,
			Proof:  &proof.Storage{Table: a.Table, Budget: a.Budget, Bound: claim.Bound, PerMount: 1},
			Claim:  claim.Path,
			Owner:  claim.Owner,
			Bound:  claim.Bound,
			Keys:   a.Keys,
			Budget: a.Budget,
		},
		// Also where no export is served: one that stands from before can be undone.
		grant.DeliveryFilesystem: &delivery.Filesystem{
			Table: a.Table, NFS: a.NFS, Bound: cmp.Or(claim.Bound, DefaultBound), Budget: a.Budget,
		},
		// Also without checkouts, for the same reason.
		grant.DeliveryMaterialize: a.contents,
		// And without a keeper.
		grant.DeliveryProcess: a.userspace,
	}
}
