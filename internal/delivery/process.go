package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Keeper runs processes that outlive the agent. *keeper.Client is one.
type Keeper interface {
	List(ctx context.Context) (keeper.Info, []keeper.Child, error)
	Start(ctx context.Context, s keeper.Start) (keeper.Info, keeper.Child, *os.File, error)
	Pidfd(ctx context.Context, id string) (*os.File, error)
	Child(ctx context.Context, id string) (keeper.Child, error)
	Stop(ctx context.Context, id string, grace time.Duration) error
	Forget(ctx context.Context, id string) error
}

var _ Keeper = (*keeper.Client)(nil)

// Runner says how the filesystems of a kind are run.
type Runner interface {
	// Prepare looks at a grant and its Secret, before anything is made, and says what
	// is to be run. tell hears what becomes of the credential afterwards: nil while it
	// can be used, and else why not.
	Prepare(ctx context.Context, m plan.Mount, c Credential, at Place, tell func(error)) (*Run, error)
	// Resume goes on serving a process that an earlier agent started with this note.
	Resume(ctx context.Context, note []byte, ref secret.Ref, at Place, tell func(error)) (end func(), err error)
}

// Place is where a process will run.
type Place struct {
	keeper.Info
	// Cache is a folder of its own that the process may write to, "" where there is none.
	Cache string
}

// Run is a process to be. Its descriptor 3 is the FUSE device. It answers no request
// before it has found what it serves, and STATFS by asking its server, within seconds
// and with an error where that does not answer.
type Run struct {
	Name      string   // what the filesystem is called: fuse.NAME
	Program   string   // a file of the agent's image
	Args, Env []string // Args[0] is the program's name
	Files     []*os.File
	Memory    int64 // resident bytes it may have, 0 for no limit
	// Note is what an agent that comes later needs for Resume. It may hold a secret
	// that is worth nothing elsewhere.
	Note []byte
	// End is called once: the process has ended, or was never started.
	End func()
}

// Process delivers kinds whose filesystem is a process: buckets. The agent makes the
// mount and hands the FUSE device to a process that the keeper runs, so that neither
// a crash nor a rollout of the agent is seen in a sandbox.
//
// How it is undone: by one umount, then the process is told to end, and has a while
// to store what was written. Who still has a file open after a revocation that could
// not wait has an error, and nothing else: the connection is aborted.
//
// What an agent finds that was killed in the middle: a process without a mount,
// which is ended; or a mount attached nowhere, which is gone.
//
// What the sandbox sees when the process ends: EIO or ENOTCONN, never an empty
// folder. The mount stands until another process has answered on another mount,
// which then takes its place.
type Process struct {
	Table   mnt.Table
	Keeper  Keeper // nil: this agent runs none
	Runners map[grant.Kind]Runner
	// Bound is how long a filesystem may take for its first answer, and Hung for every
	// later one.
	Bound, Hung time.Duration
	Budget      *deadline.Budget
	Clock       clock.Clock
	Log         *slog.Logger
	// Life is the agent's.
	Life context.Context //nolint:containedctx // see above
	// News is told the Pod of which a process has ended, or a credential has changed.
	News func(uid string)

	mu        sync.Mutex
	recovered bool
	// running are the processes of mounts that stand, also those that have ended;
	// coming are those that have not come to serve yet. Both by use.
	running, coming map[string]*process
	users           map[int]bool       // uids that are taken
	awaited         map[string]bool    // the keeper's ids of those whose end will be asked for
	launches        map[string]*launch // by use
	launching       sync.WaitGroup
}

var _ Delivery = (*Process)(nil)

// Errors of Process.
var (
	// ErrNoKeeper: there is nobody who would run the process.
	ErrNoKeeper = errors.New("the keeper, which runs filesystem processes on this node, does not answer")
	// ErrNotRecovered: the agent has just started, and has not heard from the keeper
	// which processes run.
	ErrNotRecovered = errors.New("the agent has not heard from the keeper yet which processes run")
)

// ProcessError says why a process does not serve.
type ProcessError struct {
	Code   grant.Code
	Reason string
}

func (e *ProcessError) Error() string { return e.Reason }

// Deliver implements Delivery. The mount point is made last: until then the sandbox
// never sees an empty folder. Beside the errors of Delivery it has ErrUnderway.
func (d *Process) Deliver(_ context.Context, tree *beneath.Dir, m plan.Mount, c Credential) (mnt.Record, error) {
	d.end(podOf(tree), m.Target()) // a mount that stands is never delivered again
	made, p, err := d.launched(podOf(tree), m, c)
	if err != nil {
		return mnt.Record{}, err
	}
	defer made.Close()
	rec, err := d.attach(tree, m, made)
	if err != nil {
		d.abandon(p)
		return mnt.Record{}, err
	}
	d.serves(p)
	return rec, nil
}

