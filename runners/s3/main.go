// Command node-mounts-s3 serves a bucket as a filesystem, on a FUSE mount that
// somebody else has made.
//
// It runs without capabilities, from an environment that holds nothing but where
// credentials are asked for, and ends when the mount does. README.md says what the
// filesystem does with each call; docs/reference/buckets.md says it to users.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/datalayer/node-mounts/runners/s3/internal/environment"
)

// Exit statuses.
const (
	exitFailed            = 1
	exitUsage             = 2
	exitBucketWrong       = 3
	exitCredentialRefused = 4
	exitNotStored         = 5
)

// longestSentence is in bytes: whoever runs this program keeps no more of it.
const longestSentence = 1024

// An exitError ends the program with a status and one sentence, which holds no secret.
type exitError struct {
	status   int
	sentence string
}

func (e *exitError) Error() string { return e.sentence }

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	status := exitFailed
	var exit *exitError
	if errors.As(err, &exit) {
		status = exit.status
	}
	sentence := err.Error()
	if status != exitUsage {
		sentence = plain(sentence, longestSentence)
	}
	fmt.Fprintln(os.Stderr, "error:", sentence)
	os.Exit(status)
}

func run(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.memory != 0 {
		// The keeper ends a process that is larger; the collector starts in time.
		debug.SetMemoryLimit(o.memory / 10 * 8)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if o.proxy, err = parseProxy(environment.Proxy); err != nil {
		return err
	}
	broker, err := startBroker(environment.Credentials)
	if err != nil {
		return err
	}
	b, err := openBucket(ctx, o, broker)
	if err != nil {
		return err
	}
	return serve(ctx, o, b)
}
