package agent_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/plan"
)

// smallDisk is a node whose journal is on a disk of its own, and whose trees stand on
// another.
func smallDisk(t *testing.T) (n *agenttest.Node, dir string) {
	t.Helper()
	n = agenttest.NewNode(t)
	n.Home("h/u1", 0o777, "f")
	n.Home("h/u2", 0o777, "f")
	dir = filepath.Join(n.Root, "journal")
	n.StopAgent()
	for _, dir := range []string{dir, filepath.Join(n.Root, "pods")} {
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	n.Restart()
	return n, dir
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// fill leaves no byte on the disk, and returns what gives all back.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	must(t, err)
	defer f.Close()
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	return func() { must(t, os.Remove(f.Name())) }
}

// tellsOfTheDisk holds what is said of a full disk against what a reader needs.
func tellsOfTheDisk(t *testing.T, said, dir string) {
	t.Helper()
	for _, part := range []string{dir, "no space left on device", "free space on the node"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q does not say %q", said, part)
		}
	}
}

func TestAFullDiskKeepsNoMountInASandbox(t *testing.T) {
	t.Parallel()
	n, dir := smallDisk(t)
	p, q := n.RunningPod("pod"), n.RunningPod("evicted")
	for _, p := range []*agenttest.Pod{p, q} {
		p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
		p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	}
	empty := fill(t, dir)

	p.Grant(home("h/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	if seen := seenBy(t, p.Ctr); len(seen) != 1 || len(seen["u1"]) == 0 {
		t.Errorf("the sandbox sees %v", seen)
	}
	if err := p.Ctr.WriteFile(in+"u2/f", []byte("x"), 0o644); err == nil {
		t.Error("the sandbox writes into what was revoked")
	}
	tellsOfTheDisk(t, n.Agent.Fault(), dir)

	// What is asked for now is refused in the first pass, and stays so without a word more.
	p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	st := p.MustAnswer(grant.StateFailed, []string{"u1"}, codes(grant.WholeSet, "MOUNT_FAILED"))
	tellsOfTheDisk(t, st.Messages[grant.WholeSet], dir)
	fresh := n.RunningPod("fresh")
	fresh.Grant(home("h/u2", "u2"))
	fresh.MustAnswer(grant.StateFailed, []string{}, codes(grant.WholeSet, "MOUNT_FAILED"))
	answers := n.API.Answers()
	for range 3 {
		must(t, n.Agent.Sweep(t.Context()))
		p.MustAnswer(grant.StateFailed, []string{"u1"}, codes(grant.WholeSet, "MOUNT_FAILED"))
		fresh.Pass()
	}
	if n.API.Answers() != answers {
		t.Errorf("%d answers more", n.API.Answers()-answers)
	}

	// kubelet evicts a Pod, perhaps to free this disk.
	must(t, q.Ctr.Stop())
	n.API.Change(q.UID, func(p *plan.Pod) { p.Finished = true })
	q.Pass()
	tearDown(t, q)
	absent(t, treeOf(n, q))
	absent(t, recordOf(n, q))

	empty()
	must(t, n.Agent.Sweep(t.Context()))
	if fault := n.Agent.Fault(); fault != "" {
		t.Errorf("with space again: %s", fault)
	}
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	fresh.MustAnswer(grant.StateReady, []string{"u2"}, nil)
}

func TestAnAgentThatStartsOnAFullDiskTakesAwayWhatIsNotAsked(t *testing.T) {
	t.Parallel()
	n, dir := smallDisk(t)
	p, q := n.RunningPod("pod"), n.RunningPod("gone")
	for _, p := range []*agenttest.Pod{p, q} {
		p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
		p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	}
	n.StopAgent()
	// As it is when no agent has signed, for lack of space.
	signature := filepath.Join(dir, "lock")
	must(t, os.Truncate(signature, 0))
	empty := fill(t, dir)
	p.Grant(home("h/u1", "u1"))
	must(t, q.Ctr.Stop())
	n.API.Delete(q.UID)
	before := standing(t, filepath.Join(treeOf(n, p), "u1"))
	n.Restart()
	tellsOfTheDisk(t, n.Agent.Fault(), dir)
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	if now := standing(t, filepath.Join(treeOf(n, p), "u1")); len(now) != 1 || now[0].ID != before[0].ID {
		t.Errorf("what is asked for was made anew: %+v, before %+v", now, before)
	}
	q.Pass()
	tearDown(t, q)
	absent(t, recordOf(n, q))
	empty()
	must(t, n.Agent.Sweep(t.Context()))
	if word, err := os.ReadFile(signature); err != nil || len(word) == 0 {
		t.Errorf("the agent has not signed: %q, %v", word, err)
	}
}

func TestADeadGrantThatCannotBeMadeAnewStaysInItsPlace(t *testing.T) {
	t.Parallel()
	n, dir := smallDisk(t)
	n.Bound = shortBound
	n.Restart()
	s := serve(t, filepath.Join(n.Claim, "remote"), rules{})
	must(t, os.Mkdir(filepath.Join(s.dir, "u1"), 0o777))
	p := n.RunningPod("pod")
	p.Grant(dataset("remote/u1", "u1"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	s.die(t)
	must(t, n.Agent.Sweep(t.Context()))
	dead := codes("u1", "MOUNT_DEAD")
	p.MustAnswer(grant.StateDegraded, []string{"u1", "u2"}, dead)
	back(t, s)
	must(t, n.Agent.Sweep(t.Context()))
	empty := fill(t, dir)
	p.MustAnswer(grant.StateDegraded, []string{"u1", "u2"}, dead)
	_, err := p.Ctr.ReadDir(in + "u1")
	wants(t, "reading it, rather than an empty folder", err, unix.ENOTCONN)
	empty()
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
}

func TestRecoveringAStuckPodNeedsNoSpaceOnTheDisk(t *testing.T) {
	t.Parallel()
	readOnly := func(t *testing.T, dir string) (mend func()) {
		must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		return func() { must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "")) }
	}
	for name, spoil := range map[string]func(t *testing.T, n *agenttest.Node, dir string) (mend func()){
		"full":      func(t *testing.T, _ *agenttest.Node, dir string) func() { return fill(t, dir) },
		"read-only": func(t *testing.T, _ *agenttest.Node, dir string) func() { return readOnly(t, dir) },
		"read-only everywhere": func(t *testing.T, n *agenttest.Node, dir string) func() {
			mend := readOnly(t, dir)
			also := readOnly(t, filepath.Join(n.Root, "pods"))
			return func() { also(); mend() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, dir := smallDisk(t)
			n.Home("home/users/u1", 0o777, "f")
			p := stuck(t, n)
			mend := spoil(t, n, dir)
			o, done := offline(t, n)
			rec, err := o.Recover(t.Context(), p.UID, false)
			if err != nil || len(rec.Held) != 0 || len(rec.Left) != 0 {
				t.Errorf("%+v, %v", rec, err)
			}
			if got := targets(rec.Taken); len(got) != 2 {
				t.Errorf("taken: %v", got)
			}
			done()
			tearDown(t, p)
			// What is left is an empty folder and a record at most, and the next agent's.
			mend()
			n.Restart()
			if n.API.Queued(p.UID) {
				p.Pass()
			}
			absent(t, treeOf(n, p))
			absent(t, recordOf(n, p))
		})
	}
}
