package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/demo"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func newDemo() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Shows folders appear in a running sandbox, on this machine and without a cluster",
		Long: `demo makes a node in namespaces of its own, runs the agent on it, and grants
folders to a sandbox that is already running. Everything it prints is seen from
inside the sandbox. It needs root, and leaves nothing behind.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format := demo.Format(output)
			if format != demo.Text && format != demo.JSON {
				return usageError{fmt.Errorf("unknown output %q: it is text or json", output)}
			}
			if err := simnode.Enter(); err != nil {
				return hinted{err, "run it as root, in a container with --privileged"}
			}
			err := demo.Run(cmd.Context(), cmd.OutOrStdout(), format)
			if errors.Is(err, context.Canceled) {
				return errors.New("interrupted: nothing is left behind")
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", string(demo.Text), "text or json")
	return cmd
}
