package agenttest

import (
	"context"

	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// enrolled looks through /proc after every process there has been put into its
// cgroup, those too that a tenant has forked.
type enrolled struct {
	*procs.Finder
	node *simnode.Node
}

// Of is Finder.Of.
func (e enrolled) Of(podUID string) ([]procs.Process, error) {
	if err := e.node.Enroll(); err != nil {
		return nil, err
	}
	return e.Finder.Of(podUID)
}

// Has is Finder.Has.
func (e enrolled) Has(podUID string) (bool, error) {
	if err := e.node.Enroll(); err != nil {
		return false, err
	}
	return e.Finder.Has(podUID)
}

// WaitEnded is Finder.WaitEnded.
func (e enrolled) WaitEnded(ctx context.Context, podUID string) error {
	if err := e.node.Enroll(); err != nil {
		return err
	}
	return e.Finder.WaitEnded(ctx, podUID)
}
