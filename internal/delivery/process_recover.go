package delivery

import (
	"context"
	"encoding/json"
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
// Until it has succeeded, nothing is started. standing says what stands now: the keeper
// may answer long after the agent started, and what was taken away meanwhile is to keep
// no process. Errors: ErrNoKeeper.
func (d *Process) Recover(ctx context.Context, standing func() []Standing) error {
	if d.Keeper == nil || d.ready() {
		return nil
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
		c, ok := serving[useOf(s.UID, s.Target)+" "+s.Dev.String()]
		if ok && d.adopt(ctx, s, c, info) == nil {
			continue
		}
		d.missing(s)
	}
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
	return nil
}

func noteOf(c keeper.Child) note {
	var n note
	_ = json.Unmarshal(c.Note, &n) // one that is not ours is nobody's
	return n
}

// adopt goes on watching a process.
func (d *Process) adopt(ctx context.Context, s Standing, c keeper.Child, info keeper.Info) error {
	p := &process{
		use: c.Use, uid: s.UID, target: s.Target, kind: s.Kind, user: c.UID, dev: s.Dev, since: d.Clock.Now(),
	}
	runner := d.Runners[s.Kind]
	if runner == nil {
		return errNoRunner
	}
	pidfd, err := d.Keeper.Pidfd(ctx, c.ID)
	if err != nil {
		return err
	}
	p.finish, err = runner.Resume(ctx, noteOf(c).Runner, s.Secret, Place{Info: info}, func(err error) { d.credential(p, err) })
	if err != nil {
		pidfd.Close()
		d.Log.Warn("taking over a filesystem's process", "use", c.Use, "error", err)
		return err
	}
	d.mu.Lock()
	d.put(p)
	d.mu.Unlock()
	d.watch(p, c.ID, pidfd)
	d.Log.Info("took over a filesystem's process", "use", c.Use, "child", c.ID)
	return nil
}

var errNoRunner = &ProcessError{grant.CodeProcessUnsupported, "this agent runs no filesystem process of this kind"}

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

// missing is a standing mount that no process serves.
func (d *Process) missing(s Standing) {
	p := &process{use: useOf(s.UID, s.Target), uid: s.UID, target: s.Target, kind: s.Kind, dev: s.Dev, ended: make(chan struct{})}
	p.exit = &ProcessError{grant.CodeMountDead, "the filesystem's process has ended while no agent watched it: another one is started"}
	close(p.ended)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(p)
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
		if d.wanted(c) {
			continue
		}
		if c.Ended != nil {
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
