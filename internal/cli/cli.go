// Package cli is the node-mounts command, which is a plugin of kubectl too.
package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
)

// programName is what the command is called, and pluginName what kubectl looks
// for when it is asked for `kubectl node-mounts`: a dash in the words of a plugin
// is an underscore in the file's name. completerName is what it asks for
// completions.
const (
	programName   = "node-mounts"
	pluginName    = "kubectl-node_mounts"
	completerName = "kubectl_complete-node_mounts"
)

// Invocation is how the program was started.
type Invocation struct {
	// Args are all words of the command line, the program's name included: it says
	// whether kubectl started it.
	Args []string
	// In is what `-f -` reads.
	In io.Reader
	// Out takes results, Err errors ("error:") and what to do about them ("hint:").
	Out, Err io.Writer
	// Version is the program's.
	Version string
}

// Run executes the command line and returns the exit status, one of
// ExitStatuses.
func Run(ctx context.Context, inv Invocation) int {
	name, args := programName, inv.Args[1:]
	switch strings.TrimSuffix(filepath.Base(inv.Args[0]), ".exe") {
	case pluginName:
		name = "kubectl " + programName
	case completerName:
		name, args = "kubectl "+programName, append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	root := newRoot(name, inv.Version)
	root.SetArgs(args)
	root.SetIn(inv.In)
	out := &outlet{to: inv.Out}
	root.SetOut(out)
	root.SetErr(inv.Err)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("write the result: %w", out.err)
	}
	report(inv.Err, name, err)
	return exitStatus(err)
}

// outlet remembers that a result could not be written: a command must not succeed
// whose result nobody has got, also where it is a line that it does not look after.
type outlet struct {
	to  io.Writer
	err error
}

func (o *outlet) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// Command is the command as documentation shows it.
func Command() *cobra.Command { return newRoot(programName, "") }

func newRoot(name, version string) *cobra.Command {
	root := &cobra.Command{
		Use:   programName,
		Short: "Puts folders into Kubernetes Pods that are already running",
		Long: `node-mounts grants folders to Pods that are already running, takes them away
again, and tells what became of it. What it asks for is an annotation of the
Pod; the agent on the Pod's node mounts it and answers.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		cmd.SuggestionsMinimumDistance = 2
		err := fmt.Errorf("unknown command %q", args[0])
		if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
			err = advice.With(err, "did you mean `"+programName+" "+like[0]+"`?")
		}
		return err
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return advice.Usage(err, "") })
	root.AddCommand(
		newGrant(), newRevoke(), newWait(), newStatus(), newDebug(version),
		newExplain(), newRecover(), newDemo(), newVersion(version),
		newVerify(),
		newInstall(), newUninstall(),
		newImport(),
	)
	// A name of a file is offered where one is wanted, see takesFile, and nowhere else.
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range all(root) {
		if !cmd.Runnable() { // cobra's own: it would answer anything with its help
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		cmd.Args = asUsage(cmd.Args)
		cmd.Example = strings.ReplaceAll(cmd.Example, programName+" ", name+" ")
	}
	return root
}

// all are the command and everything below it.
func all(cmd *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		out = append(out, all(c)...)
	}
	return out
}

// asUsage makes wrong arguments an error of usage, also in cobra's own commands.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		return nil
	}
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return advice.Usage(err, "")
		}
		return nil
	}
}

// takes checks the number of arguments and says what they are: "POD", "TARGET...".
func takes(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s needs %s", cmd.CommandPath(), what)
		case most >= 0 && len(args) > most && most == 0:
			return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
		case most >= 0 && len(args) > most:
			return fmt.Errorf("%s takes %s and nothing more, got %q", cmd.CommandPath(), what, args[most])
		}
		return nil
	}
}

// output is the form of a result. The first of a command's forms is the default.
type output string

const (
	table    output = "table"
	wide     output = "wide"
	asJSON   output = "json"
	asYAML   output = "yaml"
	readable output = "text"
)

// bind adds -o for the forms that a command has.
func (o *output) bind(cmd *cobra.Command, forms ...output) {
	*o = forms[0]
	var names []string
	for _, f := range forms {
		names = append(names, string(f))
	}
	cmd.Flags().VarP(&outputFlag{o, forms}, "output", "o", strings.Join(names, ", "))
	complete(cmd, "output", names...)
}

// structured tells whether the result is a document rather than a table or text.
func (o output) structured() bool { return o == asJSON || o == asYAML }

type outputFlag struct {
	to    *output
	forms []output
}

func (f *outputFlag) String() string { return string(*f.to) }
func (f *outputFlag) Type() string   { return "form" }
func (f *outputFlag) Set(s string) error {
	if !slices.Contains(f.forms, output(s)) {
		return fmt.Errorf("it is one of %v", f.forms)
	}
	*f.to = output(s)
	return nil
}
