// Command node-mounts-keeper hosts the processes that serve mounts, so that they
// outlive the agent.
package main

import (
	"os"

	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/keepercmd"
	"github.com/datalayer/node-mounts/internal/obs"
)

func main() {
	// Before anything else: a child starts as this program.
	if code, ours := keeper.Main(os.Args); ours {
		os.Exit(code)
	}
	os.Exit(keepercmd.Main(obs.Version(), os.Args[1:], os.Stdout, os.Stderr))
}
