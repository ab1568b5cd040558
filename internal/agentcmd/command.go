// Package agentcmd is the command line of node-mounts-agent: settings, the
// checks before a start, and the assembly of the agent from its parts.
package agentcmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/obs"
)

func usage(err error, hint string, args ...any) error {
	return advice.Usage(err, fmt.Sprintf(hint, args...))
}

func refuse(err error, hint string, args ...any) error {
	return advice.With(err, fmt.Sprintf(hint, args...))
}

// Command is the command, for its reference.
func Command() *cobra.Command { return newCommand("", os.LookupEnv, os.Geteuid) }

// Edit changes what the agent is made of before it is made. The command's own
// agent is made as it is; a test's dies at a chosen call by one.
type Edit func(cfg *agent.Config) error

// newCommand is the command. Its flags are those of Options, its help names their
// variables; it runs the agent until its context ends.
func newCommand(version string, env func(string) (string, bool), euid func() int, edits ...Edit) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node-mounts-agent",
		Short: "Mount what grant annotations ask for into the running Pods of this node",
		Long: `node-mounts-agent serves the Pods of one node: it reads their grant annotations,
mounts folders of the shared claim into their gateway volumes, and answers in
the ready annotation. It runs as root, one on each node. Stopping it leaves
every mount standing.`,
		Version:           version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              noArguments,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(err, "see %s --help", cmd.CommandPath())
	})
	addFlags(cmd, Options())
	cmd.AddCommand(newGateway(env), newProbe(env))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := resolve(lookUp(cmd), env)
		if err != nil {
			return err
		}
		if id := euid(); id != 0 {
			return refuse(fmt.Errorf("running as uid %d: only root can mount", id),
				"run it as root, in a privileged container (securityContext: privileged: true, runAsUser: 0)")
		}
		log, err := obs.NewLogger(cmd.ErrOrStderr(), s.logLevel)
		if err != nil {
			return err
		}
		return run(cmd.Context(), version, s, log, edits...)
	}
	return cmd
}

func addFlags(cmd *cobra.Command, options []Option) {
	cmd.Flags().SortFlags = false
	for _, o := range options {
		help := o.Help
		if o.Env != "" {
			help += " [" + o.Env + "]"
		}
		cmd.Flags().Var(&value{text: o.Default, kind: o.Type}, o.Flag, help)
	}
}

// lookUp finds what a flag was set to, if it was.
func lookUp(cmd *cobra.Command) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		f := cmd.Flags().Lookup(name)
		return f.Value.String(), f.Changed
	}
}

// value is a flag's value: text, whose shape is checked with the option's own
// rule, where the variable's is checked too.
type value struct{ text, kind string }

func (v *value) String() string     { return v.text }
func (v *value) Set(s string) error { v.text = s; return nil }
func (v *value) Type() string       { return v.kind }

// Main runs the command and returns its exit status. The first SIGTERM or SIGINT
// ends the agent in order, the second at once.
func Main(version string, args []string, stdout, stderr io.Writer, edits ...Edit) int {
	ctx, stop := untilSignal()
	defer stop()
	cmd := newCommand(version, os.LookupEnv, os.Geteuid, edits...)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return report(stderr, cmd.ExecuteContext(ctx))
}

// report tells the user of an error and turns it into an exit status.
func report(stderr io.Writer, err error) int {
	advice.Print(stderr, err, advice.Hint)
	return advice.Status(err)
}

// untilSignal ends its context at the first SIGTERM or SIGINT and the process at
// the second.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		select {
		case <-signals:
			os.Exit(advice.StatusError)
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
