package agent_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// attentive is a keeper that does something before it stops a process, once.
type attentive struct {
	delivery.Keeper
	mu     sync.Mutex
	before func()
}

func (a *attentive) set(before func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.before = before
}

func (a *attentive) Stop(ctx context.Context, id string, grace time.Duration) error {
	a.mu.Lock()
	before := a.before
	a.before = nil
	a.mu.Unlock()
	if before != nil {
		before()
	}
	return a.Keeper.Stop(ctx, id, grace)
}

// connections is a mount table that counts the connections it was asked for by their
// numbers.
type connections struct {
	mnt.Table
	opened, aborted, closed atomic.Int64
}

type counted struct {
	mnt.Connection
	of *connections
}

func (c *connections) Connection(dev mnt.Dev) (mnt.Connection, error) {
	c.opened.Add(1)
	conn, err := c.Table.Connection(dev)
	if err != nil {
		c.closed.Add(1)
		return nil, err
	}
	return counted{conn, c}, nil
}

func (c counted) Abort() error {
	c.of.aborted.Add(1)
	return c.Connection.Abort()
}

func (c counted) Close() {
	c.of.closed.Add(1)
	c.Connection.Close()
}

// When the keeper has been asked, the number of a filesystem that was taken away may be
// another Pod's. What is aborted then is what was opened while it was its own.
func TestARevocationAbortsNothingByItsNumber(t *testing.T) {
	hold := func(p *agenttest.Pod) (drop func()) {
		h, err := p.Ctr.Hold(in + "data/a.txt")
		must(t, err)
		return func() { must(t, p.Ctr.Drop(h)) }
	}
	for name, prepare := range map[string]func(n *userspaceNode, p *agenttest.Pod) (gone func()){
		"it hangs": func(n *userspaceNode, p *agenttest.Pod) func() {
			pause(t, n.keeper.PID(p.UID+"/data"))
			within(t, "a sweep has found it", func() bool {
				must(t, n.Agent.Sweep(t.Context()))
				p.Pass()
				st := p.Status()
				return st != nil && isDead("data")(st)
			})
			return func() {}
		},
		"it is in use": func(_ *userspaceNode, p *agenttest.Pod) func() { return hold(p) },
		"it is in use, and was taken over": func(n *userspaceNode, p *agenttest.Pod) func() {
			drop := hold(p)
			n.Restart()
			p.Pass()
			return drop
		},
		"it is in use, and was restored": func(n *userspaceNode, p *agenttest.Pod) func() {
			must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGKILL))
			p.Answered(isDead("data"))
			p.Answered(isReady)
			return hold(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newUserspaceNode(t)
			n.Bound = time.Second
			keeper := &attentive{Keeper: n.keeper.Client()}
			table := &connections{Table: n.Mounter}
			n.Keeper, n.Mounter = keeper, table
			n.Restart()
			n.folder("bucket", "a.txt")
			p, _ := n.running("bucket", grant.ReadWrite)
			gone := prepare(n, p)
			left := int64(0)
			if strings.Contains(name, "taken over") {
				left = 1 // the agent before ended with it
			}
			var opened, aborted int64
			keeper.set(func() {
				gone()
				opened, aborted = table.opened.Load(), table.aborted.Load()
			})
			p.Grant()
			p.Answered(isReady)
			if got := table.aborted.Load(); opened == 0 || got == aborted {
				t.Errorf("%d of %d connections were aborted: the test shows nothing", got, opened)
			}
			if got := table.opened.Load(); got != opened {
				t.Errorf("%d connections were looked for by a number that may be another's", got-opened)
			}
			if got := table.closed.Load() + left; got != opened {
				t.Errorf("%d of %d connections were closed", got, opened)
			}
		})
	}
}
