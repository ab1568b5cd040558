package delivery

import (
	"context"
	"errors"
	"path"
	"sync"
	"time"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/bug"
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Checkouts makes the content of git grants. *checkout.Store is one.
type Checkouts interface {
	Get(ctx context.Context, r checkout.Request) (*checkout.Checkout, error)
	Release(use string)
	Recover(uses map[string]string) (missing []string)
	Collect(ctx context.Context) int64
	Progress() []checkout.Progress
	Close()
}

var _ Checkouts = (*checkout.Store)(nil)

// ErrUnderway says that what is to be mounted is being made, beside the passes. Nothing
// stands, and nothing has failed: the Pod is told when there is news, and Deliver is to
// be called again.
var ErrUnderway = errors.New("what is to be mounted is being made")

// soon is how long Deliver waits for what is being made: content that is on the node
// already costs no second pass, and what takes longer holds up nobody.
const soon = 50 * time.Millisecond

// Materialize delivers kinds whose content is nowhere on the node before: it is made
// beside the passes, by a Checkouts, and bound when it is there. The content is
// read-only whatever the grant says, because every Pod of the node shares it.
//
// How it is undone: by one umount, like a bind; then nobody uses the content, and
// what nobody uses is collected later. Content that is still being made ends when
// nobody waits for it any more.
//
// What an agent finds that was killed in the middle: nothing in the tree. The
// Checkouts removes half of a content when it is opened.
//
// What the sandbox sees when it breaks: a local folder, which goes with the node's
// disk. Content that somebody removes by hand is made anew.
type Materialize struct {
	Table mnt.Table
	Proof *proof.Storage
	// Life is the agent's: making outlives the pass that asked for it.
	Life context.Context //nolint:containedctx // see above
	// Ended is told the Pod whose content is there, or has failed.
	Ended func(uid string)

	mu         sync.Mutex
	store      Checkouts
	fault      error
	closed     bool
	makings    map[string]*making // by use
	collecting sync.Mutex
}

var _ Delivery = (*Materialize)(nil)

// making is one content on its way, for one grant of one Pod.
type making struct {
	identity plan.Identity
	data     secret.Data // that it is made with
	cancel   context.CancelFunc
	left     bool // nobody looks at it: Ended has to be called
	done     chan struct{}
	// Set before done is closed.
	made *checkout.Checkout
	err  error
}

func (w *making) ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// outdated tells whether it has failed with a Secret that is another one by now: what
// it failed of may have been that.
func (w *making) outdated(data secret.Data) bool {
	return w.ended() && w.err != nil && !w.data.Equal(data)
}

// useOf names a grant of a Pod among the users of a content.
func useOf(uid, target string) string { return uid + "/" + target }

// podOf is the Pod whose tree this is.
func podOf(tree *beneath.Dir) string { return path.Base(tree.Path()) }

// Serve gives the delivery its store, once, or says why it has none. uses are the
// mounts that stand, by Use: their contents are kept.
func (d *Materialize) Serve(store Checkouts, fault error, uses map[string]mnt.Record) (missing []string) {
	if store != nil {
		keys := make(map[string]string, len(uses))
		for use, rec := range uses {
			keys[use] = keyOf(rec)
		}
		missing = store.Recover(keys)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		if store != nil {
			store.Close()
		}
		return nil
	}
	d.store, d.fault = store, fault
	return missing
}

// Use names the grant for Serve.
func (*Materialize) Use(uid, target string) string { return useOf(uid, target) }

// keyOf is the content of a mount, which its record has: a checkout lies at
// ready/KEY/tree, and the root of a bind is where its source lies in its filesystem.
func keyOf(rec mnt.Record) string { return path.Base(path.Dir(rec.Root)) }

// Serving tells whether there is a store.
func (d *Materialize) Serving() bool {
	store, _ := d.stored()
	return store != nil
}

func (d *Materialize) stored() (Checkouts, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.store == nil && d.fault == nil {
		return nil, errNoStore
	}
	return d.store, d.fault
}

var errNoStore = errors.New("this agent keeps no checkouts")

// Deliver implements Delivery. Beside its errors it has ErrUnderway.
func (d *Materialize) Deliver(ctx context.Context, tree *beneath.Dir, m plan.Mount, c Credential) (mnt.Record, error) {
	store, err := d.stored()
	if err != nil {
		return mnt.Record{}, &contentError{err: err}
	}
	w := d.begin(store, podOf(tree), m, c.Data)
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
		if !d.leave(w) {
			return mnt.Record{}, ErrUnderway
		}
	}
	d.forget(useOf(podOf(tree), m.Target()), w)
	if w.err != nil {
		return mnt.Record{}, &contentError{err: w.err}
	}
	// When this fails, the caller's Undo gives the content back.
	return d.bind(ctx, tree, m, w.made.Path)
}

