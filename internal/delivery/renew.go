package delivery

import (
	"context"

	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
)

// Renewed implements Renewer: the source lies on another filesystem now, and that one
// answers, because the claim has been mounted anew. A copy of the old mount keeps its
// filesystem, so the kernel has not given its device number to the new one.
func (b *Bind) Renewed(ctx context.Context, m plan.Mount, rec mnt.Record) bool {
	renewed, err := deadline.Do(ctx, b.Budget, b.Bound,
		func() (bool, error) { return b.renewed(m, rec) }, nil,
		b.Keys(b.Claim+"/"+m.Source())...)
	return err == nil && renewed
}

func (b *Bind) renewed(m plan.Mount, rec mnt.Record) (bool, error) {
	claim, err := b.claim()
	if err != nil {
		return false, err
	}
	defer claim.Close()
	source, err := claim.Open(m.Source())
	if err != nil {
		return false, err
	}
	defer source.Close()
	place, err := b.Table.At(source)
	if err != nil || place.Dev == rec.Dev {
		return false, err
	}
	return true, proof.Reads(source)
}