func (d *Process) attach(tree *beneath.Dir, m plan.Mount, made mnt.Detached) (mnt.Record, error) {
	target, err := mountPoint(tree, m.Target())
	if err != nil {
		return mnt.Record{}, err
	}
	defer target.Close()
	return d.Table.Attach(made, target)
}

// Restore starts the process of a mount anew whose own has ended. The new
// filesystem has answered before it takes the place of the dead one. Errors:
// ErrUnderway, as of Deliver.
func (d *Process) Restore(tree *beneath.Dir, m plan.Mount, c Credential) (mnt.Record, error) {
	made, p, err := d.launched(podOf(tree), m, c)
	if errors.Is(err, ErrUnderway) {
		return mnt.Record{}, err
	}
	if err != nil {
		d.NotRestored(podOf(tree), m.Target(), err)
		return mnt.Record{}, err
	}
	defer made.Close()
	rec, err := d.Table.Swap(made, tree, m.Target())
	if err != nil {
		d.abandon(p)
		d.NotRestored(podOf(tree), m.Target(), err)
		return mnt.Record{}, err
	}
	d.serves(p)
	return rec, nil
}

// launch makes a mount that is attached nowhere, and starts the process that serves
// it. When it returns without an error, the filesystem has answered.
func (d *Process) launch(ctx context.Context, uid string, m plan.Mount, c Credential) (mnt.Detached, *process, error) {
	runner := d.Runners[m.Kind()]
	if d.Keeper == nil || runner == nil {
		return nil, nil, &ProcessError{grant.CodeProcessUnsupported, "this agent runs no filesystem process for the kind " + string(m.Kind())}
	}
	if !d.ready() {
		return nil, nil, ErrNotRecovered
	}
	p := d.comes(uid, m)
	made, err := d.start(ctx, p, runner, m, c)
	if err != nil {
		d.abandon(p)
		return nil, nil, err
	}
	err = d.answers(ctx, made, p)
	if err != nil {
		err = d.explainEnd(ctx, p, err)
		d.abandon(p)
		made.Close()
		return nil, nil, err
	}
	return made, p, nil
}

func (d *Process) start(ctx context.Context, p *process, runner Runner, m plan.Mount, c Credential) (mnt.Detached, error) {
	info, children, err := d.Keeper.List(ctx)
	if err != nil {
		return nil, noKeeper(err)
	}
	d.takeUser(p, children)
	at := Place{Info: info}
	cache := ""
	if info.CacheRoot != "" {
		cache = newCacheName()
		at.Cache = info.CacheRoot + "/" + cache
	}
	run, err := runner.Prepare(ctx, m, c, at, func(err error) { d.credential(p, err) })
	if err != nil {
		return nil, err
	}
	p.finish = run.End
	defer closeAll(run.Files)
	fs, device, err := mnt.FUSE(run.Name, m.Source())
	if err != nil {
		return nil, err
	}
	defer device.Close()
	fs.ReadOnly = m.ReadOnly()
	made, err := d.Table.Mount(fs, flags(m))
	if err != nil {
		return nil, err
	}
	if err := d.hand(ctx, p, made, run, device, cache); err != nil {
		made.Close()
		return nil, err
	}
	return made, nil
}

// hand gives the device of a mount to a new process.
func (d *Process) hand(ctx context.Context, p *process, made mnt.Detached, run *Run, device *os.File, cache string) error {
	place, err := d.placeOf(made)
	if err != nil {
		return err
	}
	if p.conn, err = d.Table.Connection(place.Dev); err != nil {
		return err
	}
	program, err := os.Open(run.Program)
	if err != nil {
		return &ProcessError{grant.CodeProcessUnsupported, "the agent's image has no " + run.Program}
	}
	defer program.Close()
	_, child, pidfd, err := d.Keeper.Start(ctx, keeper.Start{
		Use: p.use, Note: note{Dev: place.Dev, Runner: run.Note}.encode(), Args: run.Args, Env: run.Env, UID: p.user, GID: p.user,
		Memory: run.Memory, CacheName: cache, Program: program, Files: append([]*os.File{device}, run.Files...),
	})
	if err != nil {
		return noKeeper(err)
	}
	d.watch(p, child.ID, pidfd)
	return nil
}

func (d *Process) placeOf(made mnt.Detached) (mnt.Place, error) {
	root, err := made.Root()
	if err != nil {
		return mnt.Place{}, err
	}
	defer root.Close()
	return d.Table.At(root)
}