// begin starts to make the content, or joins what an earlier pass has started.
func (d *Materialize) begin(store Checkouts, uid string, m plan.Mount, data secret.Data) *making {
	use := useOf(uid, m.Target())
	d.mu.Lock()
	w := d.makings[use]
	d.mu.Unlock()
	if w != nil && w.identity == m.Identity() && !w.outdated(data) {
		return w
	}
	d.Abandon(uid, m.Target())
	ctx, cancel := context.WithCancel(d.Life)
	w = &making{identity: m.Identity(), data: data, cancel: cancel, done: make(chan struct{})}
	d.mu.Lock()
	if d.makings == nil {
		d.makings = make(map[string]*making)
	}
	d.makings[use] = w
	d.mu.Unlock()
	request := checkout.Request{URL: m.Source(), Revision: m.Identity().Revision, Use: use, Pod: uid}
	if m.Identity().Secret != "" {
		request.Credential = credential(data)
	}
	go func() {
		defer cancel()
		var made *checkout.Checkout
		err := bug.Catch(func() (err error) {
			made, err = store.Get(ctx, request)
			return err
		})
		d.mu.Lock()
		w.made, w.err = made, err
		close(w.done)
		left := w.left
		d.mu.Unlock()
		if left && ctx.Err() == nil {
			d.Ended(uid)
		}
	}()
	return w
}

// leave says that nobody waits here any more, unless it has ended.
func (d *Materialize) leave(w *making) (ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.left = true
	return w.ended()
}

func (d *Materialize) forget(use string, w *making) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.makings[use] == w {
		delete(d.makings, use)
	}
}

// Underway implements Background.
func (*Materialize) Underway() string { return "the repository is being fetched" }

// Making tells whether the content of m is being made: there is no use in
// delivering it.
func (d *Materialize) Making(uid string, m plan.Mount) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.makings[useOf(uid, m.Target())]
	return w != nil && w.identity == m.Identity() && !w.ended()
}

// Abandon says that the grant is not asked for any more. What is being made for it
// ends, where nobody else waits for the same. Nothing mounted is touched.
func (d *Materialize) Abandon(uid, target string) {
	use := useOf(uid, target)
	d.mu.Lock()
	w := d.makings[use]
	delete(d.makings, use)
	store := d.store
	d.mu.Unlock()
	if w == nil {
		return
	}
	w.cancel()
	// A Get whose context has ended returns. One that was quicker has registered the
	// use, and would take it from the next grant of this name.
	<-w.done
	if w.made != nil {
		store.Release(use)
	}
}

// Progress says how far the content of a grant has come, nil where none is being
// made.
func (d *Materialize) Progress(uid, target string) *checkout.Progress {
	d.mu.Lock()
	w, store := d.makings[useOf(uid, target)], d.store
	d.mu.Unlock()
	if w == nil || store == nil {
		return nil
	}
	for _, p := range store.Progress() {
		// A commit id is that of no other repository, or of one with the same content.
		if p.Revision == w.identity.Revision {
			return &p
		}
	}
	return nil
}

// Collect removes contents that nobody uses, beyond what is kept for the next Pod. It
// returns at once where it is under way.
func (d *Materialize) Collect(ctx context.Context) {
	store, err := d.stored()
	if err != nil || !d.collecting.TryLock() {
		return
	}
	defer d.collecting.Unlock()
	store.Collect(ctx)
}

// Close ends what is being made. Everything made is left.
func (d *Materialize) Close() {
	d.mu.Lock()
	store := d.store
	d.store, d.fault, d.closed = nil, nil, true
	var all []*making
	for use, w := range d.makings {
		w.cancel()
		all = append(all, w)
		delete(d.makings, use)
	}
	d.mu.Unlock()
	for _, w := range all {
		<-w.done
	}
	if store != nil {
		store.Close()
	}
}

// bind attaches the content. The mount point is made last: until then the sandbox
// never sees an empty folder.
func (d *Materialize) bind(ctx context.Context, tree *beneath.Dir, m plan.Mount, at string) (mnt.Record, error) {
	source, err := beneath.OpenRoot(at)
	if err != nil {
		return mnt.Record{}, err
	}
	defer source.Close()
	if err := proof.Reads(source); err != nil {
		return mnt.Record{}, err
	}
	target, err := mountPoint(tree, m.Target())
	if err != nil {
		return mnt.Record{}, err
	}
	defer target.Close()
	rec, err := d.Table.Bind(source, target, flags(m)|mnt.ReadOnly)
	if err != nil {
		return mnt.Record{}, err
	}
	return rec, d.Proof.Answers(ctx, tree, m.Target(), &rec, proof.Filesystem(rec.Dev))
}

// Undo implements Delivery.
func (d *Materialize) Undo(ctx context.Context, tree *beneath.Dir, target string, detach bool) error {
	d.Abandon(podOf(tree), target)
	if err := unmount(ctx, d.Table, tree, target, detach); err != nil {
		return err
	}
	d.Unused(podOf(tree), target)
	return nil
}

// Unused implements Releaser.
func (d *Materialize) Unused(uid, target string) {
	if store, err := d.stored(); err == nil {
		store.Release(useOf(uid, target))
	}
}

// Usable implements Delivery: a node on which git does not run serves every other
// kind, and says so to the grants that need it.
func (d *Materialize) Usable(context.Context) error { return nil }

// Alive implements Delivery.
func (d *Materialize) Alive(ctx context.Context, tree *beneath.Dir, target string, on ...deadline.Key) error {
	return d.Proof.Answers(ctx, tree, target, nil, on...)
}

// Renewed implements Renewer: content can always be made anew.
func (d *Materialize) Renewed(context.Context, plan.Mount, mnt.Record) bool { return d.Serving() }
