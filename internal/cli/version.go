package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersion(version string) *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  takes(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			if form.structured() {
				return writeDocument(cmd.OutOrStdout(), form, map[string]string{"version": version, "go": runtime.Version(), "platform": platform})
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s (%s, %s)\n", programName, version, runtime.Version(), platform)
			return nil
		},
	}
	form.bind(cmd, readable, asJSON, asYAML)
	return cmd
}
