package bench

import (
	"fmt"
	"time"
)

func (r *report) kernel(k kernelResult) {
	r.say(`
## One bind

A home folder is mounted into a Pod whose tree is published and whose container runs, and taken away again, which is not
timed. Microseconds.

- *raw*: openat2, open_tree, mount_setattr, move_mount, and the two descriptors closed.
- *mount*: packages beneath and mnt: also proves that nothing is mounted there yet, and records what was mounted.
- *delivery*: also checks the claim, has the storage answer before and after, each on a thread that may be lost, and makes
  the mount point.
- *table*: lines of the agent's mount table. Every Pod needs a few; the other mounts are in peer groups of their own.
`)
	r.table("Pods", "other mounts", "table", "raw", "mount", "mount / raw", "delivery", "delivery / raw")
	for _, x := range k.binds {
		r.row(x.pods, x.others, x.table, x.raw.micros(), x.mnt.micros(), x.mnt.over(x.raw), x.delivery.micros(), x.delivery.over(x.raw))
	}
	r.say("\n%d measurements in each way at each size.\n", bindsEach)
	r.say(`
The target of twice the raw calls is met by *mount* and not by *delivery*, and a grant costs a delivery. What it does beside
the bind: it opens the claim and looks whether that is still mounted; opens the folder, or makes it; lists it and asks its
filesystem whether it can be written; makes the mount point in the tree and opens it; and asks the storage again through the
mount. What asks the storage runs on threads that may be lost, twice a delivery, so that storage which hangs costs a thread
and not the agent.
`)
}

func (r *report) passes(k kernelResult) {
	r.say(`
## One pass

One call of Reconcile, with a Kubernetes in memory: the node's part of a grant, and the agent's own. Microseconds. *mount
calls*, *processes* and *journal* are where the time goes, on average: the mount table; /proc (which Pod has which process,
what its container sees, who holds a mount); records written. The rest is folders, storage, and the agent itself. *Whole
tables* are the agent's and the node's, with every Pod's mounts in them; a container's has its own.
`)
	for _, p := range k.passes {
		r.say("\n%s, %d other mounts, a table of %d lines, %d processes on the machine:\n", count(p.pods, "Pod"), p.others, p.table, p.processes)
		r.table("Pass", "took", "mount calls", "processes", "journal", "rest", "allocations", "kB allocated", "whole tables read", "containers' tables read", "answers")
		for _, s := range p.sorts {
			n := len(s.took)
			each := func(d time.Duration) string { return fmt.Sprintf("%.0f", us(d/time.Duration(n))) }
			rest := s.took.sum()
			for _, d := range s.spent {
				rest -= d
			}
			r.row(s.name, s.took.micros(), each(s.spent[partMounts]), each(s.spent[partProcesses]), each(s.spent[partJournal]), each(rest+s.spent[partAnswer]),
				s.allocs/uint64(n), fmt.Sprintf("%.0f", float64(s.bytes)/float64(n)/1e3),
				fmt.Sprintf("%.1f", float64(s.lists)/float64(n)), fmt.Sprintf("%.1f", float64(s.containers)/float64(n)), fmt.Sprintf("%.1f", float64(s.patches)/float64(n)))
		}
	}
	r.say("\n%d measurements of each.\n", passesEach)
}

func (r *report) latency(a apiResult) {
	r.say(`
## From the annotation

The agent is a process of its own, and so are the API server and etcd (without fsync), all on the same cores. Milliseconds
from before the annotation is patched.

- *bare*: the same patch on a Pod that another process answers at once, with the same kind of client and patch, from a
  plain watch and without mounting: patch, watch, patch, watch.
- *visible*: the file in the mounted folder can be seen in the container, looked at through /proc/PID/root.
- *ready*: a watcher has the answer to this set.
- *first* is a Pod's first mount (its tree is made and published), *next* one more.
`)
	r.table("Pods", "bare", "first visible", "first ready", "ready / bare", "next visible", "next ready", "ready / bare")
	for _, l := range append(a.latencies[:len(a.latencies):len(a.latencies)], a.full) {
		where := fmt.Sprint(l.pods)
		if l.others > 0 {
			where += fmt.Sprintf(", %d mounts on the node", a.filledTable)
		}
		r.row(where, l.bare.millis(), l.visible.millis(), l.ready.millis(), l.ready.over(l.bare),
			l.nextVisible.millis(), l.nextReady.millis(), l.nextReady.over(l.bare))
	}
	r.say("\n%d turns for each number of Pods, one Pod after the other; %d among %d mounts.\n", turns, sweepTurns, fullMounts)

	r.say("\nMany at once:\n")
	r.table("What", "measured", "bare", "ready", "ready / bare")
	r.row(fmt.Sprintf("%d Pods, one mount each", atOncePods), "each Pod", a.atOnce.bare.millis(), a.atOnce.ready.millis(), a.atOnce.ready.over(a.atOnce.bare))
	r.row(fmt.Sprintf("%d Pods, one mount each", atOncePods), "until the last", a.atOnce.bareAll.millis(), a.atOnce.readyAll.millis(), a.atOnce.readyAll.over(a.atOnce.bareAll))
	r.row(fmt.Sprintf("one Pod, %d mounts", setSize), "the Pod", a.setBare.millis(), a.set.millis(), a.set.over(a.setBare))
	r.say("\n%d rounds of the Pods, %d of the set. The agent's client allows itself 50 requests a second and 100 at once.\n", rounds, setRounds)
	r.say(`
Patches of one Pod whose set changed %d times, by the API server's own count: the agent sent %d that were accepted and %d
that were refused because the Pod had changed.
`, a.changes, a.patches, a.patchesRefused)
}

