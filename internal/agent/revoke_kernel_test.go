package agent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// revokeBound tells a pass that ends from one that waits for the tenant. On a busy
// machine each of its two looks through the processes may take its whole 5 s.
const revokeBound = 30 * time.Second

// granted is a running Pod whose home and a second folder are mounted.
func granted(t testing.TB) (*agenttest.Node, *agenttest.Pod) {
	t.Helper()
	n := agenttest.NewNode(t)
	must(t, os.Chmod(n.Home("h/u1", 0o777, "f"), 0o777))
	n.Home("h/u2", 0o777, "f")
	p := n.RunningPod("pod")
	p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	return n, p
}

// mustBeQuick makes a pass and fails the test when it takes too long.
func mustBeQuick(t testing.TB, p *agenttest.Pod) {
	t.Helper()
	began := time.Now()
	p.Pass()
	if took := time.Since(began); took > revokeBound {
		t.Errorf("the pass took %s", took)
	}
}

// mustHold revokes u1 while somebody has it, then has it let go.
func mustHold(t *testing.T, n *agenttest.Node, p *agenttest.Pod, letGo func()) {
	t.Helper()
	p.Grant(home("h/u2", "u2"))
	mustBeQuick(t, p)
	for range 2 { // seen again, it is still held
		st := p.MustHave(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
		if !strings.Contains(st.Messages["u1"], "process ") {
			t.Errorf("the message names nobody: %q", st.Messages["u1"])
		}
		if n.Metric("leaked") != 1 || n.Metric("leaked_total") != 1 || n.Metric("revoked_total") != 0 {
			t.Errorf("leaked %v, ever %v, revoked %v", n.Metric("leaked"), n.Metric("leaked_total"), n.Metric("revoked_total"))
		}
		mustBeQuick(t, p)
	}
	// It is in the journal, too.
	n.Restart()
	p.MustAnswer(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
	letGo()
	p.MustAnswer(grant.StateReady, []string{"u2"}, nil)
	if n.Metric("leaked") != 0 || n.Metric("revoked_total") != 1 {
		t.Errorf("leaked %v, revoked %v", n.Metric("leaked"), n.Metric("revoked_total"))
	}
	p.Annotate(nil)
	p.Pass()
	must(t, p.Ctr.Stop())
	clean(t, n, p)
}

func TestARevokedGrantWithAnOpenFileIsHeldUntilItIsClosed(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	h, err := p.Ctr.Hold(in + "u1/f")
	must(t, err)
	mustHold(t, n, p, func() {
		must(t, p.Ctr.HeldWrite(h, []byte("late")))
		must(t, p.Ctr.Drop(h))
	})
}

func TestARevokedGrantThatAProcessStandsInIsHeldUntilItLeaves(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	user := p.Ctr.AsUser(userID, groupID)
	must(t, user.Chdir(in+"u1"))
	mustHold(t, n, p, func() { must(t, user.Chdir("/")) })
}

func TestARevokedGrantThatIsMappedIsHeldUntilItIsUnmapped(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	h, err := p.Ctr.Mmap(in + "u1/f")
	must(t, err)
	mustHold(t, n, p, func() { must(t, p.Ctr.Drop(h)) })
}

// No unmount arrives in such a namespace. With the folder in the tree that the
// mount stands on, the kernel takes it from there all the same.
func TestARevokedGrantGoesFromANamespaceOfTheUsersOwn(t *testing.T) {
	t.Parallel()
	_, p := granted(t)
	must(t, p.Ctr.PinPrivate(in+"u1/f"))
	p.Grant(home("h/u2", "u2"))
	mustBeQuick(t, p)
	p.MustHave(grant.StateReady, []string{"u2"}, nil)
	if b, err := p.Ctr.PinRead(in + "u1/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pin reads %q, %v", b, err)
	}
	if b, err := p.Ctr.PinRead(in + "u2/f"); err != nil {
		t.Errorf("the pin reads %q, %v from the grant that stands", b, err)
	}
}

func TestARevokedGrantWithAFileOpenInANamespaceOfTheUsersOwnIsHeldUntilThatEnds(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, p.Ctr.PinPrivate(in+"u1/f"))
	h, err := p.Ctr.Pinned().Hold(in + "u1/f")
	must(t, err)
	mustHold(t, n, p, func() {
		if b, err := p.Ctr.Pinned().HeldRead(h); err != nil || len(b) == 0 {
			t.Errorf("the pin reads %q, %v: this was no pin", b, err)
		}
		must(t, p.Ctr.Unpin())
	})
}

