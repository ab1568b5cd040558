package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/install"
)

func TestAnUninstallationSaysWhatStays(t *testing.T) {
	for want, done := range map[string]install.Removed{
		"One Pod keeps its mounts: n/a.":                                             {Using: []string{"n/a"}},
		"2 Pods keep their mounts: n/a, n/b.":                                        {Using: []string{"n/a", "n/b"}},
		"not known where no agent answered: one (it is dead)":                        {Unasked: []string{"one (it is dead)"}},
		"What stays on the nodes is /r: the agents' records, and a tmpfs in /r/pods": {Stays: "/r"},
	} {
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		r := releasing{form: readable}
		if err := r.writeRemoved(cmd, done); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, no %q in\n%s", err, want, out.String())
		}
	}
}
