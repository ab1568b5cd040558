package cli

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/demo"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func newDemo() *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show folders appear in a running sandbox, on this machine and without a cluster",
		Long: `demo makes a node in namespaces of its own, runs the agent on it, and grants
folders to a sandbox that is already running. Everything it prints is seen from
inside the sandbox. It needs root, and leaves nothing behind.`,
		Args: takes(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := simnode.Enter(); err != nil {
				if errors.Is(err, syscall.EPERM) {
					err = advice.With(err, "run it as root, in a container with --privileged")
				}
				return err
			}
			// A write to a pipe that nobody reads would end the program where it
			// is (os/signal, SIGPIPE), and leave the demo's folder behind.
			pipe := make(chan os.Signal, 1)
			signal.Notify(pipe, syscall.SIGPIPE)
			defer signal.Stop(pipe)
			return demo.Run(cmd.Context(), cmd.OutOrStdout(), demo.Format(form))
		},
	}
	form.bind(cmd, readable, asJSON)
	return cmd
}
