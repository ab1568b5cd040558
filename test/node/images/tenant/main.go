// Command tenant does to a mount what people's programs do: it keeps files open,
// works in folders, writes until it is stopped. Tests run it in a sandbox, as its
// user. Every command prints "ready" when what it was asked for has begun, and what
// it has seen as one line of JSON when it ends.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: tenant COMMAND
  wait                            until SIGTERM; collects orphans as process 1
  hold-open FILE                  keep FILE open until SIGTERM
  write-on-term [-for D] FILE TEXT   at SIGTERM append TEXT for D (2s), then end
  append-loop [-every D] [-record F] FILE   a line each D (50ms), synced, until SIGTERM or an error
  read-loop [-every D] [-record F] FILE     read FILE each D (50ms) until SIGTERM or an error
  append-through, read-through              the same through one descriptor, opened at the beginning
  list-loop [-every D] [-record F] DIR      work in DIR and list it each D (50ms) until SIGTERM or an error
  stat PATH...                    owner, mode and the mount's flags of each
  crash-after D                   end by SIGKILL after D
  listen SOCKET                   say "connected" of each that connects
`

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	err := run(os.Args[1:], stop, os.Stdout)
	var wrong usageError
	switch {
	case errors.As(err, &wrong):
		fmt.Fprintf(os.Stderr, "error: %v\n%s", err, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
