package agent_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/plan"
)

// Each file is one story of a node, from the first line to the last. A command
// that changes something prints nothing; pass and run print what the agent did.
//
//	pod, grant, annotate, ungrant, terminate, finish, delete   what writers do
//	kubelet, sandbox, start, stop, end, hold, pin               what runs on the node
//	pass, run, sweep, await, advance                            the agent's work, and time
//	agent, node, fault, disk, mount, umount, lose, blind        what goes wrong
//	hide, api, meanwhile, forge, unanswer                       what the API does
//	answer, sees, table, folders, journal, metrics, patches,    questions
//	readyz, log
//
// With -rewrite the files are written anew: read the difference, and commit only
// what you understand.
func TestScenariosGoAsTheirFilesTell(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there are no scenarios")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				w.t = t
				for _, c := range commands() {
					if c.name == d.Cmd {
						return strings.Join(c.run(w, args{t: t, d: d}), "\n")
					}
				}
				d.Fatalf(t, "no command is called %s", d.Cmd)
				return ""
			})
		})
	}
}

// args are what stands on a command's line, and below it.
type args struct {
	t *testing.T
	d *datadriven.TestData
}

// word is the n-th argument.
func (a args) word(n int) string {
	a.t.Helper()
	if n >= len(a.d.CmdArgs) {
		a.d.Fatalf(a.t, "%s needs %d arguments", a.d.Cmd, n+1)
	}
	return a.d.CmdArgs[n].Key
}

// uid is the Pod that the command is about.
func (a args) uid() string { return a.word(0) }

// has tells whether a flag is given.
func (a args) has(flag string) bool { return a.d.HasArg(flag) }

// value is that of key=value, "" where there is none.
func (a args) value(key string) string {
	arg, ok := a.d.Arg(key)
	if !ok || len(arg.Vals) == 0 {
		return ""
	}
	return arg.Vals[0]
}

// use is the container that is meant: the first, or the companion.
func (a args) use() int {
	if a.has("companion") {
		return 1
	}
	return 0
}

func (a args) number(key string, otherwise int) int {
	text := a.value(key)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(a.t, err)
	return n
}

func (a args) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	must(a.t, err)
	return d
}

// mounts are the grants below the command, one a line:
//
//	files home/ada ada rw noexec
//
// A kind of "plain" is the empty one.
func (a args) mounts() string {
	var set []grant.Mount
	for line := range strings.Lines(a.d.Input) {
		f := strings.Fields(line)
		if len(f) < 4 {
			a.d.Fatalf(a.t, "not kind, source, target, mode: %s", line)
		}
		m := grant.Mount{Kind: grant.Kind(f[0]), Source: f[1], Target: f[2], Mode: grant.Mode(f[3]), AllowExec: len(f) == 4}
		if m.Kind == "plain" {
			m.Kind = grant.KindPlain
		}
		set = append(set, m)
	}
	text, err := grant.Encode(set)
	must(a.t, err)
	return text
}

type command struct {
	name string
	run  func(w *world, a args) []string
}

// commands is what a story can tell.
func commands() []command {
	return slices.Concat(podCommands(), containerCommands(), nodeCommands(), agentCommands(), questions())
}

// quiet is a command that prints nothing.
func quiet(name string, do func(w *world, a args)) command {
	return command{name, func(w *world, a args) []string { do(w, a); return nil }}
}

func podCommands() []command {
	return []command{
		quiet("pod", func(w *world, a args) {
			uid, name := a.uid(), a.value("name")
			if name == "" {
				name = uid
			}
			w.newPod(uid, name)
			if a.has("companion") {
				w.change(uid, func(p *plan.Pod) {
					second := p.Uses[0]
					second.Container = "companion"
					p.Uses = append(p.Uses, second)
				})
			}
			if a.has("disk") {
				w.change(uid, func(p *plan.Pod) { p.Volume.Memory = false })
			}
			if a.has("running") {
				w.makeVolume(uid)
				w.start(uid, "c1", 0, false)
			}
		}),
		quiet("grant", func(w *world, a args) { w.annotate(a.uid(), new(a.mounts())) }),
		quiet("annotate", func(w *world, a args) { w.annotate(a.uid(), new(a.d.Input)) }),
		quiet("ungrant", func(w *world, a args) { w.change(a.uid(), func(p *plan.Pod) { p.Grant = nil }) }),
		quiet("meanwhile", func(w *world, a args) {
			if a.has("deleted") {
				w.api.Meanwhile(w.api.Delete)
				return
			}
			text := a.mounts()
			w.api.Meanwhile(func(uid string) { w.annotate(uid, &text) })
		}),
		quiet("forge", func(w *world, a args) {
			text := a.d.Input
			w.change(a.uid(), func(p *plan.Pod) { p.Ready = &text })
		}),
		quiet("unanswer", func(w *world, a args) { w.change(a.uid(), func(p *plan.Pod) { p.Ready = nil }) }),
		quiet("terminate", func(w *world, a args) {
			grace := a.duration(a.value("grace"))
			w.change(a.uid(), func(p *plan.Pod) { p.Terminating, p.Grace = true, grace })
		}),
		quiet("finish", func(w *world, a args) {
			w.change(a.uid(), func(p *plan.Pod) { p.Finished, p.Uses[0].ID = true, "" })
		}),
		quiet("delete", func(w *world, a args) {
			w.api.Delete(a.uid())
			w.queue.event(a.uid())
		}),
		quiet("hide", func(w *world, a args) {
			w.api.Hide(a.uid(), true)
			w.queue.event(a.uid())
		}),
		quiet("unhide", func(w *world, a args) {
			w.api.Hide(a.uid(), false)
			w.queue.event(a.uid())
		}),
		quiet("api", func(w *world, a args) {
			w.api.Down(map[string]error{"up": nil, "down": errors.New("the API server does not answer")}[a.word(0)])
		}),
	}
}

