package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// terminationLog is where Kubernetes reads what a container had to say at its end.
const terminationLog = "/dev/termination-log"

// outcome is what a loop has seen. Slowest includes the operation that failed.
type outcome struct {
	File      string  `json:"file"`
	Done      int     `json:"done"`
	SlowestMs float64 `json:"slowest_ms"`
	Error     string  `json:"error,omitempty"`
	At        string  `json:"at,omitempty"`
}

func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// repeat does something to a file again and again. The first error ends it and is
// recorded: a program that goes on would hide a moment in which a mount was away.
func repeat(args []string, stop <-chan os.Signal, out io.Writer, once func(name string, n int) error) error {
	flags := newFlags("loop")
	every := flags.Duration("every", 50*time.Millisecond, "pause between two turns")
	record := flags.String("record", terminationLog, "where the outcome is written too")
	if err := flags.Parse(args); err != nil {
		return usageError(err.Error())
	}
	name, err := one(flags.Args(), "FILE")
	if err != nil {
		return err
	}
	if *every <= 0 {
		return usageError("-every must be more than 0")
	}
	seen := outcome{File: name}
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for running := true; running && err == nil; {
		start := time.Now()
		err = once(name, seen.Done)
		seen.SlowestMs = max(seen.SlowestMs, float64(time.Since(start).Microseconds())/1000)
		if err != nil {
			seen.Error, seen.At = err.Error(), time.Now().UTC().Format(time.RFC3339Nano)
			break
		}
		seen.Done++
		if seen.Done == 1 {
			ready(out)
		}
		select {
		case <-stop:
			running = false
		case <-tick.C:
		}
	}
	return errors.Join(err, seen.write(out, *record))
}

func (o outcome) write(out io.Writer, record string) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", text)
	file, err := os.OpenFile(record, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) && record != terminationLog {
		file, err = os.OpenFile(record, os.O_WRONLY|os.O_CREATE, 0o644)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not in a container of Kubernetes, and no record was asked for
	}
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	return errors.Join(err, file.Close())
}

// appendLine opens the file anew, as an editor does that saves: an open descriptor
// would survive an unmount.
func appendLine(name string, n int) error {
	return appendTo(name, fmt.Sprintf("%d %s\n", n, time.Now().UTC().Format(time.RFC3339Nano)))
}

func appendTo(name, text string) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(writeSynced(file, text), file.Close())
}

func writeSynced(file *os.File, text string) error {
	if _, err := file.WriteString(text); err != nil {
		return err
	}
	return file.Sync()
}

func readWhole(name string, _ int) error {
	_, err := os.ReadFile(name)
	return err
}

// through repeats what is done with a file that is opened once.
func through(flags int, once func(*os.File, int) error, args []string, stop <-chan os.Signal, out io.Writer) error {
	var file *os.File
	defer func() { _ = file.Close() }()
	return repeat(args, stop, out, func(name string, n int) (err error) {
		if file == nil {
			if file, err = os.OpenFile(name, flags, 0o644); err != nil {
				return err
			}
		}
		return once(file, n)
	})
}

func writeLine(file *os.File, n int) error { return writeSynced(file, fmt.Sprintln(n)) }

// readAgain wants to read something: an empty file tells nothing.
func readAgain(file *os.File, _ int) error {
	_, err := file.ReadAt(make([]byte, 1), 0)
	return err
}

// listFromWithin names the folder once, and then works in it.
func listFromWithin(name string, n int) error {
	if n == 0 {
		if err := os.Chdir(name); err != nil {
			return err
		}
	}
	_, err := os.ReadDir(".")
	return err
}
