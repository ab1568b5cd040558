package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Standing is a mount that an agent finds when it starts, of a kind that is a process.
type Standing struct {
	UID, Target string
	Kind        grant.Kind
	Dev         mnt.Dev
	Secret      secret.Ref // without a name: none
}

// connection opens the connection of a standing mount, nil where that cannot be done: the
// mount is served all the same.
func (d *Process) connection(s Standing) mnt.Connection {
	conn, err := d.Table.Connection(s.Dev)
	if err != nil {
		d.Log.Warn("opening a filesystem's connection", "pod", s.UID, "target", s.Target, "error", err)
		return nil
	}
	return conn
}

// ready tells whether it is known which processes run.
func (d *Process) ready() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.recovered
}

// Recovering tells whether the keeper has not said yet which processes run.
func (d *Process) Recovering() bool { return d.Keeper != nil && !d.ready() }

// Recover takes over the processes that an earlier agent started. Those that serve
// nothing that stands are ended; mounts that nobody serves are known to be dead.
// Until the keeper has answered, nothing is started. standing says what stands now: the
// keeper may answer long after the agent started, and what was taken away meanwhile is to
// keep no process.
//
// Errors: ErrNoKeeper, and ErrNotAdopted where the processes of some mounts run and could
// not be taken over. These are left as they are, and Recover is to be called again.
func (d *Process) Recover(ctx context.Context, standing func() []Standing) error {
	if d.Keeper == nil {
		return nil
	}
	if d.ready() {
		return d.adoptAgain(ctx)
	}
	info, children, err := d.Keeper.List(ctx)
	if err != nil {
		return noKeeper(err)
	}
	serving := make(map[string]keeper.Child)
	for _, c := range children {
		if c.Ended == nil {
			serving[c.Use+" "+noteOf(c).Dev.String()] = c
		}
	}
	found := standing()
	for _, s := range found {
		p := unserved(s)
		if c, ok := serving[useOf(s.UID, s.Target)+" "+s.Dev.String()]; ok {
			p = d.found(s, c, info)
		}
		// The number is the mount's own while that stands, which is looked at again below.
		p.conn = d.connection(s)
		d.mu.Lock()
		d.put(p)
		d.mu.Unlock()
	}
	err = d.adoptAgain(ctx)
	d.mu.Lock()
	d.recovered = true
	d.mu.Unlock()
	// What went while it was taken over found nothing to end.
	now := standing()
	for _, s := range found {
		if !slices.Contains(now, s) {
			d.Unused(s.UID, s.Target)
		}
	}
	d.Tend(ctx)
	return err
}

func noteOf(c keeper.Child) note {
	var n note
	_ = json.Unmarshal(c.Note, &n) // one that is not ours is nobody's
	return n
}

// ErrNotAdopted: a process runs, and this agent could not take it over yet.
var ErrNotAdopted = errors.New("the agent has not taken over the filesystem's process yet")

// adoption is a process that an earlier agent started, until it is taken over.
type adoption struct {
	standing Standing
	child    keeper.Child
	info     keeper.Info
}

// found is a process that serves a mount, and is to be taken over.
func (d *Process) found(s Standing, c keeper.Child, info keeper.Info) *process {
	return &process{
		use: c.Use, uid: s.UID, target: s.Target, kind: s.Kind, user: c.UID, id: c.ID, since: d.Clock.Now(),
		adoption: &adoption{standing: s, child: c, info: info},
	}
}

// adoptAgain takes over what has been found and not been taken over yet. A mount is dead
// only where the keeper says that its process has ended: an answer that was lost says
// nothing, and a process that was ended for it would take the tenant's open files along.
func (d *Process) adoptAgain(ctx context.Context) error {
	var failed error
	again := d.ready() // passes over their Pods have been made
	for _, p := range d.unadopted() {
		err := d.adopt(ctx, p)
		switch {
		case err == nil:
		case errors.Is(err, keeper.ErrEnded) || errors.Is(err, keeper.ErrUnknownChild):
			d.lost(p)
		default:
			d.Log.Warn("taking over a filesystem's process: it is left as it is", "use", p.use, "child", p.id, "error", err)
			failed = errors.Join(failed, fmt.Errorf("%w: %s: %w", ErrNotAdopted, p.use, err))
			if errors.Is(err, keeper.ErrUnavailable) {
				// Nor does it answer for the others, and each would wait as long.
				return errors.Join(failed, ErrNoKeeper)
			}
			continue
		}
		if again {
			d.News(p.uid)
		}
	}
	return failed
}

