package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// measured are the values of one benchmark by their units, as `go test` prints them.
type measured map[string]float64

// bucketResult is what other packages measured of buckets in this run.
type bucketResult struct {
	programs map[string]measured // "read/rclone", "list/sdk" and so on
	grant    measured
}

// measureBuckets runs the benchmarks of the program that serves a bucket, which are in
// a module of their own, and of a grant of one.
func measureBuckets(b *testing.B) bucketResult {
	b.Helper()
	r := bucketResult{programs: benchmarks(b, "../../runners/s3", "BenchmarkBucket/", "3x")}
	r.grant = benchmarks(b, "../buckets", "BenchmarkGrant", "50x")[""]
	return r
}

// benchmarks runs those of a package, and returns them by what follows the prefix of
// their names.
func benchmarks(b *testing.B, dir, prefix, times string) map[string]measured {
	b.Helper()
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", "^"+strings.TrimSuffix(prefix, "/")+"$", "-benchtime", times, "-timeout", "20m", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		b.Fatalf("%s: %v\n%s%s", dir, err, out, problems.Bytes())
	}
	found := parseBenchmarks(string(out), prefix)
	if len(found) == 0 {
		b.Fatalf("%s printed no benchmark:\n%s", dir, out)
	}
	return found
}

// processors is what `go test` ends a benchmark's name with.
var processors = regexp.MustCompile(`-[0-9]+$`)

func parseBenchmarks(out, prefix string) map[string]measured {
	found := make(map[string]measured)
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], prefix) {
			continue
		}
		m := make(measured)
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				m[fields[i+1]] = v
			}
		}
		found[processors.ReplaceAllString(strings.TrimPrefix(fields[0], prefix), "")] = m
	}
	return found
}

func TestBenchmarksAreReadFromWhatGoTestPrints(t *testing.T) {
	const out = `goos: linux
BenchmarkBucket/read/node-mounts-s3-2         	       3	2700000000 ns/op	 397.00 MB/s	        48.0 MiB-peak
BenchmarkGrant-16   	      20	 178396978 ns/op	       128.8 first-byte-p50-ms
PASS
`
	got := parseBenchmarks(out, "BenchmarkBucket/")
	if len(got) != 1 || got["read/node-mounts-s3"]["MB/s"] != 397 || got["read/node-mounts-s3"]["MiB-peak"] != 48 {
		t.Errorf("%v", got)
	}
	if got := parseBenchmarks(out, "BenchmarkGrant"); got[""]["first-byte-p50-ms"] != 128.8 {
		t.Errorf("%v", got)
	}
}

func (r *report) buckets(m bucketResult) {
	r.say(`
## A bucket

The S3 server is versitygw on the same cores. *read* is one object of 1 GiB from its beginning to its end, and *list* is %[1]sls -l%[1]s of a
folder with 10,000 files that was not looked at before; each three times, on a mount made for it. *sdk* is no filesystem: the same object and the same names
asked for by the SDK alone. Memory is the most that the process had resident, in MiB.
`, "`")
	r.table("Program", "read, MB/s", "beside the SDK", "list, s", "beside the SDK", "memory, MiB")
	for _, name := range []string{"sdk", "node-mounts-s3", "rclone", "s3fs"} {
		read, there := m.programs["read/"+name]
		list := m.programs["list/"+name]
		if !there {
			continue // it is not installed
		}
		beside := func(v, of float64) string {
			if name == "sdk" {
				return ""
			}
			return fmt.Sprintf("%.2f", v/of)
		}
		r.row(name, fmt.Sprintf("%.0f", read["MB/s"]), beside(read["MB/s"], m.programs["read/sdk"]["MB/s"]),
			fmt.Sprintf("%.2f", list["ns/op"]/1e9), beside(list["ns/op"], m.programs["list/sdk"]["ns/op"]),
			mebibytes(max(read["MiB-peak"], list["MiB-peak"])))
	}
	r.say(`
A grant of a bucket to a running Pod, without the API's time, in milliseconds (median and most): until the answer %.0f (%.0f), until the sandbox has a file's first
byte %.0f (%.0f); its revocation, until no path leads there, %.0f (%.0f). In it a process starts, asks the server for one key, and answers.
`, m.grant["ready-p50-ms"], m.grant["ready-max-ms"], m.grant["first-byte-p50-ms"], m.grant["first-byte-max-ms"], m.grant["revoked-p50-ms"], m.grant["revoked-max-ms"])
}

func mebibytes(mib float64) string {
	if mib == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", mib)
}