func TestARevokedGrantBoundInANamespaceOfTheUsersOwnIsHeldUntilThatEnds(t *testing.T) {
	t.Parallel()
	// The second is where the Pod has a volume, on the same claim for all that the
	// agent knows: a place where a copy is expected, and a good one to hide in.
	for _, at := range []string{"/tmp", "/data"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			if at == "/data" {
				must(t, p.Ctr.Mkdir(at, 0o755))
				n.API.Change(p.UID, func(p *plan.Pod) { p.OtherPaths = []string{at} })
			}
			must(t, p.Ctr.PinPrivate(in+"u1/f"))
			must(t, p.Ctr.Pinned().BindMount(in+"u1", at))
			mustHold(t, n, p, func() {
				if b, err := p.Ctr.PinRead(at + "/f"); err != nil || len(b) == 0 {
					t.Errorf("the pin reads %q, %v: this was no pin", b, err)
				}
				must(t, p.Ctr.Unpin())
			})
		})
	}
}

func TestARevokedGrantBoundElsewhereIsHeldUntilThatIsUnmounted(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, p.Ctr.Mkdir("/tmp/copy", 0o755))
	must(t, p.Ctr.BindMount(in+"u1", "/tmp/copy"))
	mustHold(t, n, p, func() { must(t, p.Ctr.Unmount("/tmp/copy")) })
}

// Another grant of the Pod is the Pod's own; what the tenant mounts in it is not.
func TestARevokedGrantBoundInAnotherGrantIsHeldUntilThatIsUnmounted(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, p.Ctr.Mkdir(in+"u2/copy", 0o755))
	must(t, p.Ctr.BindMount(in+"u1", in+"u2/copy"))
	mustHold(t, n, p, func() { must(t, p.Ctr.Unmount(in+"u2/copy")) })
}

func TestARevokedGrantBoundOverAnotherGrantIsHeldUntilThatIsUnmounted(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, p.Ctr.BindMount(in+"u1", in+"u2"))
	mustHold(t, n, p, func() { must(t, p.Ctr.Unmount(in+"u2")) })
}

// The kernel takes a tenant's mounts in and over a grant away with the folder
// that they stand on.
func TestAGrantWithMountsOfTheTenantsInsideAndOverItIsRevoked(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	must(t, p.Ctr.Mkdir(in+"u1/sub", 0o755))
	must(t, p.Ctr.Mount("tmpfs", in+"u1/sub"))
	must(t, p.Ctr.Mount("tmpfs", in+"u2"))
	p.Grant()
	mustBeQuick(t, p)
	p.MustHave(grant.StateReady, nil, nil)
	if seen := seenBy(t, p.Ctr); len(seen) != 0 {
		t.Errorf("the sandbox sees %v", seen)
	}
	if n.Metric("leaked_total") != 0 {
		t.Errorf("leaked %v", n.Metric("leaked_total"))
	}
	p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	must(t, p.Ctr.WriteFile(in+"u2/f", nil, 0o644))
}

func TestAFileOpenUnderAMountOfTheTenantsIsFound(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	h, err := p.Ctr.Hold(in + "u1/f")
	must(t, err)
	must(t, p.Ctr.Mkdir(in+"u1/sub", 0o755))
	must(t, p.Ctr.Mount("tmpfs", in+"u1/sub"))
	must(t, p.Ctr.Mount("tmpfs", in+"u1"))
	mustHold(t, n, p, func() { must(t, p.Ctr.Drop(h)) })
}

func TestAShellInTheVolumeItselfKeepsNoGrant(t *testing.T) {
	t.Parallel()
	n, p := granted(t)
	user := p.Ctr.AsUser(userID, groupID)
	must(t, user.Chdir(simnode.DefaultMountPath))
	p.Grant(home("h/u2", "u2"))
	mustBeQuick(t, p)
	p.MustHave(grant.StateReady, []string{"u2"}, nil)
	if names, err := user.ReadDir("."); err != nil || strings.Join(names, " ") != "u2" {
		t.Errorf("the shell lists %v, %v", names, err)
	}
	// The volume itself cannot go; nothing is mounted in it, and nothing is held.
	p.Annotate(nil)
	mustBeQuick(t, p)
	if st := p.Status(); st != nil || n.Metric("leaked_total") != 0 {
		t.Errorf("answered %+v, leaked %v", st, n.Metric("leaked_total"))
	}
	if released := n.Metric("released_total"); released != 0 {
		t.Errorf("%v released, and the tree stands", released)
	}
	// It serves again from there.
	p.Grant(home("h/u1", "u1"))
	p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
	must(t, user.WriteFile("u1/new", nil, 0o644))
	p.Annotate(nil)
	p.Pass()
	must(t, user.Chdir("/"))
	p.Pass()
	if released := n.Metric("released_total"); released != 1 {
		t.Errorf("%v released, and the tree is gone", released)
	}
	must(t, p.Ctr.Stop())
	clean(t, n, p)
}

