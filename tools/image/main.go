// Command image builds a container image from a Dockerfile without Docker: what
// can be had from copies and settings alone is done, and everything that would
// have to run must be in the base already. The result is one archive that `ctr
// images import`, `docker load` and `skopeo` read. Same inputs, same digest.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	job, err := jobOf(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 2
	}
	report, err := job.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	fmt.Print(report)
	return 0
}
