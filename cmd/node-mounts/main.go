// Command node-mounts is the command line of Node Mounts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/datalayer/node-mounts/internal/cli"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func main() {
	simnode.Main() // a process of the demo's node, when it was started as one
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
