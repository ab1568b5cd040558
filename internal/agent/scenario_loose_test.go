package agent_test

import (
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/procs"
)

// Loose finds nothing: in a story, files are opened through mounts that stand.
func (c *cast) Loose([]procs.Process, mnt.Dev, map[int]bool) ([]procs.Holding, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return nil, c.doubt()
}