// answers asks a mount that is attached nowhere yet for what its process and, behind it,
// its server answer. The names in it are not asked for: there may be so many that it
// takes minutes, and a Runner's program answers nothing before it has found its source.
func (d *Process) answers(ctx context.Context, made mnt.Detached, p *process) error {
	root, err := made.Root()
	if err != nil {
		return err
	}
	_, err = deadline.Do(ctx, d.Budget, d.Bound, func() (struct{}, error) {
		defer root.Close()
		return struct{}{}, errors.Join(proof.Asks(root), proof.AsksServer(root))
	}, nil, deadline.Key{Name: "process:" + p.use, Limit: 1})
	if errors.Is(err, deadline.ErrHung) {
		err = &ProcessError{grant.CodeMountFailed, fmt.Sprintf("the filesystem did not answer within %s", d.Bound)}
	}
	return err
}

// Undo implements Delivery.
func (d *Process) Undo(ctx context.Context, tree *beneath.Dir, target string, detach bool) error {
	d.Abandon(podOf(tree), target)
	err := patient{d.Table, d.Budget, d.Bound}.unmount(ctx, tree, target, detach)
	if err != nil && !detach {
		return err
	}
	if p := d.take(podOf(tree), target); p != nil {
		d.stop(p, stopGrace)
		if detach {
			d.sever(p)
		}
		d.part(p)
	}
	return err
}

// Unused implements Releaser.
func (d *Process) Unused(uid, target string) {
	d.Abandon(uid, target)
	d.end(uid, target)
}

// end ends the process of a mount that stands no more, where there is one.
func (d *Process) end(uid, target string) {
	if p := d.take(uid, target); p != nil {
		d.stop(p, stopGrace)
		d.part(p)
	}
}

// Severs implements Severer: the process ends, and the connection is aborted.
func (*Process) Severs() {}

// Usable implements Delivery: without a keeper a node serves every other kind.
func (d *Process) Usable(context.Context) error { return nil }

// Alive implements Delivery. It asks the process, and not what the kernel remembers
// of its answers, and then through it the server. The two are told apart: a process
// that hangs is killed when it is revoked, and one that waits for its server is not.
// Each process is a filesystem of its own, and shares nothing that could hang.
func (d *Process) Alive(ctx context.Context, tree *beneath.Dir, target string, _ ...deadline.Key) error {
	uid, mount := podOf(tree), patient{d.Table, d.Budget, d.Hung}
	if d.gone(uid, target) {
		return d.Fault(uid, target)
	}
	err := mount.ask(ctx, "mount:", tree, target, proof.Asks)
	var server error
	if err == nil {
		server = mount.ask(ctx, "server:", tree, target, proof.AsksServer)
	}
	if ctx.Err() != nil {
		return ctx.Err() // nobody has waited for the answer
	}
	d.asked(uid, target, errors.Is(err, deadline.ErrHung), server)
	if err != nil && !errors.Is(err, deadline.ErrHung) {
		return err
	}
	return d.Fault(uid, target)
}

var errHung = &ProcessError{grant.CodeMountDead, "the filesystem's process runs and does not answer: calls into the mount wait: revoke the grant and grant it again if it stays so"}

// serverFault says that a process answers and its server does not.
func serverFault(err error) error {
	why := "it does not answer"
	if !errors.Is(err, deadline.ErrHung) {
		why = reason(err)
	}
	return &ProcessError{grant.CodeMountDead, "the filesystem's process runs, and cannot reach what it serves: " + why + ": see whether its server runs and its credential is good; it goes on by itself then"}
}

// explainProcess is Explain for processes, "" for other errors.
func explainProcess(err error) (grant.Code, string) {
	if why, ok := errors.AsType[*ProcessError](err); ok {
		return why.Code, why.Reason
	}
	if errors.Is(err, ErrNoKeeper) {
		return grant.CodeMountFailed, ErrNoKeeper.Error() + ": see whether its Pod runs there; the agent goes on trying"
	}
	if errors.Is(err, ErrNotAdopted) {
		return grant.CodeNotReady, ErrNotAdopted.Error() + ": it runs on, and the agent goes on trying"
	}
	if errors.Is(err, ErrNotRecovered) {
		return grant.CodeNotReady, ErrNotRecovered.Error()
	}
	return "", ""
}

func noKeeper(err error) error {
	if errors.Is(err, keeper.ErrUnavailable) {
		return errors.Join(ErrNoKeeper, err)
	}
	return &ProcessError{grant.CodeMountFailed, "the keeper did not start the filesystem's process: " + reason(err)}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
