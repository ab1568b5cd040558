package agent_test

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// unswappable is a mount table in which nothing takes the place of another mount, while
// it is full.
type unswappable struct {
	mnt.Table
	full atomic.Bool
	n    atomic.Int64
}

func (s *unswappable) Swap(m mnt.Detached, dir *beneath.Dir, name string) (mnt.Record, error) {
	if !s.full.Load() {
		return s.Table.Swap(m, dir, name)
	}
	s.n.Add(1)
	return mnt.Record{}, errors.New("no room for another mount")
}

func TestAMountThatCannotBePutInPlaceIsTriedAgainEverMoreSeldom(t *testing.T) {
	n := newUserspaceNode(t)
	s := &unswappable{Table: n.Mounter}
	s.full.Store(true)
	n.Mounter = s
	n.Restart()
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	point := filepath.Join(treeOf(n.Node, p), "data")
	before := standing(t, point)
	must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGKILL))
	p.Answered(isDead("data"))
	// Each of the first failures at least doubles the pause.
	for want := range 2 {
		tried := s.n.Load()
		var again time.Duration
		within(t, "it was tried", func() bool { again = p.Pass(); return s.n.Load() > tried })
		if least := 900 * time.Millisecond << want; again < least {
			t.Errorf("after failure %d the next try is due in %v, expected %v or more", want+1, again, least)
		}
		if got := s.n.Load(); got != tried+1 {
			t.Errorf("%d tries, expected %d", got, tried+1)
		}
	}
	within(t, "no process is left", func() bool { return len(n.keeper.Children()) == 0 })
	if after := standing(t, point); len(after) != 1 || after[0].ID != before[0].ID {
		t.Errorf("at the target stand %+v, were %+v", after, before)
	}
	s.full.Store(false)
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestARestoreThatMeetsNoKeeperIsTriedAgainSoon(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, _ := n.running("bucket", grant.ReadWrite)
	n.keeper.Kill()
	p.Answered(isDead("data"))
	for range 5 {
		var again time.Duration
		within(t, "it was tried", func() bool { again = p.Pass(); return again > 100*time.Millisecond })
		if again > time.Second {
			t.Errorf("the keeper is asked again in %v: one that is replaced is away for a second or two", again)
		}
	}
	n.keeper.Start()
	p.Answered(isReady)
}
