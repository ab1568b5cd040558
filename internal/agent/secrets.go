package agent

import (
	"context"
	"errors"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
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
func (a *Agent) deliver(ctx context.Context, s *podState, tree *beneath.Dir, m plan.Mount) (rec mnt.Record, with secret.Data, err error) {
	c, err := a.credentialOf(ctx, s, m)
	if err != nil {
		return mnt.Record{}, c.Data, err
	}
	rec, err = a.by[m.Delivery()].Deliver(ctx, tree, m, c)
	return rec, c.Data, err
}

// rereadSecrets makes grants due that failed for their Secret, when that is another one
// by now: whoever has put it right does not wait for the end of a pause.
func (a *Agent) rereadSecrets(ctx context.Context, s *podState) {
	now := a.Clock.Now()
	for target, f := range s.failures {
		if f.rereadAt.IsZero() || now.Before(f.rereadAt) || !now.Before(f.retryAt) {
			continue
		}
		f.rereadAt = now.Add(secret.PollInterval)
		data, err := a.Secrets.Current(ctx, secretOf(&s.j, f.identity))
		if !errors.Is(err, secret.ErrUnavailable) && (err != nil || !data.Equal(f.tried)) {
			f.retryAt = now
		}
		s.failures[target] = f
	}
}

// remember notes which Secret a grant failed with.
func (f *failure) remember(with secret.Data, now time.Time) {
	if f.code == grant.CodeSecretRefused && f.identity.Secret != "" {
		f.tried, f.rereadAt = with, now.Add(secret.PollInterval)
	}
}

// next is when there is something to do about a failed grant.
func (f failure) next() time.Time {
	if !f.rereadAt.IsZero() && f.rereadAt.Before(f.retryAt) {
		return f.rereadAt
	}
	return f.retryAt
}

// credentialOf reads the Secret that the grant names, if it names one.
func (a *Agent) credentialOf(ctx context.Context, s *podState, m plan.Mount) (delivery.Credential, error) {
	ref := secretOf(&s.j, m.Identity())
	if ref.Name == "" {
		return delivery.Credential{}, nil
	}
	data, err := a.Secrets.Current(ctx, ref)
	return delivery.Credential{Ref: ref, Data: data}, err
}

// secretOf is the Secret of a grant; it has no name where the grant names none.
func secretOf(j *journal.Pod, grant plan.Identity) secret.Ref {
	return secret.Ref{Namespace: j.Namespace, PodUID: j.UID, Name: grant.Secret}
}