// annotate writes a grant, and removes the old answer in the same step, as
// writers do.
func (w *world) annotate(uid string, text *string) {
	w.change(uid, func(p *plan.Pod) { p.Grant, p.Ready = text, nil })
}

func containerCommands() []command {
	return []command{
		quiet("start", func(w *world, a args) { w.start(a.uid(), a.word(1), a.use(), a.has("isolated")) }),
		quiet("sandbox", func(w *world, a args) { w.cast.enter(a.uid(), "sandbox", "", nil) }),
		quiet("stop", func(w *world, a args) {
			w.cast.exit(func(x *actor) bool { return x.uid == a.uid() && x.name == a.word(1) })
			w.change(a.uid(), func(p *plan.Pod) { p.Uses[a.use()].ID = "" })
		}),
		quiet("end", func(w *world, a args) { w.end(a.uid()) }),
		quiet("await", func(w *world, a args) { w.await(a.uid()) }),
		quiet("hold", func(w *world, a args) { w.cast.hold(w.actor(a.uid()), a.word(1)) }),
		quiet("let-go", func(w *world, a args) { w.cast.letGo(w.actor(a.uid()), a.word(1)) }),
		quiet("pin", func(w *world, a args) {
			x := w.actor(a.uid())
			w.cast.enter(a.uid(), "pin", x.Container, x.view.Pin())
		}),
		quiet("unpin", func(w *world, a args) {
			w.cast.exit(func(x *actor) bool { return x.uid == a.uid() && x.name == "pin" })
		}),
		quiet("blind", func(w *world, a args) { w.cast.setBlind(a.word(0) == "on", a.word(0) == "lost") }),
	}
}

// actor is the Pod's first process.
func (w *world) actor(uid string) *actor {
	w.t.Helper()
	x, ok := w.cast.find(uid, "")
	if !ok {
		w.t.Fatalf("no container of %s runs", uid)
	}
	return x
}

// await waits until somebody has asked for a pass over the Pod.
func (w *world) await(uid string) {
	w.t.Helper()
	for {
		asked := w.api.Enqueued()
		if w.api.Queued(uid) {
			w.queue.event(uid)
			return
		}
		select {
		case <-asked:
		case <-time.After(patience):
			w.t.Fatalf("nobody asks for a pass over %s", uid)
		}
	}
}

// errnos are the faults that a story can order.
func errnos() map[string]error {
	return map[string]error{"EIO": unix.EIO, "EPERM": unix.EPERM, "ENOMEM": unix.ENOMEM, "ENOSPC": unix.ENOSPC}
}

func nodeCommands() []command {
	return []command{
		quiet("node", func(w *world, a args) {
			if a.has("reboot") {
				w.boot()
				return
			}
			w.policy.MaxPerPod = a.number("max-per-pod", w.policy.MaxPerPod)
			w.policy.MaxPerNode = a.number("max-per-node", w.policy.MaxPerNode)
			w.startAgent()
		}),
		quiet("folder", func(w *world, a args) { w.must(os.MkdirAll(filepath.Join(w.claim, a.word(0)), 0o755)) }),
		quiet("rename", func(w *world, a args) {
			w.must(os.Rename(filepath.Join(w.claim, a.word(0)), filepath.Join(w.claim, a.word(1))))
		}),
		{"kubelet", func(w *world, a args) []string {
			uid := a.word(1)
			if a.word(0) == "volume" {
				w.makeVolume(uid)
				return nil
			}
			if err := w.table.Umount(w.volume(uid), false); err != nil {
				return []string{w.paths(err.Error())}
			}
			return nil
		}},
		quiet("fault", func(w *world, a args) {
			err, ok := errnos()[a.word(1)]
			if !ok {
				a.d.Fatalf(a.t, "one of %v", slices.Sorted(maps.Keys(errnos())))
			}
			for range a.number("times", 1) {
				w.table.FailNext(a.word(0), err)
			}
		}),
		quiet("disk", func(w *world, a args) {
			err, ok := disks()[a.word(0)]
			if !ok {
				a.d.Fatalf(a.t, "one of %v", slices.Sorted(maps.Keys(disks())))
			}
			w.disk.fail(err, a.number("after", 0))
		}),
		quiet("mount", func(w *world, a args) {
			place := w.place(a.word(0))
			w.must(os.MkdirAll(place, 0o755))
			w.table.MountDisk(place)
			w.moved(place)
		}),
		quiet("umount", func(w *world, a args) {
			place := w.place(a.word(0))
			w.must(w.table.Umount(place, a.has("lazy")))
			w.moved(place)
		}),
		quiet("advance", func(w *world, a args) { w.clock.Step(a.duration(a.word(0))) }),
	}
}

