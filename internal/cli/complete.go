package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
)

// completionBound is how long a key press may wait for the API server.
const completionBound = 2 * time.Second

// complete offers fixed values for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	completeWith(cmd, flag, func(context.Context) []string { return values })
}

// completeWith offers what find finds for a flag. A completion that fails offers
// nothing: there is nowhere to say why.
func completeWith(cmd *cobra.Command, flag string, find func(context.Context) []string) {
	// The error is a flag that does not exist or has a completion already: the
	// tests walk all commands.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionBound)
		defer cancel()
		return beginning(find(ctx), begun), cobra.ShellCompDirectiveNoFileComp
	})
}

// takesFile and takesFolder leave it to the shell to offer names of files, or of
// folders alone. Errors are as in completeWith.
func takesFile(cmd *cobra.Command, flags ...string) {
	leaveToShell(cmd, cobra.ShellCompDirectiveDefault, flags)
}

func takesFolder(cmd *cobra.Command, flags ...string) {
	leaveToShell(cmd, cobra.ShellCompDirectiveFilterDirs, flags)
}

func leaveToShell(cmd *cobra.Command, how cobra.ShellCompDirective, flags []string) {
	for _, f := range flags {
		_ = cmd.RegisterFlagCompletionFunc(f, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) { return nil, how })
	}
}

// beginning are the values that begin so, sorted.
func beginning(values []string, begun string) []string {
	values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !strings.HasPrefix(v, begun) })
	slices.Sort(values)
	return values
}

// completePod offers Pods for the first argument, and for the others what then
// finds for that Pod.
func (c *cluster) completePod(wanted func(summary) bool, then func(summary) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionBound)
		defer cancel()
		s, err := c.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []string
		if len(args) == 0 {
			pods, _ := s.summaries(ctx)
			for _, p := range pods {
				if wanted(p) {
					found = append(found, p.Name)
				}
			}
		} else if pod, err := s.pod(args[0]); err == nil && then != nil {
			if p, err := s.api.Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err == nil {
				found = slices.DeleteFunc(then(summarize(p, s.names)), func(t string) bool { return slices.Contains(args[1:], t) })
			}
		}
		return beginning(found, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// anyPod and grantedPod are which Pods are offered.
func anyPod(summary) bool       { return true }
func grantedPod(p summary) bool { return p.Asked > 0 }

// completeCode offers the codes, short, each with its meaning.
func completeCode(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var found []cobra.Completion
	for _, c := range grant.Codes() {
		short := shortCode(c.Code)
		if strings.HasPrefix(short, strings.ToUpper(begun)) && !slices.Contains(args, short) {
			found = append(found, cobra.CompletionWithDesc(short, c.Meaning))
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