func TestAChangedGrantIsMountedBesideTheOldOneThatIsHeld(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(p *agenttest.Pod) (write func() error, letGo func() error){
		"open file": func(p *agenttest.Pod) (func() error, func() error) {
			h, err := p.Ctr.Hold(in + "u1/f")
			must(t, err)
			return func() error { return p.Ctr.HeldWrite(h, []byte("x")) }, func() error { return p.Ctr.Drop(h) }
		},
		"namespace": func(p *agenttest.Pod) (func() error, func() error) {
			must(t, p.Ctr.PinPrivate(in+"u1/f"))
			must(t, p.Ctr.Pinned().BindMount(in+"u1", "/tmp"))
			return func() error { return p.Ctr.Pinned().WriteFile("/tmp/f", []byte("x"), 0o644) }, p.Ctr.Unpin
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			must(t, os.Chmod(filepath.Join(n.Claim, "h/u1/f"), 0o666))
			write, letGo := hold(p)
			p.Grant(dataset("h/u1", "u1"), home("h/u2", "u2"))
			mustBeQuick(t, p)
			for range 3 {
				p.MustHave(grant.StateDegraded, []string{"u1", "u2"}, codes("u1", "HELD"))
				wants(t, "a write through the new one", p.Ctr.WriteFile(in+"u1/f", nil, 0o644), unix.EROFS)
				must(t, write())
				p.Pass()
			}
			must(t, letGo())
			p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
		})
	}
}

