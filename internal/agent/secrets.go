package agent

import (
	"context"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Secrets reads the Secrets that grants name. *secret.Reader is one.
type Secrets interface {
	Current(ctx context.Context, ref secret.Ref, keys ...string) (secret.Data, error)
}

// deliver makes one mount. The Secret that its grant names is looked at before
// anything is made, whether or not the kind has a use for it: a name that may not
// be used must never seem to work.
func (a *Agent) deliver(ctx context.Context, s *podState, tree *beneath.Dir, m plan.Mount) (mnt.Record, error) {
	if name := m.Identity().Secret; name != "" {
		ref := secret.Ref{Namespace: s.j.Namespace, PodUID: s.j.UID, Name: name}
		if _, err := a.Secrets.Current(ctx, ref); err != nil {
			return mnt.Record{}, err
		}
	}
	return a.by[m.Delivery()].Deliver(ctx, tree, m)
}
