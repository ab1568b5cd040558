package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// furnish puts into dir a program, the same one with the set-uid bit, and a
// device, all open to everybody.
func furnish(t testing.TB, dir string) {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.Chmod(dir, 0o777))
	for name, mode := range map[string]os.FileMode{"program": 0o755, "set-uid": 0o755 | os.ModeSetuid} {
		must(t, os.WriteFile(filepath.Join(dir, name), program, 0o700))
		must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	must(t, unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, os.Chmod(filepath.Join(dir, "device"), 0o666))
}

// flagsHold checks by effect, and by the container's own mount table, that the
// three grants of TestFlagsHold are what was asked, with what is mounted beneath.
func flagsHold(t *testing.T, c *simnode.Container) {
	t.Helper()
	user := c.AsUser(userID, groupID)
	for target, want := range map[string]mnt.Flags{
		"rw":     mnt.NoSUID | mnt.NoDev,
		"ro":     mnt.NoSUID | mnt.NoDev | mnt.ReadOnly,
		"noexec": mnt.NoSUID | mnt.NoDev | mnt.NoExec,
	} {
		for _, name := range []string{target, target + "/nested"} {
			if ms := seenBy(t, c)[name]; len(ms) != 1 || ms[0].Flags != want {
				t.Errorf("%s is mounted as %+v, want %s", name, ms, want)
			}
			dir := in + name
			write := user.WriteFile(dir+"/new", nil, 0o644)
			if want&mnt.ReadOnly != 0 {
				wants(t, "a write in "+name, write, unix.EROFS)
			} else {
				wants(t, "a write in "+name, write, nil)
			}
			wants(t, "a device in "+name, c.OpenDevice(dir+"/device"), unix.EACCES)
			_, out, err := user.Exec(dir + "/set-uid")
			if want&mnt.NoExec != 0 {
				wants(t, "a program in "+name, err, unix.EACCES)
			} else if err != nil || !strings.Contains(out, "euid=1000") {
				t.Errorf("a set-uid program in %s: %q, %v", name, out, err)
			}
		}
	}
	wants(t, "a folder in the volume", c.Mkdir(in+"planted", 0o755), unix.EROFS)
}

func TestFlagsHoldInsideContainersStartedBeforeAndAfterTheGrant(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	for _, name := range []string{"rw", "ro", "noexec"} {
		dir := n.Home("home/"+name, 0o777)
		mountFS(t, filepath.Join(dir, "nested"))
		furnish(t, dir)
		furnish(t, filepath.Join(dir, "nested"))
	}
	p := n.RunningPod("pod")
	early := p.Ctr
	noexec := home("home/noexec", "noexec")
	noexec.AllowExec = false
	p.Grant(home("home/rw", "rw"), dataset("home/ro", "ro"), noexec)
	p.MustAnswer(grant.StateReady, []string{"noexec", "ro", "rw"}, nil)
	flagsHold(t, early)
	late := p.StartNamed("late", simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"noexec", "ro", "rw"}, nil)
	flagsHold(t, late)
	flagsHold(t, early)

	// A later mount beneath a source does not slip in, writable, through ro.
	mountFS(t, filepath.Join(n.Claim, "home/ro/slips-in"))
	for _, c := range []*simnode.Container{early, late} {
		if seen := seenBy(t, c); len(seen) != 6 {
			t.Errorf("the container sees %v", seen)
		}
	}

	// A republication takes nothing from what stands.
	must(t, unix.Unmount(p.VolumePath(), unix.MNT_DETACH))
	p.MustAnswer(grant.StateReady, []string{"noexec", "ro", "rw"}, nil)
	flagsHold(t, early)
}

func TestARestartedContainerProvesItsMountsAgain(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	p.Grant(home("h/1", "t"))
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
	answers := n.API.Answers()

	// Between two containers nothing is known to be wrong.
	must(t, p.Ctr.Stop())
	n.API.Change(p.UID, func(p *plan.Pod) { p.Uses[0].ID = "" })
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
	if n.API.Answers() != answers {
		t.Error("a restart that changed nothing was answered")
	}
	// The next one does not see it: that an earlier one did is no proof.
	must(t, p.Ctr.Stop())
	p.Start(simnode.ContainerOptions{Private: true})
	must(t, p.Ctr.Unmount(in+"t"))
	p.MustAnswer(grant.StateFailed, nil, codes("t", "MOUNT_FAILED"))
	must(t, p.Ctr.Stop())
	p.Start(simnode.ContainerOptions{})
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
}

func TestAContainerRestartedInMidGrantIsProvenUnderItsNewID(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	old := p.Ctr.ID()
	must(t, p.Ctr.Stop())
	p.Start(simnode.ContainerOptions{})
	id := p.Ctr.ID()
	// The API still names the container that has ended.
	n.API.Change(p.UID, func(p *plan.Pod) { p.Uses[0].ID = old })
	p.Grant(home("h/1", "t"))
	if again := p.Pass(); again <= 0 || p.Status() != nil {
		t.Fatalf("a pass again after %s, answered %+v", again, p.Status())
	}
	n.API.Change(p.UID, func(p *plan.Pod) { p.Uses[0].ID = id })
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
}

func TestEveryContainerOfThePodMustSeeAGrant(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	second := p.StartNamed("second", simnode.ContainerOptions{MountPath: "/data"})
	p.Grant(home("h/1", "t"))
	p.MustAnswer(grant.StateReady, []string{"t"}, nil)
	must(t, second.AsUser(userID, groupID).WriteFile("/data/t/f", []byte("x"), 0o644))
	if b, err := p.Ctr.ReadFile(in + "t/f"); err != nil || string(b) != "x" {
		t.Errorf("the other container reads %q, %v", b, err)
	}
	p.StartNamed("blind", simnode.ContainerOptions{MountPath: "/blind", Private: true})
	p.Grant(home("h/1", "t"), home("h/2", "u"))
	st := p.MustAnswer(grant.StateDegraded, []string{"t"}, codes("u", "MOUNT_FAILED"))
	if !strings.Contains(st.Messages["u"], `"blind"`) {
		t.Errorf("the message is %q", st.Messages["u"])
	}
}

// Mounted where it stands is not enough: the flags are part of the proof.
func TestAMountThatAContainerSeesWithWeakerFlagsIsNotReady(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Home("data", 0o777, "f")
	p := n.NewPod("pod")
	must(t, p.SetUpVolume(false))
	// The container has the folder there in another way, and nothing arrives.
	p.Start(simnode.ContainerOptions{Private: true, ExtraBinds: map[string]string{filepath.Join(n.Claim, "data"): in + "t"}})
	p.Grant(dataset("data", "t"))
	p.MustAnswer(grant.StateFailed, nil, codes("t", "MOUNT_FAILED"))
}
