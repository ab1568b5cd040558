package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// usageError is a command line that says nothing to this program.
type usageError string

func (e usageError) Error() string { return string(e) }

// run executes one command. stop receives what asks it to end.
func run(args []string, stop <-chan os.Signal, out io.Writer) error {
	if len(args) == 0 {
		return usageError("no command")
	}
	name, rest := args[0], args[1:]
	switch name {
	case "wait":
		return wait(rest, stop, out)
	case "hold-open":
		return holdOpen(rest, stop, out)
	case "write-on-term":
		return writeOnTerm(rest, stop, out)
	case "append-loop":
		return repeat(rest, stop, out, appendLine)
	case "read-loop":
		return repeat(rest, stop, out, readWhole)
	case "append-through":
		return through(os.O_WRONLY|os.O_APPEND|os.O_CREATE, writeLine, rest, stop, out)
	case "read-through":
		return through(os.O_RDONLY, readAgain, rest, stop, out)
	case "list-loop":
		return repeat(rest, stop, out, listFromWithin)
	case "stat":
		return stat(rest, out)
	case "crash-after":
		return crashAfter(rest, stop, out)
	case "listen":
		return listen(rest, stop, out)
	}
	return usageError("unknown command " + name)
}

func one(args []string, what string) (string, error) {
	if len(args) != 1 {
		return "", usageError("want one argument: " + what)
	}
	return args[0], nil
}

func ready(out io.Writer) { fmt.Fprintln(out, "ready") }

// wait ends at once when asked: as process 1 it has no default action for SIGTERM,
// and a Pod whose first process ignores it takes its whole grace period to go.
func wait(args []string, stop <-chan os.Signal, out io.Writer) error {
	if len(args) != 0 {
		return usageError("wait takes no argument")
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	ready(out)
	for {
		select {
		case <-stop:
			return nil
		case <-children:
			for { // one signal may stand for several
				pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
				if err != nil || pid <= 0 {
					break
				}
			}
		}
	}
}

func holdOpen(args []string, stop <-chan os.Signal, out io.Writer) error {
	name, err := one(args, "FILE")
	if err != nil {
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	ready(out)
	<-stop
	return nil
}

// writeOnTerm is a notebook that saves when it is told to end, and takes its time.
func writeOnTerm(args []string, stop <-chan os.Signal, out io.Writer) error {
	flags := newFlags("write-on-term")
	span := flags.Duration("for", 2*time.Second, "how long to go on writing")
	if err := flags.Parse(args); err != nil {
		return usageError(err.Error())
	}
	if flags.NArg() != 2 {
		return usageError("want FILE TEXT")
	}
	name, text := flags.Arg(0), flags.Arg(1)
	ready(out)
	<-stop
	end := time.After(*span)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		// Opened anew each time: the folder may have gone since.
		if err := appendTo(name, text+"\n"); err != nil {
			return err
		}
		select {
		case <-end:
			return nil
		case <-tick.C:
		}
	}
}

func crashAfter(args []string, stop <-chan os.Signal, out io.Writer) error {
	text, err := one(args, "DURATION")
	if err != nil {
		return err
	}
	after, err := time.ParseDuration(text)
	if err != nil {
		return usageError(err.Error())
	}
	ready(out)
	select {
	case <-stop:
		return nil
	case <-time.After(after):
	}
	// The kernel ignores SIGKILL that process 1 of a namespace sends to itself;
	// the exit status below is what a container killed by it would show.
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		return err
	}
	os.Exit(137)
	return nil
}

// listen listens at a socket for packets, and says of each that connects that it did.
func listen(args []string, stop <-chan os.Signal, out io.Writer) error {
	path, err := one(args, "SOCKET")
	if err != nil {
		return err
	}
	l, err := net.Listen("unixpacket", path)
	if err != nil {
		return err
	}
	ready(out)
	go func() {
		<-stop
		_ = l.Close()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil // it was asked to end
		}
		fmt.Fprintln(out, "connected")
		_ = c.Close()
	}
}
