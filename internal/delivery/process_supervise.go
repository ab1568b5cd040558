package delivery

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

const (
	// stopGrace is how long a process that is told to end may take to store what was
	// written.
	stopGrace = 30 * time.Second
	// endPatience is how long the exit of a process may take to be known, once its
	// filesystem has stopped answering.
	endPatience = 2 * time.Second
	// firstUser is the uid of the first process: far from those of people, of services
	// and of the ranges that are given to user namespaces.
	firstUser = 2_000_000_000
)

// process is one filesystem's process. What changes is guarded by Process.mu.
type process struct {
	use, uid, target string
	kind             grant.Kind
	user             int
	id               string         // the keeper's, once it runs
	conn             mnt.Connection // of the filesystem; nil where it is not known
	finish           func()         // Run.End
	adoption         *adoption      // until it is taken over, where an earlier agent started it

	ended      chan struct{} // closed with it; nil before it runs
	exit       error         // why it ended
	hung       bool
	server     error        // what its server said when it was asked
	credential error        // why its credential cannot be used any more
	loss       func(string) // see OnLoss
	unstored   string       // what it said that it could not store when it ended
	deaths     int          // in a row
	since      time.Time    // when it began to serve
	retryAt    time.Time
}

// note is what the keeper keeps for a later agent.
type note struct {
	Dev    mnt.Dev `json:"dev"`
	Runner []byte  `json:"runner,omitempty"`
}

func (n note) encode() []byte {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // numbers and bytes
	}
	return b
}

func newCacheName() string { return strings.ToLower(rand.Text()) }

// comes makes the process that is to serve a mount.
func (d *Process) comes(uid string, m plan.Mount) *process {
	p := &process{use: useOf(uid, m.Target()), uid: uid, target: m.Target(), kind: m.Kind()}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.coming == nil {
		d.coming = make(map[string]*process)
	}
	d.coming[p.use] = p
	return p
}

// arrived says that p is not on its way any more. d.mu is held.
func (d *Process) arrived(p *process) {
	if d.coming[p.use] == p {
		delete(d.coming, p.use)
	}
}

// takeUser gives the process a uid that no other one on the node has.
func (d *Process) takeUser(p *process, children []keeper.Child) {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := make(map[int]bool, len(children))
	for _, c := range children {
		taken[c.UID] = true
	}
	p.user = firstUser
	for taken[p.user] || d.users[p.user] {
		p.user++
	}
	if d.users == nil {
		d.users = make(map[int]bool)
	}
	d.users[p.user] = true
}

// abandon gives up a process that did not come to serve.
func (d *Process) abandon(p *process) {
	d.mu.Lock()
	d.arrived(p)
	d.mu.Unlock()
	d.stop(p, 0)
	d.part(p)
}

// stop tells a process to end, and gives back what it has.
func (d *Process) stop(p *process, grace time.Duration) {
	d.mu.Lock()
	id, watched, ended := p.id, p.ended != nil, p.hasEnded()
	if p.hung {
		grace = 0
	}
	d.mu.Unlock()
	if !watched {
		d.release(p)
	}
	if id == "" || ended {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.Life), endPatience)
	defer cancel()
	if err := d.Keeper.Stop(ctx, id, grace); err != nil {
		// Tend ends it, when the keeper answers again.
		d.Log.Warn("ending a filesystem's process", "use", p.use, "child", id, "error", err)
	}
	if grace == 0 {
		d.sever(p)
	}
}

// sever ends the connection of a filesystem: a process that is stopped or hangs ends
// no call by itself. One that runs takes it for an unmount, and goes on to store what
// was written. It is never found by its device number here: its mount may have gone, and
// the number be that of another Pod's filesystem by now.
func (d *Process) sever(p *process) {
	d.mu.Lock()
	conn := p.conn
	d.mu.Unlock()
	if conn == nil {
		return
	}
	if err := conn.Abort(); err != nil {
		d.Log.Warn("aborting a filesystem's connection", "use", p.use, "error", err)
	}
}

