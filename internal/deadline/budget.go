package deadline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Budget counts the lost calls, by key. The zero value is ready.
type Budget struct {
	mu    sync.Mutex
	known map[string]*charge // those that something is charged to
	total int
}

// charge is what is charged to one key. All but lost is for storages.
type charge struct {
	lost     int
	underway int            // in time
	waiting  []chan<- error // for their turn, in the order they came
	answered time.Time      // the last time a call was
	hung     bool           // found so; some call is lost then
	quiet    time.Time      // until when nobody is let through, while it is hung
}

var errFound = fmt.Errorf("%w: it was found to hang", ErrHung)

// ticket is the right to one call.
type ticket struct {
	keys    []Key
	storage Key // one of them, the zero Key where none is one
	began   time.Time
}

// Lost is how many calls have outlived their bound and not come back yet.
func (b *Budget) Lost() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// LostTo is how many of them are charged to the key with this name.
func (b *Budget) LostTo(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.known[name]; c != nil {
		return c.lost
	}
	return 0
}

// enter returns when the call may be made.
func (b *Budget) enter(ctx context.Context, bound time.Duration, keys []Key) (ticket, error) {
	t := ticket{keys: keys}
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.AtOnce > 0 }); i >= 0 {
		t.storage = keys[i]
	}
	turn, err := b.admit(t, bound)
	if err == nil && turn != nil {
		err = b.await(ctx, bound, t, turn)
		if err == nil && ctx.Err() != nil { // those before it ended with the same context
			b.unused(t)
			err = ctx.Err()
		}
	}
	t.began = time.Now()
	return t, err
}

// admit lets the call through, says why it may not be made, or returns what says so
// later.
func (b *Budget) admit(t ticket, bound time.Duration) (turn chan error, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range t.keys {
		if c := b.known[k.Name]; c != nil && c.lost >= k.Limit && k.AtOnce == 0 {
			return nil, fmt.Errorf("%w: %d earlier calls have not come back", ErrHung, c.lost)
		}
	}
	k := t.storage
	if k.AtOnce == 0 {
		return nil, nil
	}
	c := b.charge(k.Name)
	now := time.Now()
	switch {
	case c.hung && (k.Kept || c.lost >= k.Limit || now.Before(c.quiet)):
		return nil, errFound
	case c.hung:
		c.quiet = now.Add(bound + Pause) // one at a time
	case c.lost >= k.most():
		return nil, ErrNoTurn
	case c.room(k) <= 0:
		turn = make(chan error, 1)
		c.waiting = append(c.waiting, turn)
		return turn, nil
	}
	c.underway++
	return nil, nil
}

// await waits for the turn of a call.
func (b *Budget) await(ctx context.Context, bound time.Duration, t ticket, turn chan error) error {
	// A bound after it came, those that were under way are answered or lost.
	timer := time.NewTimer(bound + bound/2)
	defer timer.Stop()
	var late error
	select {
	case err := <-turn:
		return err
	case <-timer.C:
		late = ErrNoTurn
	case <-ctx.Done():
		late = ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.charge(t.storage.Name)
	i := slices.Index(c.waiting, (chan<- error)(turn))
	if i < 0 { // it came in the same moment
		return <-turn
	}
	c.waiting = slices.Delete(c.waiting, i, i+1)
	return late
}

// answered takes note of a call that came back in time.
func (b *Budget) answered(t ticket) {
	b.ended(t, func(c *charge) {
		if !t.storage.Kept {
			c.answered, c.hung = time.Now(), false
		}
	})
}

// unused gives back the right to a call that was not made.
func (b *Budget) unused(t ticket) { b.ended(t, func(*charge) {}) }

func (b *Budget) ended(t ticket, note func(c *charge)) {
	if t.storage.AtOnce == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.charge(t.storage.Name)
	c.underway--
	note(c)
	b.next(t.storage)
}

// lose counts a call that nobody waits for any more. hung: because its bound has
// passed.
func (b *Budget) lose(t ticket, hung bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total++
	for _, k := range t.keys {
		b.charge(k.Name).lost++
	}
	if t.storage.AtOnce == 0 {
		return
	}
	c := b.charge(t.storage.Name)
	c.underway--
	full := c.lost >= t.storage.most()
	switch {
	// Where another place of the storage has answered meanwhile, this place hangs. With
	// the last thread no other could.
	case hung && !c.answered.After(t.began) && (c.hung || !full):
		c.hung, c.quiet = true, time.Now().Add(Pause)
		c.turnAway(errFound)
	case full:
		c.turnAway(ErrNoTurn)
	}
	b.next(t.storage)
}

// comeBack takes note of a lost call that has come back.
func (b *Budget) comeBack(t ticket, hung bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total--
	for _, k := range t.keys {
		c := b.charge(k.Name)
		c.lost--
		if k.AtOnce > 0 && (hung || !k.Kept) {
			c.hung = false
		}
		b.next(k)
	}
}

// charge is what is charged to the key with this name. b.mu is held.
func (b *Budget) charge(name string) *charge {
	if b.known == nil {
		b.known = make(map[string]*charge)
	}
	c := b.known[name]
	if c == nil {
		c = &charge{}
		b.known[name] = c
	}
	return c
}

// next lets those through whose turn it is, and forgets a key that nothing is charged
// to. b.mu is held.
func (b *Budget) next(k Key) {
	c := b.charge(k.Name)
	for len(c.waiting) > 0 && c.room(k) > 0 {
		c.waiting[0] <- nil
		c.waiting = c.waiting[1:]
		c.underway++
	}
	if c.lost == 0 && c.underway == 0 && len(c.waiting) == 0 {
		delete(b.known, k.Name)
	}
}

// turnAway says to those who wait why they are not let through.
func (c *charge) turnAway(why error) {
	for _, turn := range c.waiting {
		turn <- why
	}
	c.waiting = nil
}

// room is how many more calls may be under way.
func (c *charge) room(k Key) int { return min(k.AtOnce, k.most()-c.lost) - c.underway }
