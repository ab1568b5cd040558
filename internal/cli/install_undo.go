package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/install"
)

func newUninstall() *cobra.Command {
	var r releasing
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take the agents away from a cluster",
		Long: `uninstall turns the operator's half off, where --operator names it, and then takes
away what install made. It refuses while Pods have mounts, and while an operator's
half is on that it was not told to turn off: without agents nobody takes a mount
away, and nobody makes one that is asked for.

On the nodes the agents' own folder stays, with nothing mounted in it.`,
		Example: `  node-mounts uninstall
  node-mounts uninstall --operator datalayer/datalayer-operator`,
		Args: takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			half, err := r.half()
			if err != nil {
				return err
			}
			c, _, err := r.open(cmd)
			if err != nil {
				return err
			}
			done, err := c.Uninstall(cmd.Context(), install.Removal{Force: force, Timeout: r.timeout, Operator: half})
			if err != nil {
				return released(err)
			}
			return r.writeRemoved(cmd, done)
		},
	}
	r.bind(cmd, "NAMESPACE/DEPLOYMENT[/CONTAINER] to turn off first")
	cmd.Flags().BoolVar(&force, "force", false, "also when Pods have mounts, or the operator's half is on")
	return cmd
}

func (r *releasing) writeRemoved(cmd *cobra.Command, done install.Removed) error {
	out := cmd.OutOrStdout()
	if r.form == asJSON {
		return writeDocument(out, r.form, done)
	}
	var errs []error
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(out, format, args...)
		errs = append(errs, err)
	}
	if done.Operator != "" {
		say("The operator's half is off: %s.\n", done.Operator)
	}
	say("Uninstalled: %s in %s. Its history is gone too.\n", done.Release, done.Namespace)
	if len(done.Using) == 0 {
		say("What stays on the nodes is %s, with nothing mounted in it: remove it with rmdir where you want to.\n", done.Stays)
	} else {
		say("%d Pods keep their mounts: %s. When one is deleted it hangs in Terminating until its mounts are taken down on its node (`node-mounts recover POD`).\n",
			len(done.Using), plain(strings.Join(done.Using, ", ")))
	}
	return errors.Join(errs...)
}