// place is a path as a story writes it: tree/u1/ada, volume/u1, claim/home.
func (w *world) place(p string) string {
	kind, rest, _ := strings.Cut(p, "/")
	switch kind {
	case "tree":
		return filepath.Join(w.root, "pods", rest)
	case "volume":
		return w.volume(rest)
	case "claim":
		return filepath.Join(w.claim, rest)
	}
	w.t.Fatalf("%s is in no part of the node that a story knows", p)
	return ""
}

func agentCommands() []command {
	return []command{
		{"pass", func(w *world, a args) []string { return w.tellPass(w.pass(a.uid())) }},
		{"run", func(w *world, a args) []string { return w.run(a.duration(a.word(0)), a.has("sweeping")) }},
		{"sweep", func(w *world, _ args) []string {
			w.sweep()
			return w.tellNews()
		}},
		quiet("agent", func(w *world, a args) {
			switch a.word(0) {
			case "stop":
				w.stopAgent()
			case "start", "restart":
				w.startAgent()
			case "dies":
				for _, when := range []string{"before", "after"} {
					if op := a.value(when); op != "" {
						w.death.await(when, op)
					}
				}
			default:
				a.d.Fatalf(a.t, "the agent cannot %s", a.word(0))
			}
		}),
		quiet("lose", func(w *world, a args) { w.must(os.Remove(filepath.Join(w.root, "journal", a.uid()+".json"))) }),
	}
}

// tooManyPasses in one run are an agent that never rests.
const tooManyPasses = 5000

// run lets time pass, and the agent work as its queue tells it to. It tells every
// pass in which something happened.
func (w *world) run(d time.Duration, sweeping bool) []string {
	w.t.Helper()
	var lines []string
	begin, answers, passes := w.clock.Now(), w.api.Answers(), 0
	end, sweep := begin.Add(d), begin.Add(agent.SweepInterval)
	tell := func(news []string) {
		for _, l := range news {
			lines = append(lines, fmt.Sprintf("+%v %s", w.clock.Since(begin).Round(time.Millisecond), l))
		}
	}
	for passes < tooManyPasses {
		uid, at, ok := w.queue.next()
		if sweeping && !sweep.After(end) && (!ok || at.After(sweep)) {
			w.clock.SetTime(sweep)
			w.sweep()
			tell(w.tellNews())
			sweep = sweep.Add(agent.SweepInterval)
			continue
		}
		if !ok || at.After(end) {
			w.clock.SetTime(end)
			return append(lines, fmt.Sprintf("%d passes, %d answers written", passes, w.api.Answers()-answers))
		}
		if at.After(w.clock.Now()) {
			w.clock.SetTime(at)
		}
		_, err := w.pass(uid)
		passes++
		tell(w.tellNews())
		if err != nil {
			tell([]string{"error: " + w.paths(err.Error())})
		}
	}
	w.t.Fatalf("%d passes in %s: the agent never rests\n%s", passes, d, strings.Join(lines, "\n"))
	return nil
}

// questions change nothing.
func questions() []command {
	return []command{
		{"answer", func(w *world, a args) []string { return w.tellAnswer(a.uid()) }},
		{"table", func(w *world, _ args) []string { return w.tellMounts() }},
		{"sees", func(w *world, a args) []string {
			name := ""
			if len(a.d.CmdArgs) > 1 {
				name = a.word(1)
			}
			x, ok := w.cast.find(a.uid(), name)
			if !ok {
				return []string{"it does not run"}
			}
			return w.tellView(x)
		}},
		{"folders", func(w *world, a args) []string { return w.tellFolders(a.uid()) }},
		{"journal", func(w *world, a args) []string { return w.tellJournal(a.uid()) }},
		{"metrics", func(w *world, _ args) []string { return w.tellMetrics() }},
		{"readyz", func(w *world, _ args) []string { return []string{cmp.Or(w.paths(w.agent.Fault()), "ready")} }},
		{"log", func(w *world, _ args) []string { return orNothing(w.log.take(w.paths)) }},
		{"patches", func(w *world, _ args) []string { return []string{strconv.Itoa(w.api.Answers())} }},
	}
}
