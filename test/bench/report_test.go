package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/internal/obs"
)

// report is the page that one run writes.
type report struct {
	strings.Builder
}

func newReport() *report {
	r := &report{}
	r.say(`# Performance

What a grant costs, from one run of %[1]smake bench%[1]s, which writes this page but for its last section.

- **Ratios, not promises.** The machine is small and shared, so a time here says little about yours. Both sides of every
  comparison took turns on the same kernel objects, the same API server or the same git server, one measurement each, and the
  ratio is what to read. p50 and p99 are measurements that were made (nearest rank); cells with two numbers are "p50 / p99".
- Machine: Linux %[2]s, %[3]s, %[4]d cores, %[5]s, %[6]s.
`, "`", obs.KernelRelease(), processor(), runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly))
	return r
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
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

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

// targets holds the run against what the project wants of itself.
func (r *report) targets(k kernelResult, a apiResult) {
	r.say("\n## Targets\n")
	r.table("Target", "Met", "This run")
	least, most := k.worst(func(x bind) samples { return x.mnt })
	r.row("kernel work within 2 times the raw calls (p50)", yes(most <= 2), fmt.Sprintf("%.2f to %.2f times", least, most))
	least, most = k.worst(func(x bind) samples { return x.delivery })
	r.row("the whole delivery within 2 times the raw calls (p50): [not a bind alone](#one-bind)", yes(most <= 2), fmt.Sprintf("%.2f to %.2f times", least, most))
	lists := k.lists()
	for _, way := range []struct {
		name string
		of   func(bind) samples
	}{{"kernel work", func(x bind) samples { return x.mnt }}, {"the whole delivery", func(x bind) samples { return x.delivery }}} {
		flat := k.flat(way.of)
		r.row(way.name+" flat from 1 to 4,096 mounts (p50 beside the raw calls', within 1.5 times)", yes(flat <= 1.5), fmt.Sprintf("%.2f times at most", flat))
	}
	r.row("no whole mount table read per grant", yes(lists == 0), fmt.Sprintf("%d read", lists))
	for _, l := range append(a.latencies[:len(a.latencies):len(a.latencies)], a.full) {
		first, next := ratio(l.ready.p50(), l.bare.p50()), ratio(l.nextReady.p50(), l.bare.p50())
		r.row(fmt.Sprintf("grant to ready within 1.5 times the bare round trip (p50), %s", l.where()), yes(max(first, next) <= 1.5),
			fmt.Sprintf("first mount %.2f times, one more %.2f times", first, next))
	}
	r.row(fmt.Sprintf("%d grants on one Pod ready within 1 s", setSize), yes(a.set.p99() <= time.Second), fmt.Sprintf("%s ms", a.set.millis()))
	peak := max(a.filled.peak, a.restarted.peak)
	r.row(fmt.Sprintf("under 60 MB in memory at %d mounts", fullMounts), yes(peak < 60e6), fmt.Sprintf("%s MB at most", mb(peak)))
	r.row("one patch of the Pod per change of its set", yes(a.patches == a.changes),
		fmt.Sprintf("%d for %d changes, and %d refused", a.patches, a.changes, a.patchesRefused))
}

// worst is the range, over all sizes of the node, of what a way costs.
func (k kernelResult) worst(way func(bind) samples) (least, most float64) {
	for i, x := range k.binds {
		n := ratio(way(x).p50(), x.raw.p50())
		if i == 0 {
			least, most = n, n
		}
		least, most = min(least, n), max(most, n)
	}
	return least, most
}

// flat is how many times as long a way takes among the most mounts as among the
// fewest, for the number of Pods where that is worst. Each is counted in raw binds
// of the same moments: the sizes are measured one after the other, and the machine
// does not stand still between them.
func (k kernelResult) flat(way func(bind) samples) float64 {
	fewest, worst := make(map[int]float64), 0.0
	for _, x := range k.binds {
		n := ratio(way(x).p50(), x.raw.p50())
		if _, ok := fewest[x.pods]; !ok {
			fewest[x.pods] = n
		}
		worst = max(worst, n/fewest[x.pods])
	}
	return worst
}

func (k kernelResult) lists() int64 {
	var n int64
	for _, p := range k.passes {
		for _, s := range p.sorts {
			n += s.lists
		}
	}
	return n
}

func (l latency) where() string {
	if l.others > 0 {
		return fmt.Sprintf("among %d mounts", fullMounts)
	}
	if l.pods == 1 {
		return "1 Pod"
	}
	return fmt.Sprintf("%d Pods", l.pods)
}

func mb(bytes int64) string { return fmt.Sprintf("%.0f", float64(bytes)/1e6) }

// end closes the page.
func (r *report) end(took time.Duration) {
	r.say("\nThe run took %s.\n", took.Round(time.Second))
}
