package agent_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestTheAgentTellsWhatItsNodeIsAndWhatStands(t *testing.T) {
	n := agenttest.NewNode(t)
	n.Home("home/ada", 0o755, "f")
	p := n.RunningPod("pod")
	p.Grant(home("home/ada", "ada"), dataset("none", "gone"))
	p.Pass()
	facts, pods := n.Agent.Describe(t.Context())
	want := nodeview.Facts{
		MountSetattr: true, KubeletPropagation: nodeview.Shared, RootPropagation: nodeview.Shared, KubeletFound: true,
		Claim: nodeview.Claim{Path: n.Claim, Mounted: true, Filesystem: "tmpfs", Backing: nodeview.BackedByKernel, Answers: true},
	}
	if facts != want {
		t.Errorf("facts %+v\nwant  %+v", facts, want)
	}
	if len(pods) != 1 {
		t.Fatalf("%d Pods", len(pods))
	}
	got := pods[0]
	if got.UID != p.UID || got.Name != "pod" || got.Namespace != "sandboxes" || !got.Published || got.Tree != "tmpfs" || got.Leaked != 0 {
		t.Errorf("the Pod: %+v", got)
	}
	mount := nodeview.Mount{
		Target: "ada", Kind: grant.KindFiles, Source: "home/ada", Mode: grant.ReadWrite, AllowExec: true, State: "mounted", Flags: "rw,nosuid,nodev",
	}
	if !reflect.DeepEqual(got.Mounts, []nodeview.Mount{mount}) {
		t.Errorf("mounts: %+v", got.Mounts)
	}
	if got.Answer == nil || got.Answer.State != grant.StateDegraded || got.Answer.Failed["gone"] != grant.CodeMountFailed {
		t.Errorf("the answer: %+v", got.Answer)
	}
	p.Annotate(nil)
	p.Pass()
	tearDown(t, p)
}

func TestANodeWhoseMountsReachNoPodSaysSo(t *testing.T) {
	n := agenttest.NewNodeWith(t, simnode.Options{Private: true})
	facts, pods := n.Agent.Describe(t.Context())
	if facts.KubeletPropagation != nodeview.Private || facts.RootPropagation != nodeview.Shared || !facts.MountSetattr || len(pods) != 0 {
		t.Errorf("facts %+v, pods %+v", facts, pods)
	}
}

// The agent's own mounts stay shared when the node's are made private, and reach
// nobody any more.
func TestANodeThatMadeItsMountsPrivateSinceIsNotReadyAndTellsTheSame(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	wantFault := func(want bool) {
		t.Helper()
		must(t, n.Agent.Sweep(t.Context()))
		facts, _ := n.Agent.Describe(t.Context())
		shared := facts.KubeletPropagation == nodeview.Shared && facts.RootPropagation == nodeview.Shared
		if fault := n.Agent.Fault(); shared == want || strings.Contains(fault, "is private, not shared") != want {
			t.Errorf("the fault is %q, and the node is told as %+v", fault, facts)
		}
	}
	private := false
	n.HostMounts = func() ([]mnt.Mount, error) {
		table, err := n.Table.List()
		for i := range table {
			if private {
				table[i].Peer = 0
			}
		}
		return table, err
	}
	n.Restart()
	wantFault(false)
	private = true
	wantFault(true)
	private = false
	wantFault(false)
	n.HostMounts = func() ([]mnt.Mount, error) { return nil, unix.EACCES }
	n.Restart()
	wantFault(false)
}

// What is told per Pod and in all is what the gauge counts: a mount that a process
// still has, and one that would not go.
func TestWhatIsHeldIsToldAsLeakedAsTheGaugeCountsIt(t *testing.T) {
	n := agenttest.NewNode(t)
	n.Home("home/ada", 0o755, "f")
	p := n.RunningPod("pod")
	p.Grant(home("home/ada", "ada"))
	p.MustAnswer(grant.StateReady, []string{"ada"}, nil)
	h, err := p.Ctr.Hold(simnode.DefaultMountPath + "/ada/f")
	must(t, err)
	p.Grant()
	p.Pass()
	_, pods := n.Agent.Describe(t.Context())
	if len(pods) != 1 || pods[0].Leaked != 1 || len(pods[0].Held) != 1 || pods[0].Held[0].Target != "ada" || pods[0].Held[0].Why == "" {
		t.Errorf("%+v", pods)
	}
	if gauge := n.Metric("leaked"); gauge != 1 {
		t.Errorf("the gauge says %v", gauge)
	}
	must(t, p.Ctr.Drop(h))
	p.Annotate(nil)
	p.Pass()
	tearDown(t, p)
}

func TestAClaimThatHangsDelaysALookByItsBoundAndCostsOneThread(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Bound = shortBound
	s := serve(t, n.Claim, rules{})
	n.Restart()
	facts, _ := n.Agent.Describe(t.Context())
	want := nodeview.Claim{Path: n.Claim, Mounted: true, Filesystem: "fuse.test", Backing: nodeview.BackedByProcess, Answers: true}
	if facts.Claim != want {
		t.Errorf("while it answers: %+v", facts.Claim)
	}
	s.hang()
	for range 3 {
		began := time.Now()
		facts, _ := n.Agent.Describe(t.Context())
		want.Answers = false
		if facts.Claim != want {
			t.Errorf("while it hangs: %+v", facts.Claim)
		}
		if took := time.Since(began); took > 3*shortBound {
			t.Errorf("a look took %s", took)
		}
	}
	if lost := n.Budget.Lost(); lost != 1 {
		t.Errorf("%d threads are lost", lost)
	}
	s.answer()
	eventually(t, "the thread is back", nil, func() bool { return n.Budget.Lost() == 0 })
	want.Answers = true
	if facts, _ := n.Agent.Describe(t.Context()); facts.Claim != want {
		t.Errorf("when it answers again: %+v", facts.Claim)
	}
}

// Readers decode the document: an empty list is one, and not null.
func TestAPodOfWhichNothingIsKnownYetIsADocumentOfItsOwn(t *testing.T) {
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant()
	p.Pass()
	for _, v := range n.Agent.Views() {
		b, err := json.Marshal(v)
		must(t, err)
		if v.UID == "" || v.Mounts == nil {
			t.Errorf("%s", b)
		}
	}
}
