package delivery

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// launch is a process on its way, for one grant of one Pod. It runs beside the passes: a
// keeper or a server that does not answer holds up nobody else. It ends by itself, within
// the keeper's patience and Process.Bound.
type launch struct {
	uid      string
	target   string
	identity plan.Identity
	data     secret.Data // that it is started with
	cancel   context.CancelFunc
	left     bool // nobody looks at it: News has to be told
	unwanted bool // nobody will: what it comes to is taken down
	done     chan struct{}
	// Set before done is closed. The mount is attached nowhere, and has answered.
	made mnt.Detached
	p    *process
	err  error
}

func (l *launch) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// launched is the mount of m, attached nowhere, and the process that serves it. What an
// earlier pass has begun is gone on with. Errors: ErrUnderway, and News is told the Pod
// when it has ended.
func (d *Process) launched(uid string, m plan.Mount, c Credential) (mnt.Detached, *process, error) {
	l := d.begin(uid, m, c)
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !l.ended() || l.unwanted {
		l.left = true
		return nil, nil, ErrUnderway
	}
	if d.launches[useOf(uid, m.Target())] == l {
		delete(d.launches, useOf(uid, m.Target()))
	}
	return l.made, l.p, l.err
}

// begin launches the process, or joins what an earlier pass has begun.
func (d *Process) begin(uid string, m plan.Mount, c Credential) *launch {
	use := useOf(uid, m.Target())
	d.mu.Lock()
	l := d.launches[use]
	d.mu.Unlock()
	if l != nil && l.identity == m.Identity() && !l.outdated(c.Data) {
		return l
	}
	d.Abandon(uid, m.Target())
	ctx, cancel := context.WithCancel(d.Life)
	l = &launch{uid: uid, target: m.Target(), identity: m.Identity(), data: c.Data, cancel: cancel, done: make(chan struct{})}
	d.mu.Lock()
	if d.launches == nil {
		d.launches = make(map[string]*launch)
	}
	d.launches[use] = l
	d.launching.Add(1)
	d.mu.Unlock()
	go func() {
		defer d.launching.Done()
		defer cancel()
		var made mnt.Detached
		var p *process
		err := bug.Guard(d.Log, func() (err error) {
			made, p, err = d.launch(ctx, uid, m, c)
			return err
		}, "use", use)
		d.came(l, made, p, err)
	}()
	return l
}

// outdated tells whether it has failed with a Secret that is another one by now: what it
// failed of may have been that.
func (l *launch) outdated(data secret.Data) bool {
	return l.ended() && l.err != nil && !l.data.Equal(data)
}

// came records what a launch has come to, or takes it down where nobody asks for it any
// more.
func (d *Process) came(l *launch, made mnt.Detached, p *process, err error) {
	d.mu.Lock()
	l.made, l.p, l.err = made, p, err
	close(l.done)
	left, unwanted := l.left, l.unwanted
	d.mu.Unlock()
	switch {
	case unwanted:
		d.takeDown(l)
	case left && d.Life.Err() == nil:
		d.News(l.uid)
	}
}

// takeDown ends what a launch has come to, which stands nowhere.
func (d *Process) takeDown(l *launch) {
	if l.err == nil {
		d.abandon(l.p)
		l.made.Close()
	}
}

// Underway implements Background.
func (*Process) Underway() string {
	return "the filesystem's process is being started, and has not answered yet"
}

// Making implements Background.
func (d *Process) Making(uid string, m plan.Mount) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.launches[useOf(uid, m.Target())]
	return l != nil && l.identity == m.Identity() && !l.ended()
}

// Abandon says that the process is not asked for any more: what is on its way ends, and
// leaves nothing. It waits for none of that. What stands is not touched.
func (d *Process) Abandon(uid, target string) {
	d.mu.Lock()
	l := d.launches[useOf(uid, target)]
	delete(d.launches, useOf(uid, target))
	ended := l != nil && l.ended()
	if l != nil {
		l.unwanted = true
	}
	d.mu.Unlock()
	switch {
	case l == nil:
	case ended:
		d.launching.Go(func() { d.takeDown(l) })
	default:
		l.cancel()
	}
}

// Close ends what is on its way. What stands is left, with its processes.
func (d *Process) Close() {
	d.mu.Lock()
	all := slices.Collect(maps.Values(d.launches))
	d.mu.Unlock()
	for _, l := range all {
		d.Abandon(l.uid, l.target)
	}
	d.launching.Wait()
}
