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

// credentialed is a delivery that has a use for the Secret of a grant.
type credentialed interface {
	DeliverWith(ctx context.Context, tree *beneath.Dir, m plan.Mount, data secret.Data) (mnt.Record, error)
}

// deliver makes one mount. The Secret that its grant names is looked at before
// anything is made, whether or not the kind has a use for it: a name that may not
// be used must never seem to work.
func (a *Agent) deliver(ctx context.Context, s *podState, tree *beneath.Dir, m plan.Mount) (mnt.Record, error) {
	d := a.by[m.Delivery()]
	name := m.Identity().Secret
	if name == "" {
		return d.Deliver(ctx, tree, m)
	}
	data, err := a.Secrets.Current(ctx, secret.Ref{Namespace: s.j.Namespace, PodUID: s.j.UID, Name: name})
	if err != nil {
		return mnt.Record{}, err
	}
	if with, ok := d.(credentialed); ok {
		return with.DeliverWith(ctx, tree, m, data)
	}
	return d.Deliver(ctx, tree, m)
}
