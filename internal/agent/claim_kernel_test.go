package agent_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// hangingClaim is a mount table whose look at the claim's root does not come back.
type hangingClaim struct {
	mnt.Table
	claim string
	hangs atomic.Bool
	end   chan struct{}
}

func (h *hangingClaim) At(d *beneath.Dir) (mnt.Place, error) {
	if h.hangs.Load() && filepath.Clean(d.Path()) == filepath.Clean(h.claim) {
		<-h.end
	}
	return h.Table.At(d)
}

func TestAClaimThatHangsKeepsNoOtherKindFromBeingServed(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	h := &hangingClaim{Table: n.Table, claim: n.Claim, end: make(chan struct{})}
	n.Mounter, n.Bound = h, time.Second
	n.Restart()
	n.Home("h/u1", 0o755)
	h.hangs.Store(true)
	must(t, n.Agent.Sweep(t.Context()))
	if n.Agent.Fault() == "" {
		t.Error("the node calls itself well")
	}
	p := n.RunningPod("other")
	p.Grant(bucketGrant("bucket", "data", grant.ReadOnly), home("h/u1", "u1"))
	st := p.Answered(func(st *grant.Status) bool { return st.State == grant.StateDegraded && len(st.Mounted) == 1 })
	if len(st.Failed) != 1 || st.Failed["u1"] != grant.CodeMountFailed {
		t.Errorf("the answer is %+v", st)
	}
	close(h.end)
	within(t, "the claim is found again", func() bool {
		must(t, n.Agent.Sweep(t.Context()))
		return n.Agent.Fault() == ""
	})
	p.Answered(isReady)
}
