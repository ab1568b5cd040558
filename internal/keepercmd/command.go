// Package keepercmd is the command line of node-mounts-keeper: its flags, their checks,
// and the server that they make.
package keepercmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/obs"
)

// settings are the values of the flags.
type settings struct {
	socket, cacheRoot, logLevel string
	grace                       time.Duration
	ask                         bool
}

// askTimeout is how long a keeper may take to say that it is there.
const askTimeout = 5 * time.Second

// Command is the command, for its reference.
func Command() *cobra.Command { return command("", io.Discard) }

// Main runs the command and returns its exit status.
func Main(version string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	cmd := command(version, stderr)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	advice.Print(stderr, err, advice.Hint)
	return advice.Status(err)
}

// usage is a command line that cannot be run.
func usage(cmd *cobra.Command, err error) error {
	return advice.Usage(err, "see "+cmd.CommandPath()+" --help")
}

func command(version string, stderr io.Writer) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "node-mounts-keeper",
		Short: "Host the processes that serve mounts, so that they outlive the agent",
		Long: `node-mounts-keeper starts the processes that the agent of its node hands it and
keeps them when the agent is replaced. It answers root alone, over a socket. It
runs as root with the capabilities SETUID, SETGID and KILL and no others; its
children run as unprivileged users without any. They end with it: SIGTERM is
passed on to them, and they have --grace to finish what they are doing.`,
		Version:           version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(cmd, fmt.Errorf("%q is no flag, and there are no arguments", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return usage(cmd, err)
			}
			if s.ask {
				return s.tell(cmd.Context(), cmd.OutOrStdout())
			}
			if os.Geteuid() != 0 {
				return errors.New("the keeper must be root, to start its children as other users")
			}
			return s.serve(cmd.Context(), version, stderr)
		},
	}
	cmd.SetFlagErrorFunc(usage)
	flags := cmd.Flags()
	flags.StringVar(&s.socket, "socket", "/run/node-mounts-keeper/keeper.sock", "where to listen; the `path`'s folder is closed to all but root")
	flags.StringVar(&s.cacheRoot, "cache-root", "", "`folder` for the caches of children, root's and used for nothing else: it is emptied; empty: no caches")
	flags.DurationVar(&s.grace, "grace", keeper.DefaultGrace, "how long children have to end after SIGTERM, before SIGKILL")
	flags.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.BoolVar(&s.ask, "check", false, "start nothing: ask the keeper at --socket, print its version and instance, and fail where none answers")
	return cmd
}

// tell asks the keeper that listens at the socket who it is.
func (s *settings) tell(ctx context.Context, stdout io.Writer) error {
	info, err := (&keeper.Client{Dial: keeper.DialSocket(s.socket), Timeout: askTimeout}).Info(ctx)
	if err != nil {
		return fmt.Errorf("ask the keeper at %s: %w", s.socket, err)
	}
	fmt.Fprintf(stdout, "%s %s\n", info.Version, info.Instance)
	return nil
}

func (s *settings) check() error {
	switch {
	case !filepath.IsAbs(s.socket):
		return fmt.Errorf("--socket %q: want an absolute path", s.socket)
	case s.cacheRoot != "" && (!filepath.IsAbs(s.cacheRoot) || filepath.Clean(s.cacheRoot) == "/"):
		return fmt.Errorf("--cache-root %q: want the absolute path of a folder", s.cacheRoot)
	case s.grace <= 0:
		return fmt.Errorf("--grace %v: want more than nothing", s.grace)
	}
	if err := obs.CheckLevel(s.logLevel); err != nil {
		return fmt.Errorf("--log-level %q: %w", s.logLevel, err)
	}
	return nil
}

func (s *settings) serve(ctx context.Context, version string, stderr io.Writer) error {
	// A log that nobody reads any more must not end the children. A handler, and not
	// "ignored", because children would inherit that.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	output := keeper.NewOutput(stderr)
	defer output.Close(time.Second)
	log, err := obs.NewLogger(output, s.logLevel)
	if err != nil {
		return err
	}
	l, err := keeper.Listen(s.socket)
	if err != nil {
		return fmt.Errorf("make the socket: %w", err)
	}
	server := keeper.Server{
		Version: version, Grace: s.grace, Orphans: os.Getpid() == 1, Log: log, Output: output,
	}
	if s.cacheRoot != "" {
		server.CacheRoot = filepath.Clean(s.cacheRoot)
	}
	return server.Serve(ctx, l)
}