// part closes what is held of a process's filesystem: there is nothing left to sever.
func (d *Process) part(p *process) {
	d.mu.Lock()
	conn := p.conn
	p.conn = nil
	d.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// release gives back what only one process can have.
func (d *Process) release(p *process) {
	d.mu.Lock()
	delete(d.users, p.user)
	finish := p.finish
	p.finish, p.user = nil, 0
	d.mu.Unlock()
	if finish != nil {
		finish()
	}
}

// watch notices the end of a process.
func (d *Process) watch(p *process, id string, pidfd *os.File) {
	d.mu.Lock()
	p.id, p.ended = id, make(chan struct{})
	d.mu.Unlock()
	d.await(p, pidfd)
}

func (d *Process) await(p *process, pidfd *os.File) {
	d.mu.Lock()
	if d.awaited == nil {
		d.awaited = make(map[string]bool)
	}
	d.awaited[p.id] = true
	d.mu.Unlock()
	go func() {
		err := procs.Ended(d.Life, pidfd)
		pidfd.Close()
		if d.Life.Err() != nil {
			return // the agent ends, and the process does not
		}
		if err != nil {
			d.Log.Error("watching a filesystem's process", "use", p.use, "error", err)
		}
		var exit *keeper.Exit
		_ = bug.Guard(d.Log, func() error { exit = d.exitOf(p.id); return nil }, "use", p.use)
		why := exitError(exit)
		d.mu.Lock()
		p.exit = why
		delete(d.awaited, p.id)
		if exit != nil && exit.Code == exitNotStored {
			p.unstored = lossOf(exit)
		}
		serves := d.running[p.use] == p
		told := p.loss
		if serves {
			p.died(d.Clock.Now())
		}
		close(p.ended)
		d.mu.Unlock()
		d.release(p)
		if serves {
			d.Log.Warn("a filesystem's process has ended", "use", p.use, "kind", p.kind, "why", why)
			d.News(p.uid)
		}
		if lost := lossOf(exit); lost != "" && told != nil {
			_ = bug.Guard(d.Log, func() error { told(lost); return nil }, "use", p.use)
		}
	}()
}

// died counts the death of a process that served, and says when the next one is
// due: at once after the first, soon after each later one.
func (p *process) died(now time.Time) {
	if now.Sub(p.since) > time.Minute {
		p.deaths = 0
	}
	pause := time.Duration(0)
	if p.deaths > 0 {
		pause = min(firstRestart<<min(p.deaths-1, 10), lastRestart)
	}
	p.deaths++
	p.retryAt = now.Add(pause)
}

const (
	// The pauses after a process that served has died again, the shortest and the longest.
	firstRestart = 250 * time.Millisecond
	lastRestart  = time.Second
	// The pauses after one did not come to serve.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// keeperRetry is short: a keeper that is replaced is away for a second or two.
	keeperRetry = 300 * time.Millisecond
)

// serves says that a mount of this process stands in the tree.
func (d *Process) serves(p *process) {
	d.mu.Lock()
	p.since = d.Clock.Now()
	old := d.running[p.use]
	if old != nil {
		p.deaths = old.deaths
	}
	d.arrived(p)
	d.put(p)
	ended := p.hasEnded() // between its first answer and now
	if ended {
		p.died(d.Clock.Now())
	}
	d.mu.Unlock()
	if old != nil {
		d.part(old)
	}
	if ended {
		d.News(p.uid)
	}
}

// NotRestored keeps a dead mount known as dead, and puts off the next try.
func (d *Process) NotRestored(uid, target string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.running[useOf(uid, target)]
	if p == nil {
		return
	}
	_, why := Explain(err)
	p.exit = &ProcessError{grant.CodeMountDead, "the filesystem's process has ended, and another one did not come to serve: " + why}
	pause := keeperRetry
	if !errors.Is(err, ErrNoKeeper) {
		p.deaths++
		pause = min(firstRetry<<min(p.deaths-1, 10), lastRetry)
	}
	p.retryAt = d.Clock.Now().Add(pause)
}

// take is the process of a mount that stands no more.
func (d *Process) take(uid, target string) *process {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.running[useOf(uid, target)]
	delete(d.running, useOf(uid, target))
	return p
}

// asked records whether a process answered when it was asked, and what its server said.
func (d *Process) asked(uid, target string, hung bool, server error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.running[useOf(uid, target)]; p != nil {
		p.hung, p.server = hung, server
	}
}

// gone tells whether there is nobody to ask: the process has ended, or it is not known
// yet whether it runs.
func (d *Process) gone(uid, target string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.running[useOf(uid, target)]
	return p == nil && d.Keeper != nil && !d.recovered || p != nil && (p.hasEnded() || p.adoption != nil)
}

// credential is told what becomes of the credential of a process.
func (d *Process) credential(p *process, err error) {
	d.mu.Lock()
	changed := (p.credential == nil) != (err == nil) || err != nil && err.Error() != p.credential.Error()
	p.credential = err
	if changed {
		p.server = nil // what it said with the credential before
	}
	known := d.running[p.use] == p
	d.mu.Unlock()
	if changed && known {
		d.News(p.uid)
	}
}

// Fault says what is wrong with a standing mount, nil where nothing is known to be.
func (d *Process) Fault(uid, target string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.running[useOf(uid, target)]
	if p == nil {
		if d.Keeper != nil && !d.recovered {
			return ErrNotRecovered
		}
		return nil
	}
	switch {
	case p.hasEnded():
		return p.exit
	case p.adoption != nil:
		return ErrNotAdopted
	case p.hung:
		return errHung
	case p.credential != nil:
		return &ProcessError{grant.CodeMountDead, "nothing new can be read or written: " + p.credential.Error()}
	case p.server != nil:
		return serverFault(p.server)
	}
	return nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Restorable tells whether the process of a standing mount has ended and none is on its
// way, and when it is to be started anew.
func (d *Process) Restorable(uid, target string) (at time.Time, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.running[useOf(uid, target)]
	l := d.launches[useOf(uid, target)]
	if p == nil || !p.hasEnded() || l != nil && !l.ended() {
		return time.Time{}, false
	}
	return p.retryAt, true
}
