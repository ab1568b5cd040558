package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
)

// back puts a storage with the folder u1 in the place of one that has died.
func back(t testing.TB, s *storage) {
	t.Helper()
	s.unmount(t)
	serve(t, s.dir, rules{})
	must(t, os.Mkdir(filepath.Join(s.dir, "u1"), 0o777))
	must(t, os.WriteFile(filepath.Join(s.dir, "u1/f"), []byte("again"), 0o644))
}

func TestADeadGrantIsMountedAnewWhenItsStorageIsBack(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"by the agent that saw it die": false, "by the next agent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, s, _ := withStorage(t)
			p := n.RunningPod("pod")
			must(t, os.Mkdir(filepath.Join(s.dir, "gone"), 0o777))
			p.Grant(dataset("remote/u1", "u1"), dataset("remote/gone", "gone"), home("h/u2", "u2"))
			p.MustAnswer(grant.StateReady, []string{"gone", "u1", "u2"}, nil)
			before := ids2(t, p)
			s.die(t)
			must(t, n.Agent.Sweep(t.Context()))
			p.MustAnswer(grant.StateDegraded, []string{"gone", "u1", "u2"}, codes("gone", "MOUNT_DEAD", "u1", "MOUNT_DEAD"))
			back(t, s)
			if restart {
				n.Restart()
			} else {
				must(t, n.Agent.Sweep(t.Context()))
			}
			// What the storage does not have any more is not taken away for nothing.
			p.MustAnswer(grant.StateDegraded, []string{"gone", "u1", "u2"}, codes("gone", "MOUNT_DEAD"))
			if text, err := p.Ctr.ReadFile(in + "u1/f"); err != nil || string(text) != "again" {
				t.Errorf("in the sandbox: %q, %v", text, err)
			}
			_, err := p.Ctr.ReadDir(in + "gone")
			wants(t, "reading gone", err, unix.ENOTCONN)
			now := ids2(t, p)
			if now["u2"] != before["u2"] || now["gone"] != before["gone"] || len(seenBy(t, p.Ctr)["u1"]) != 1 {
				t.Errorf("mounted as %v, was %v", now, before)
			}
			if n.Metric("leaked_total") != 0 {
				t.Errorf("leaked %v", n.Metric("leaked_total"))
			}
		})
	}
}

func TestAGrantWhoseClaimWasMountedAnewIsLeftAloneWhileItLives(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	p := n.RunningPod("pod")
	p.Grant(dataset("remote/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	before := ids(t, n, p)
	back(t, s)
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	undisturbed(t, n, p, before)
}

func TestAFolderThatIsOpenInADeadGrantIsHeldAndTheNewOneIsThere(t *testing.T) {
	t.Parallel()
	n, s, _ := withStorage(t)
	p := n.RunningPod("pod")
	p.Grant(dataset("remote/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	user := p.Ctr.AsUser(userID, groupID)
	must(t, user.Chdir(in+"u1"))
	s.die(t)
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"u1"}, codes("u1", "MOUNT_DEAD"))
	back(t, s)
	must(t, n.Agent.Sweep(t.Context()))
	p.MustAnswer(grant.StateDegraded, []string{"u1"}, codes("u1", "HELD"))
	if text, err := p.Ctr.ReadFile(in + "u1/f"); err != nil || string(text) != "again" {
		t.Errorf("in the sandbox: %q, %v", text, err)
	}
	must(t, user.Chdir("/"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
}
