// Command node-mounts is the command line of Node Mounts. Under the name
// kubectl-node_mounts it is a plugin of kubectl.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // a kubeconfig may ask for OIDC

	"github.com/datalayer/node-mounts/internal/cli"
	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func main() {
	simnode.Main() // a process of the demo's node, when it was started as one
	ctx, stop := signal.NotifyContext(context.Background(), ending()...)
	context.AfterFunc(ctx, stop)                  // the second signal ends the process at once
	kube.RouteLogs(slog.New(slog.DiscardHandler)) // what matters of them comes back as an error
	status := cli.Run(ctx, cli.Invocation{Args: os.Args, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Version: obs.Version()})
	stop()
	os.Exit(status)
}

// ending are the signals that ask the program to stop and put away what it made.
// A terminal that closes sends SIGHUP, unless nohup had it ignored.
func ending() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
