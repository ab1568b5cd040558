package agent_test

import (
	"context"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/procs"
)

// Loose finds nothing: in a story, files are opened through mounts that stand.
func (c *cast) Loose(context.Context, []procs.Process, map[mnt.Dev]bool, map[int]bool) ([]procs.Holding, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return nil, c.doubt()
}

// Others finds nobody: in a story, nobody of the node goes where the Pods are.
func (c *cast) Others(context.Context, map[int]bool) ([]procs.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return nil, c.doubt()
}
