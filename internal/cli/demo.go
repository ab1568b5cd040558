package cli

import (
	"github.com/spf13/cobra"

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
				return hinted{err, "run it as root, in a container with --privileged"}
			}
			return demo.Run(cmd.Context(), cmd.OutOrStdout(), demo.Format(form))
		},
	}
	form.bind(cmd, readable, asJSON)
	return cmd
}
