package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/install"
)

func newUninstall() *cobra.Command {
	var r releasing
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take the agents away from a cluster",
		Long: `uninstall turns the operator's half off, where --operator names it, and then takes
away what install made. It asks every agent first, and refuses while Pods have mounts
or an agent does not say whether they have, and while an operator's half is on that it
was not told to turn off: without agents nobody takes a mount away, and nobody makes
one that is asked for.

On the nodes the agents' own folder stays: their records, and an empty tmpfs for each
living Pod that had mounts.`,
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
				return err
			}
			return r.writeRemoved(cmd, done)
		},
	}
	r.bind(cmd, "NAMESPACE/DEPLOYMENT[/CONTAINER] to turn off first")
	cmd.Flags().BoolVar(&force, "force", false, "also when Pods have mounts or may have, or the operator's half is on")
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
	if n := len(done.Using); n > 0 {
		who := fmt.Sprintf("%d Pods keep their mounts", n)
		if n == 1 {
			who = "One Pod keeps its mounts"
		}
		say("%s: %s. When one is deleted it hangs in Terminating until its mounts are taken down on its node (`node-mounts recover POD`).\n",
			who, advice.Plain(strings.Join(done.Using, ", ")))
	}
	if len(done.Unasked) > 0 {
		say("What is still mounted is not known where no agent answered: %s.\n", advice.Plain(strings.Join(done.Unasked, ", ")))
	}
	say("What stays on the nodes is %[1]s: the agents' records, and a tmpfs in %[1]s/pods for each living Pod that had mounts. Agents that are installed again take it over. To remove it for good, once those Pods are gone: `umount %[1]s/pods/*` and `rm -r --one-file-system %[1]s` on the node.\n", done.Stays)
	return errors.Join(errs...)
}