func TestAVolumeOfThePodOnTheSameClaimIsNoCopy(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]uintptr{"with its own flags": 0, "with a grant's flags": unix.MS_NOSUID | unix.MS_NODEV} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := agenttest.NewNode(t)
			fs := filepath.Join(n.Claim, "h")
			must(t, os.Mkdir(fs, 0o755))
			must(t, unix.Mount("other", fs, "tmpfs", flags, "mode=0755"))
			n.Home("h/u1/sub", 0o777, "f")
			p := n.NewPod("pod")
			must(t, p.SetUpVolume(false))
			p.Start(simnode.ContainerOptions{ExtraBinds: map[string]string{
				filepath.Join(fs, "u1"):     "/whole",
				filepath.Join(fs, "u1/sub"): "/part",
				fs:                          "/fs",
			}})
			n.API.Change(p.UID, func(p *plan.Pod) { p.OtherPaths = []string{"/whole", "/part", "/fs"} })
			p.Grant(home("h/u1", "u1"))
			p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
			p.Grant()
			mustBeQuick(t, p)
			p.MustHave(grant.StateReady, nil, nil)
			if _, err := p.Ctr.ReadFile("/whole/sub/f"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAGrantThatStandsIsNoCopyOfAnotherWithTheSameSource(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	n.Home("h/u1/sub", 0o777, "f")
	p := n.RunningPod("pod")
	p.Grant(home("h/u1", "a"), dataset("h/u1", "b"), dataset("h/u1/sub", "c"))
	p.MustAnswer(grant.StateReady, []string{"a", "b", "c"}, nil)
	p.Grant(dataset("h/u1", "b"), dataset("h/u1/sub", "c"))
	mustBeQuick(t, p)
	p.MustHave(grant.StateReady, []string{"b", "c"}, nil)
	// Nor when the folder has another name by then.
	must(t, os.Rename(filepath.Join(n.Claim, "h/u1"), filepath.Join(n.Claim, "h/u2")))
	p.Grant(dataset("h/u1/sub", "c"))
	mustBeQuick(t, p)
	p.MustHave(grant.StateReady, []string{"c"}, nil)
}

// umount says busy to a mount with another one beneath it, always. That is no
// reason to call it held.
func TestARecursiveGrantIsRevokedAlthoughUmountCallsItBusy(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	mountFS(t, filepath.Join(n.Claim, "h/u1/nested"))
	must(t, os.WriteFile(filepath.Join(n.Claim, "h/u1/nested/f"), []byte("x"), 0o666))
	p := n.RunningPod("pod")
	p.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	p.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	h, err := p.Ctr.Hold(in + "u1/nested/f")
	must(t, err)
	mustHold(t, n, p, func() { must(t, p.Ctr.Drop(h)) })

	q := n.RunningPod("other")
	q.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	q.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	must(t, q.Ctr.Mkdir("/tmp/copy", 0o755))
	must(t, q.Ctr.BindMount(in+"u1/nested", "/tmp/copy"))
	q.Grant(home("h/u2", "u2"))
	mustBeQuick(t, q)
	q.MustHave(grant.StateDegraded, []string{"u2"}, codes("u1", "HELD"))
	must(t, q.Ctr.Unmount("/tmp/copy"))
	q.MustAnswer(grant.StateReady, []string{"u2"}, nil)

	q.Grant(home("h/u1", "u1"), home("h/u2", "u2"))
	q.MustAnswer(grant.StateReady, []string{"u1", "u2"}, nil)
	leaked := n.Metric("leaked_total")
	q.Grant(home("h/u2", "u2"))
	mustBeQuick(t, q)
	q.MustHave(grant.StateReady, []string{"u2"}, nil)
	if n.Metric("leaked_total") != leaked {
		t.Error("it was counted as leaked")
	}
}

func TestAFolderRenamedOrDeletedWhileItIsMountedIsProvenAdoptedAndRevoked(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(dir string) error{
		"renamed": func(dir string) error { return os.Rename(dir, dir+"-renamed") },
		"parent":  func(dir string) error { return os.Rename(filepath.Dir(dir), filepath.Dir(dir)+"-renamed") },
		"deleted": os.RemoveAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, p := granted(t)
			dir := filepath.Join(n.Claim, "h/u1")
			if name == "parent" {
				p.Grant(home("h/u1", "u1"))
				p.MustAnswer(grant.StateReady, []string{"u1"}, nil)
			}
			before := seenBy(t, p.Ctr)["u1"]
			must(t, change(dir))
			must(t, p.Ctr.Chdir(in+"u1"))
			// Proven by a container that starts now.
			p.StartNamed("late", simnode.ContainerOptions{})
			want := []string{"u1", "u2"}[:len(p.Status().Mounted)]
			p.MustAnswer(grant.StateReady, want, nil)
			// Adopted by an agent that starts now, and kept by its sweeps.
			n.Restart()
			for range 2 {
				if name == "deleted" {
					// It stands, and nothing can be done in it any more.
					st := p.MustAnswer(grant.StateDegraded, want, codes("u1", "MOUNT_DEAD"))
					if !strings.Contains(st.Messages["u1"], "deleted") {
						t.Errorf("the message is %q", st.Messages["u1"])
					}
				} else {
					p.MustAnswer(grant.StateReady, want, nil)
				}
				must(t, n.Agent.Sweep(t.Context()))
			}
			if now := seenBy(t, p.Ctr)["u1"]; len(now) != 1 || now[0].ID != before[0].ID {
				t.Errorf("mounted anew: %+v, was %+v", now, before)
			}
			// Revoked, and its holder found.
			p.Grant()
			mustBeQuick(t, p)
			if st := p.Status(); st.Failed["u1"] != grant.CodeHeld {
				t.Errorf("answered %+v", st)
			}
			must(t, p.Ctr.Chdir("/"))
			p.MustAnswer(grant.StateReady, nil, nil)
			if seen := seenBy(t, p.Ctr); len(seen) != 0 {
				t.Errorf("the sandbox sees %v", seen)
			}
		})
	}
}

// Many at once cost no more than one.
func TestManyHeldGrantsAreRevokedWithinTheSameBound(t *testing.T) {
	t.Parallel()
	n := agenttest.NewNode(t)
	p := n.RunningPod("pod")
	var mounts []grant.Mount
	for i := range 16 {
		n.Home(fmt.Sprintf("h/%d", i), 0o777, "f")
		mounts = append(mounts, home(fmt.Sprintf("h/%d", i), fmt.Sprintf("t%d", i)))
	}
	p.Grant(mounts...)
	p.Pass()
	for i := range 16 {
		_, err := p.Ctr.Hold(fmt.Sprintf("%st%d/f", in, i))
		must(t, err)
	}
	p.Grant()
	mustBeQuick(t, p)
	st := p.Status()
	if len(st.Failed) != 16 || len(st.Mounted) != 0 || n.Metric("leaked") != 16 {
		t.Errorf("answered %+v, leaked %v", st, n.Metric("leaked"))
	}
	if _, err := os.Stat(filepath.Join(treeOf(n, p), "t0")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder is left in the tree: %v", err)
	}
	// The Pod ends, and with it every holder.
	must(t, p.Ctr.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	clean(t, n, p)
	if n.Metric("leaked") != 0 {
		t.Errorf("leaked %v", n.Metric("leaked"))
	}
}
