package system_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
)

// The environment of a process that is an agent.
const (
	roleEnv  = "NODE_MOUNTS_TEST_AGENT" // this process is one
	dieEnv   = "NODE_MOUNTS_DIE"        // "before:Bind:2": where it kills itself, "" nowhere
	armEnv   = "NODE_MOUNTS_DIE_WHEN"   // a file: calls count for that once it exists, "" always
	traceEnv = "NODE_MOUNTS_TRACE"      // a file that gets a line for each call
	bootEnv  = "NODE_MOUNTS_BOOT_ID"    // "" for the node's
	watchEnv = "NODE_MOUNTS_WATCH"      // its system calls are told of as well
	bindsEnv = "NODE_MOUNTS_BINDS"      // "from:to,…", made in its namespace first
)

// agentRole is node-mounts-agent with its own flags, made of the same parts, each
// of which tells the tracer of its calls.
func agentRole() int {
	w, err := newTracer(os.Getenv(traceEnv), os.Getenv(dieEnv), os.Getenv(armEnv))
	if err == nil {
		err = bindAll(os.Getenv(bindsEnv))
	}
	if err == nil && os.Getenv(watchEnv) != "" {
		err = watchCalls(w)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return agentcmd.Main("system-test", os.Args[1:], os.Stdout, os.Stderr, func(cfg *agent.Config) error {
		if id := os.Getenv(bootEnv); id != "" {
			cfg.BootID = id
		}
		store, err := journal.Open(filepath.Join(cfg.Root, "journal"))
		if err != nil {
			return err
		}
		cfg.Journal, cfg.Table, cfg.API = tracedJournal{store, w}, tracedTable{cfg.Table, w, newWritten(cfg, w)}, tracedAPI{cfg.API, w}
		return nil
	})
}

// bindAll makes the namespace of an agent whose Pod mounts host paths that lie in
// one another, or one of them twice.
func bindAll(list string) error {
	for pair := range strings.SplitSeq(list, ",") {
		from, to, ok := strings.Cut(pair, ":")
		if !ok {
			continue
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s on %s: %w", from, to, err)
		}
	}
	return nil
}

// armedCall is before a call's name in the second line of one that counts.
const armedCall = "armed "

// tracer writes down each call and ends the process at one of them.
type tracer struct {
	file *os.File

	when, op string
	nth      int
	arm      string

	mu    sync.Mutex
	calls map[string]int
}

func newTracer(path, die, arm string) (*tracer, error) {
	w := &tracer{arm: arm, calls: make(map[string]int)}
	if die != "" {
		parts := strings.Split(die, ":")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s=%q", dieEnv, die)
		}
		var err error
		w.when, w.op = parts[0], parts[1]
		if w.nth, err = strconv.Atoi(parts[2]); err != nil {
			return nil, err
		}
	}
	var err error
	w.file, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return w, err
}

// around makes the call that it was given, unless the process dies before it.
func (w *tracer) around(op string, call func() error) error {
	w.mu.Lock()
	line := op + "\n"
	if w.armed() {
		w.calls[op]++
		if w.arm != "" {
			line += armedCall + op + "\n"
		}
	}
	here := op == w.op && w.calls[op] == w.nth
	_, err := w.file.WriteString(line)
	w.mu.Unlock()
	if here && w.when == "before" {
		die()
	}
	err = errors.Join(err, call())
	if here && w.when == "after" {
		die()
	}
	return err
}

func (w *tracer) armed() bool {
	if w.arm == "" {
		return true
	}
	_, err := os.Lstat(w.arm)
	return err == nil
}

// die is what the kernel, the OOM killer or a rollout does to an agent: nothing
// of it runs any more, and nothing was put in order.
func die() {
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	select {}
}

type tracedJournal struct {
	agent.Journal
	w *tracer
}

func (j tracedJournal) Save(p *journal.Pod) error {
	return j.w.around("Save", func() error { return j.Journal.Save(p) })
}

func (j tracedJournal) Remove(uid string) error {
	return j.w.around("Remove", func() error { return j.Journal.Remove(uid) })
}

type tracedTable struct {
	mnt.Table
	w       *tracer
	written written
}

func (t tracedTable) NewTree(on *beneath.Dir) (rec mnt.Record, err error) {
	t.written.tree(on)
	err = t.w.around("NewTree", func() (err error) { rec, err = t.Table.NewTree(on); return err })
	return rec, err
}

func (t tracedTable) Publish(tree, volume *beneath.Dir) (rec mnt.Record, err error) {
	t.written.publication(tree)
	err = t.w.around("Publish", func() (err error) { rec, err = t.Table.Publish(tree, volume); return err })
	return rec, err
}

func (t tracedTable) Bind(source, target *beneath.Dir, flags mnt.Flags) (rec mnt.Record, err error) {
	t.written.grant(target)
	err = t.w.around("Bind", func() (err error) { rec, err = t.Table.Bind(source, target, flags); return err })
	return rec, err
}

func (t tracedTable) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	t.written.unmount(dir, name)
	return t.w.around("Unmount", func() error { return t.Table.Unmount(dir, name, lazy) })
}

func (t tracedTable) List() (mounts []mnt.Mount, err error) {
	err = t.w.around("List", func() (err error) { mounts, err = t.Table.List(); return err })
	return mounts, err
}

type tracedAPI struct {
	agent.API
	w *tracer
}

func (a tracedAPI) Answer(ctx context.Context, pod plan.Pod, ready *string) error {
	return a.w.around("Answer", func() error { return a.API.Answer(ctx, pod, ready) })
}

func (a tracedAPI) Confirm(ctx context.Context, ref plan.Ref) (pod plan.Pod, found bool, err error) {
	err = a.w.around("Confirm", func() (err error) { pod, found, err = a.API.Confirm(ctx, ref); return err })
	return pod, found, err
}
