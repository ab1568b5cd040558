// Command node-mounts-keeper hosts the processes that serve mounts, so that they
// outlive the agent.
package main

import (
	"os"
	"runtime/debug"

	"github.com/datalayer/node-mounts/internal/keeper"
)

func main() {
	// Before anything else: a child starts as this program.
	if code, ours := keeper.Main(os.Args); ours {
		os.Exit(code)
	}
	os.Exit(run(version(), os.Args[1:], os.Stdout, os.Stderr))
}

// version is the module's, or the commit's where the build knows no tag.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
