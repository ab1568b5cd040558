package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
)

// errDead is what a dead agent gets from everything it touches.
var errDead = errors.New("the agent is dead")

// death strikes the agent immediately before or after one thing it does. From
// then on nothing it does has an effect: neither on mounts nor on the API, and
// the journal is put back to what it was at that moment.
type death struct {
	journal string

	mu       sync.Mutex
	op, when string
	dead     bool
	saved    map[string][]byte
}

// await orders the next death: when is "before" or "after".
func (d *death) await(when, op string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.when, d.op = when, op
}

func (d *death) struck() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead
}

func (d *death) at(op string, do func() error) error {
	if d.strikes("before", op) {
		return errDead
	}
	err := do()
	if d.strikes("after", op) {
		return errDead
	}
	return err
}

// strikes tells whether the agent is dead. Between the begin and the end of an
// operation only that operation's own death strikes.
func (d *death) strikes(when, op string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return when == "before"
	}
	if d.op != op || d.when != when {
		return false
	}
	d.dead, d.saved = true, map[string][]byte{}
	files, _ := filepath.Glob(filepath.Join(d.journal, "*.json"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			d.saved[f] = b
		}
	}
	return true
}

func (d *death) restoreJournal() error {
	files, err := filepath.Glob(filepath.Join(d.journal, "*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	for f, b := range d.saved {
		err = errors.Join(err, os.WriteFile(f, b, 0o600))
	}
	return err
}

// mortal is the mount table as an agent has it that may die.
type mortal struct {
	*mnttest.Table
	death *death
	moved func(place string)
}

func (m mortal) NewTree(on *beneath.Dir) (rec mnt.Record, err error) {
	err = m.death.at("newtree", func() error { rec, err = m.Table.NewTree(on); return err })
	return rec, err
}

func (m mortal) Publish(tree, volume *beneath.Dir) (rec mnt.Record, err error) {
	err = m.death.at("publish", func() error { rec, err = m.Table.Publish(tree, volume); return err })
	return rec, err
}

func (m mortal) Bind(source, target *beneath.Dir, flags mnt.Flags) (rec mnt.Record, err error) {
	err = m.death.at("bind", func() error {
		if rec, err = m.Table.Bind(source, target, flags); err == nil {
			m.moved(target.Path())
		}
		return err
	})
	return rec, err
}

func (m mortal) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	return m.death.at("unmount", func() error {
		err := m.Table.Unmount(dir, name, lazy)
		if err == nil {
			m.moved(filepath.Join(dir.Path(), name))
		}
		return err
	})
}
