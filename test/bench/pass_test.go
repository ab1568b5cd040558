package bench

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// passesEach is how often each sort of pass is measured.
const passesEach = 300

// pass is one sort of pass of the agent over a Pod.
type pass struct {
	name   string
	took   samples
	spent  [parts]time.Duration // in all of them
	allocs uint64               // in all of them
	bytes  uint64               // in all of them
	lists  int64                // whole mount tables read, in all of them
	// containers are mount tables of containers that were read, in all of them.
	containers int64
	patches    int // answers written, in all of them
}

// passes are all sorts at one size of the node.
type passes struct {
	pods, others, table int
	processes           int // on the machine
	sorts               []pass
}

// passes measures the agent's passes with a Kubernetes in memory: what is left is
// the node's work and the agent's own.
func (l *local) passes(others int) passes {
	l.b.Helper()
	out := passes{pods: len(l.pods), others: others, table: l.mounts(), processes: processes(l.b), sorts: []pass{
		{name: "first grant: tree, publication, mount"},
		{name: "one more grant"},
		{name: "nothing to do"},
		{name: "one grant revoked"},
		{name: "release"},
	}}
	runtime.GC()
	for i := range passesEach {
		p := l.pods[i%len(l.pods)]
		l.ask(p, nil)
		l.pass(p) // it has nothing now
		for j, text := range []*string{&p.base, &p.more, nil, &p.base, nil} {
			if j != 2 {
				l.ask(p, text)
			}
			l.measure(p, &out.sorts[j])
		}
		l.ask(p, &p.base)
		l.pass(p) // as it was
	}
	return out
}

func (l *local) measure(p *localPod, into *pass) {
	l.b.Helper()
	lists, tables, answers := l.table.Lists(), l.finder.Read(), l.api.Answers()
	var before, after runtime.MemStats
	l.meter.take()
	runtime.ReadMemStats(&before)
	began := time.Now()
	_, err := l.agent.Reconcile(l.b.Context(), p.UID)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	must(l.b, err)
	l.answered(p)
	into.took = append(into.took, took)
	for i, d := range l.meter.take() {
		into.spent[i] += d
	}
	into.allocs += after.Mallocs - before.Mallocs
	into.bytes += after.TotalAlloc - before.TotalAlloc
	read := l.finder.Read()
	into.lists += l.table.Lists() - lists + read.Node - tables.Node
	into.containers += read.Processes - tables.Processes
	into.patches += l.api.Answers() - answers
}

// processes is how many there are on the machine, which the agent looks through.
func processes(b *testing.B) int {
	b.Helper()
	found, err := filepath.Glob("/proc/[0-9]*")
	must(b, err)
	return len(found)
}
