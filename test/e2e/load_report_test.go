package e2e_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reportEnv is a file whose section about a real node is replaced by this run's,
// such as docs/performance.md; without it nothing is written.
const reportEnv = "NODE_MOUNTS_REPORT"

const section = "## On a real node"

// report is what a run has measured, in Markdown.
type report struct{ strings.Builder }

func newReport() *report {
	r := &report{}
	var u unix.Utsname
	_ = unix.Uname(&u) // the page is the same without it
	r.say(section+`

From one run of %[1]sNODE_MOUNTS_REPORT=$PWD/docs/performance.md make e2e E2E="-run TestLoad"%[1]s, which writes this section: kubelet,
containerd and runc, with the API server and etcd on the same cores. Linux %[2]s, %[3]d cores, %[4]s.
%[5]s.
`, "`", unix.ByteSliceToString(u.Release[:]), runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly), others())
	return r
}

// others says how much else the machine had to do before the node was started.
func others() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) == 0 {
		return "What else ran there is not known"
	}
	return "Tasks that wanted a core in the minute before, on average: " + fields[0]
}

func (r *report) say(format string, args ...any) { fmt.Fprintf(r, format, args...) }

// table begins a table.
func (r *report) table(columns ...string) {
	r.say("\n| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}

func (r *report) row(cells ...any) {
	r.say("|")
	for _, c := range cells {
		r.say(" %v |", c)
	}
	r.say("\n")
}

// write replaces the section, which is the last of its file.
func (r *report) write(t *testing.T) {
	t.Helper()
	file := os.Getenv(reportEnv)
	if file == "" {
		return
	}
	page, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(page), section)
	if before = strings.TrimRight(before, "\n"); before != "" {
		before += "\n\n"
	}
	must(t, os.WriteFile(file, []byte(before+r.String()), 0o644))
}
