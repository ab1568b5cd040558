// Command node-mounts-agent mounts what grant annotations ask for into the
// running Pods of this node.
package main

import (
	"os"
	"runtime/debug"

	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/checkout"
)

func main() {
	// Before anything else: git runs as this program, confined, and asks it for
	// credentials.
	if code, ours := checkout.Main(os.Args); ours {
		os.Exit(code)
	}
	os.Exit(agentcmd.Main(version(), os.Args[1:], os.Stdout, os.Stderr))
}

// version is the module's, or the commit's where the build knows no tag.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