func (d *Process) unadopted() []*process {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*process
	for _, p := range d.running {
		if p.adoption != nil {
			all = append(all, p)
		}
	}
	return all
}

// adopt goes on watching a process.
func (d *Process) adopt(ctx context.Context, p *process) error {
	a := p.adoption
	runner := d.Runners[p.kind]
	if runner == nil {
		return errNoRunner
	}
	pidfd, err := d.Keeper.Pidfd(ctx, p.id)
	if err != nil {
		return err
	}
	finish, err := runner.Resume(ctx, noteOf(a.child).Runner, a.standing.Secret, Place{Info: a.info}, func(err error) { d.credential(p, err) })
	if err != nil {
		pidfd.Close()
		return err
	}
	d.mu.Lock()
	taken := d.running[p.use] != p // its mount was taken away meanwhile, and it was told to end
	if !taken {
		p.adoption, p.finish, p.ended = nil, finish, make(chan struct{})
	}
	d.mu.Unlock()
	if taken {
		pidfd.Close()
		finish()
		return nil
	}
	d.await(p, pidfd)
	d.Log.Info("took over a filesystem's process", "use", p.use, "child", p.id)
	return nil
}

var errNoRunner = &ProcessError{grant.CodeProcessUnsupported, "this agent runs no filesystem process of this kind"}

// lost says that a process has ended before it was taken over.
func (d *Process) lost(p *process) {
	d.mu.Lock()
	if d.running[p.use] == p {
		dead := unserved(p.adoption.standing)
		dead.conn, p.conn = p.conn, nil
		d.put(dead)
	}
	d.mu.Unlock()
	d.release(p)
}

// put makes p the one that serves its mount. d.mu is held.
func (d *Process) put(p *process) {
	if d.running == nil {
		d.running = make(map[string]*process)
	}
	if d.users == nil {
		d.users = make(map[int]bool)
	}
	d.running[p.use] = p
	if p.user != 0 {
		d.users[p.user] = true
	}
}

// unserved is a standing mount that no process serves.
func unserved(s Standing) *process {
	p := &process{use: useOf(s.UID, s.Target), uid: s.UID, target: s.Target, kind: s.Kind, ended: make(chan struct{})}
	p.exit = &ProcessError{grant.CodeMountDead, "the filesystem's process has ended while no agent watched it: another one is started"}
	close(p.ended)
	return p
}

// Tend ends the processes that serve nothing: of a start that an agent did not live
// to see the end of, or of a revocation that did not reach the keeper.
func (d *Process) Tend(ctx context.Context) {
	if d.Keeper == nil || !d.ready() {
		return
	}
	_, children, err := d.Keeper.List(ctx)
	if err != nil {
		return
	}
	for _, c := range children {
		if d.wanted(c) || c.Ended != nil && d.isAwaited(c.ID) {
			continue
		}
		if c.Ended != nil {
			if c.Ended.Code == exitNotStored { // an earlier agent took its mount away
				d.Log.Error("content is lost", "use", c.Use, "why", lossOf(c.Ended))
			}
			err = d.Keeper.Forget(ctx, c.ID)
		} else {
			d.Log.Info("ending a process that serves nothing", "use", c.Use, "child", c.ID)
			err = d.Keeper.Stop(ctx, c.ID, stopGrace)
		}
		if err != nil {
			d.Log.Warn("ending a process that serves nothing", "use", c.Use, "child", c.ID, "error", err)
		}
	}
}

// wanted tells whether a child serves a mount, or is about to.
func (d *Process) wanted(c keeper.Child) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.running[c.Use]
	return d.coming[c.Use] != nil || p != nil && p.id == c.ID
}

// isAwaited tells whether somebody is about to ask how a child ended.
func (d *Process) isAwaited(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.awaited[id]
}
