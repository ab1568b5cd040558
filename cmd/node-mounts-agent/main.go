// Command node-mounts-agent mounts what grant annotations ask for into the
// running Pods of this node.
package main

import (
	"os"

	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/obs"
)

func main() {
	// Before anything else: git runs as this program, confined, and asks it for
	// credentials.
	if code, ours := checkout.Main(os.Args); ours {
		os.Exit(code)
	}
	os.Exit(agentcmd.Main(obs.Version(), os.Args[1:], os.Stdout, os.Stderr))
}
