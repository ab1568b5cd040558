// Package bench measures what a grant costs: against the bare system calls on the
// same kernel objects, against a bare round trip through the same API server, and
// against git's own clone from the same server.
//
// It has one benchmark, BenchmarkReport, which makes one run and writes a report.
// Machines differ, and one machine differs from minute to minute; so both sides
// of every comparison take turns, one measurement each, and what the report says
// is their ratio.
package bench

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/simnode"
)

const (
	// reportFlag names the file that the report is written to, beside standard
	// output; "" for none.
	reportFlag = "report"
	// roleEnv makes the test binary the responder that the agent is compared with.
	roleEnv = "NODE_MOUNTS_BENCH_ROLE"
	// patience is how long the benchmark waits for what takes milliseconds.
	patience = 30 * time.Second
)

func TestMain(m *testing.M) {
	simnode.Main()
	if config := os.Getenv(roleEnv); config != "" {
		if err := respond(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	flag.String(reportFlag, "", "write the report to this file too")
	os.Exit(m.Run())
}

// BenchmarkReport makes one run, whatever b.N is, and reports it.
func BenchmarkReport(b *testing.B) {
	began := time.Now()
	r := newReport()
	// First: all parts measure the same source.
	path, fetch := build(b, "cmd/node-mounts-agent"), build(b, "test/bench/fetch")
	repositories := newRepositories(b)
	checkouts := measureCheckouts(b, fetch, repositories)
	unix.Sync() // what was written is not to be written while the rest is measured
	kernel := measureKernel(b)
	api := measureAPI(b, path, repositories)
	buckets := measureBuckets(b)
	r.targets(kernel, api)
	r.kernel(kernel)
	r.passes(kernel)
	r.latency(api)
	r.process(api)
	r.repositories(checkouts, api)
	r.buckets(buckets)
	r.end(time.Since(began))
	fmt.Print("\n", r.String())
	if file := flag.Lookup(reportFlag).Value.String(); file != "" {
		// The last section is of another run: test/e2e measures a real node.
		if page, err := os.ReadFile(file); err == nil {
			if _, kept, ok := strings.Cut(string(page), "\n## On a real node\n"); ok {
				r.say("\n## On a real node\n%s", kept)
			}
		}
		if err := os.WriteFile(file, []byte(r.String()), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

// must ends the benchmark on an error: a number that was measured while something
// failed is worse than none.
func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
