package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/secret"
)

// withheld is a keeper whose next answers for a process to be taken over are errors.
type withheld struct {
	delivery.Keeper
	mu     sync.Mutex
	errs   []error
	always error
	gave   int // answers without an error
}

func (w *withheld) Pidfd(ctx context.Context, id string) (*os.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.always != nil {
		return nil, w.always
	}
	if len(w.errs) > 0 {
		err := w.errs[0]
		w.errs = w.errs[1:]
		return nil, err
	}
	w.gave++
	return w.Keeper.Pidfd(ctx, id)
}

func (w *withheld) given() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gave
}

// resuming is a runner that fails to resume, some times.
type resuming struct {
	*folders
	mu   sync.Mutex
	errs []error
}

func (r *resuming) Resume(ctx context.Context, note []byte, ref secret.Ref, at delivery.Place, tell func(error)) (func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) > 0 {
		err := r.errs[0]
		r.errs = r.errs[1:]
		return nil, err
	}
	return r.folders.Resume(ctx, note, ref, at, tell)
}

func TestAnAnswerThatIsLostWhileTheAgentIsReplacedCostsATenantNothing(t *testing.T) {
	lost := fmt.Errorf("%w: i/o timeout", keeper.ErrUnavailable)
	for name, fails := range map[string]struct{ pidfd, resume []error }{
		"the keeper's":        {pidfd: []error{lost}},
		"the keeper's, twice": {pidfd: []error{lost, errors.New("too many open files")}},
		"the runner's":        {resume: []error{errors.New("there is no listener")}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newUserspaceNode(t)
			n.folder("bucket", "a.txt")
			p, c := n.running("bucket", grant.ReadWrite)
			h, err := c.Hold(in + "data/a.txt")
			must(t, err)
			pid, answers := n.keeper.PID(p.UID+"/data"), n.API.Answers()
			kept := &withheld{Keeper: n.keeper.Client(), errs: fails.pidfd}
			n.Keeper = kept
			n.Runners = map[grant.Kind]delivery.Runner{grant.KindCloudStorage: &resuming{folders: n.folders, errs: fails.resume}}
			n.Restart()
			p.Pass()
			must(t, n.Agent.Sweep(t.Context()))
			within(t, "it was taken over", func() bool {
				p.Pass()
				return kept.given() == 1+len(fails.resume) && n.keeper.PID(p.UID+"/data") == pid
			})
			within(t, "no pass is asked for", func() bool { p.Pass(); return !n.API.Queued(p.UID) })
			if got, err := c.HeldRead(h); err != nil || string(got) != "a.txt\n" {
				t.Errorf("the tenant's open file: %q, %v", got, err)
			}
			must(t, c.Drop(h))
			if got := n.API.Answers(); got != answers || n.keeper.PID(p.UID+"/data") != pid {
				t.Errorf("%d answers, were %d: %+v; process %d, was %d", got, answers, p.Status(), n.keeper.PID(p.UID+"/data"), pid)
			}
			// And it is watched.
			must(t, unix.Kill(pid, unix.SIGKILL))
			p.Answered(isDead("data"))
			p.Answered(isReady)
		})
	}
}

func TestAProcessThatHasEndedBeforeItWasTakenOverIsReplaced(t *testing.T) {
	for _, gone := range []error{keeper.ErrEnded, keeper.ErrUnknownChild} {
		n := newUserspaceNode(t)
		n.folder("bucket", "a.txt")
		p, c := n.running("bucket", grant.ReadWrite)
		before := n.keeper.Children()[0].ID
		n.Keeper = &withheld{Keeper: n.keeper.Client(), errs: []error{gone}}
		n.Restart()
		p.Answered(func(st *grant.Status) bool {
			return isReady(st) && slices.ContainsFunc(n.keeper.Children(), func(c keeper.Child) bool { return c.ID != before })
		})
		if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
			t.Errorf("%v: %q, %v", gone, got, err)
		}
		within(t, "the one before has ended", func() bool { return len(n.keeper.Children()) == 1 })
	}
}

func TestAProcessThatIsNotTakenOverYetIsEndedByARevocation(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, _ := n.running("bucket", grant.ReadWrite)
	pause(t, n.keeper.PID(p.UID+"/data")) // it does not notice the end of its mount
	kept := &attentive{Keeper: &withheld{Keeper: n.keeper.Client(), always: keeper.ErrUnavailable}}
	n.Keeper = kept
	n.Restart()
	stopped := n.keeper.PID(p.UID + "/data")
	told := false
	kept.set(func() { told = true })
	p.Grant()
	p.Answered(isReady)
	absent(t, filepath.Join(treeOf(n.Node, p), "data"))
	if !told {
		t.Error("it was not told to end")
	}
	must(t, unix.Kill(stopped, unix.SIGCONT))
	within(t, "the process has ended", func() bool { return len(n.keeper.Children()) == 0 })
}