func (r *report) process(a apiResult) {
	r.say(`
## The process

The agent's binary as it is built for a release. Megabytes in memory, by the kernel's count (RSS).
`)
	r.table("When", "now", "at most so far")
	row := func(when string, m memory) { r.row(when, mb(m.now), mb(m.peak)) }
	row("started, no Pod on the node", a.idle)
	row(fmt.Sprintf("after %d grants on %s", a.grants, count(a.latencies[len(a.latencies)-1].pods, "Pod")), a.many)
	row(fmt.Sprintf("%d mounts on the node, %d of them grants, a sweep later", a.filledTable, a.filledGrants), a.filled)
	row("killed and started again there", a.restarted)
	r.say(`
- %.1f s of processor time for 1,000 grants, each made on a Pod of its own or beside another one, and released.
- Killed with %d grants on %d Pods, %d ms passed from its start until it had adopted them and the next grant was ready.
`, a.cpu.Seconds()*1000/float64(a.grants), a.filledGrants, a.restartedPods, a.restartedWithin.Milliseconds())
}

func (r *report) repositories(fetches []fetched, a apiResult) {
	r.say(`
## A repository

One commit, until it lies on the disk. The server is git's own http-backend behind TLS, on the same cores. Milliseconds: the
median and, in parentheses, the most, of few measurements. All ways took turns, onto the same filesystem. Each does more than the
one above it, so the last columns multiply to what a checkout costs beside a clone.

- *clone*: %[1]sgit clone --depth 1%[1]s, by root, with git's own settings.
- *verified*: the same clone with %[1]stransfer.fsckObjects%[1]s.
- *settings*: with the other settings of a checkout that cost or save time: one thread, one pack, and the system's certificates
  read from their file alone.
- *by hand*: instead of the clone, the three commands of a checkout: fetch the commit by its id, list its files, write them.
- *checkout*: by package checkout, as the agent does it: each of the three is the agent's program started again, in namespaces of
  its own, where it covers what is secret, gives up every privilege and becomes git; and what git left is inspected and given to
  the sandbox's user.
`, "`")
	for _, f := range fetches {
		r.say("\n%s; %.3g MB are sent; %d rounds:\n", f.repository, float64(f.packed)/1e6, len(f.clone))
		r.table("Way", "took", "beside the clone", "beside the one above")
		r.row("clone", f.clone.few(), "", "")
		above := f.clone
		for _, way := range []struct {
			name string
			took samples
		}{{"verified", f.verified}, {"settings", f.set}, {"by hand", f.byHand}, {"checkout", f.checkout}} {
			r.row(way.name, way.took.few(), fmt.Sprintf("%.2f", ratio(way.took.p50(), f.clone.p50())), fmt.Sprintf("%.2f", ratio(way.took.p50(), above.p50())))
			above = way.took
		}
	}
	r.say(`
The same through the whole agent: a commit that is new to the node is granted to one Pod, and then to nine more, one after the
other. From before the annotation is patched until a watcher has the answer; *bare* is the same set answered without mounting, as
above. The ratios are those of medians.
`)
	r.table("Repository", "rounds", "bare", "first Pod", "tenth Pod", "first / tenth", "tenth / bare")
	for _, s := range a.sharing {
		r.row(s.repository, len(s.first), s.bare.few(), s.first.few(), s.tenth.few(),
			fmt.Sprintf("**%.1f**", ratio(s.first.p50(), s.tenth.p50())), fmt.Sprintf("%.2f", ratio(s.tenth.p50(), s.bare.p50())))
	}
	r.say("\nThe server was asked for the objects of each commit once.\n")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
