package agent_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
)

// What a tenant keeps where no table of mounts or descriptors shows it.
func TestWhatATenantKeepsOutOfSightIsHeldUntilItLetsGo(t *testing.T) {
	t.Parallel()
	for what, says := range map[string]string{
		parkInSocketPrivate: "socket with descriptors in flight",
		keepNamespace:       "has a copy of the mount",
		keepRoot:            "folder on a detached mount",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			tenant := misbehaving(t, n, p, what)
			mustHold(t, n, p, func() {
				if st := p.Status(); !strings.Contains(st.Messages["u1"], says) {
					t.Errorf("the message is %q", st.Messages["u1"])
				}
				tenant.letGo()
			})
		})
	}
}

// A cgroup is inherited: no fork leads out of it, and no namespace.
func TestAForkedChildHoldsAGrantAfterItsParentHasEnded(t *testing.T) {
	t.Parallel()
	for _, what := range []string{forkOnce, forkApart} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			mustHold(t, n, p, forking(t, n, p, what))
		})
	}
}

// The kernel knew that it was in use and nobody could be seen to use it: no look
// can take that back while the Pod's processes run.
func TestWhatTheKernelCallsBusyForNobodyToBeSeenIsHeldUntilThePodsProcessesHaveEnded(t *testing.T) {
	t.Parallel()
	for what, says := range map[string]string{
		parkInSocket: "socket with descriptors in flight",
		parkInRing:   "io_uring with registered files",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			tenant := misbehaving(t, n, p, what)
			p.Grant(home("h/u2", "u2"))
			mustBeQuick(t, p)
			st := p.MustHave(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
			if !strings.Contains(st.Messages["u1"], says) {
				t.Errorf("the message is %q", st.Messages["u1"])
			}
			tenant.letGo()
			for range 2 {
				st := p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
				if !strings.Contains(st.Messages["u1"], "the kernel called it busy") {
					t.Errorf("the message is %q", st.Messages["u1"])
				}
				n.Restart()
			}
			must(t, p.Ctr.Stop())
			p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
		})
	}
}

// The kernel calls a mount with another beneath it busy, whoever uses it.
func TestARevokedGrantWithAFilesystemBeneathItsSourceIsNotHeld(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	mountFS(t, n.Claim+"/h/deep/fs")
	p.Grant(home("h/u2", "u2"), home("h/deep", "deep"))
	p.MustAnswer(grant.StateReady, []string{"deep", "u2"}, nil)
	p.Grant(home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	if n.Metric("leaked_total") != 0 {
		t.Errorf("leaked %v", n.Metric("leaked_total"))
	}
}

// Not parallel: it measures what the whole process allocates.
func TestAPodWithThousandsOfMountsCostsLittleAndIsAnsweredRightlyOnceTheyHaveGone(t *testing.T) {
	n, p := granted(t)
	other := n.RunningPod("other")
	other.Grant(home("h/u1", "u1"))
	other.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	tenant := misbehaving(t, n, p, stack)

	const most = 64 << 20 // bytes; 8,192 mounts take about 15 MiB each time they are read
	for _, revoke := range []bool{true, false} {
		if revoke {
			p.Grant(home("h/u2", "u2"))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		mustBeQuick(t, p)
		runtime.ReadMemStats(&after)
		st := p.MustHave(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
		if !strings.Contains(st.Messages["u1"], "mount tables are too large") {
			t.Errorf("the message is %q", st.Messages["u1"])
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > most {
			t.Errorf("a pass allocated %d MiB", got>>20)
		}
	}
	other.Grant()
	mustBeQuick(t, other)
	other.MustHave(grant.StateReady, nil, nil)

	tenant.letGo()
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	if n.Metric("leaked") != 0 || n.Metric("revoked_total") != 2 {
		t.Errorf("leaked %v, revoked %v", n.Metric("leaked"), n.Metric("revoked_total"))
	}
}
