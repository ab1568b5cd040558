package agent_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/secret"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func isReady(st *grant.Status) bool { return st.State == grant.StateReady }

func isDead(target string) func(st *grant.Status) bool {
	return func(st *grant.Status) bool { return st.Failed[target] == grant.CodeMountDead }
}

// running is a Pod whose container runs, with one bucket granted and ready.
func (n *userspaceNode) running(source string, mode grant.Mode) (*agenttest.Pod, *simnode.Container) {
	n.T.Helper()
	p := n.RunningPod(source)
	c := p.Start(simnode.ContainerOptions{})
	p.Grant(bucketGrant(source, "data", mode))
	p.Answered(isReady)
	return p, c
}

func TestAFilesystemThatIsAProcessIsGrantedAndRevoked(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	for _, mode := range []grant.Mode{grant.ReadWrite, grant.ReadOnly} {
		p := n.RunningPod("sandbox-" + string(mode))
		c := p.Start(simnode.ContainerOptions{})
		p.Grant(bucketGrant("bucket", "data", mode))
		p.Answered(isReady)
		user := c.AsUser(userID, groupID)
		if got, err := user.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
			t.Errorf("%s: read %q, %v", mode, got, err)
		}
		seen := seenBy(t, c)["data"]
		if len(seen) != 1 || seen[0].FSType != "fuse.test" {
			t.Errorf("%s: the container sees %+v", mode, seen)
		}
		if mode == grant.ReadOnly {
			wants(t, "writing", c.WriteFile(in+"data/b.txt", nil, 0o644), unix.EROFS)
		} else {
			must(t, c.WriteFile(in+"data/b.txt", []byte("b"), 0o644))
		}
		if got := n.keeper.Children(); len(got) != 1 || got[0].UID < 2_000_000_000 {
			t.Errorf("%s: running: %v", mode, got)
		}
		p.Grant()
		p.Answered(isReady)
		absent(t, filepath.Join(treeOf(n.Node, p), "data"))
		within(t, "the process has ended", func() bool { return len(n.keeper.Children()) == 0 })
		must(t, c.Stop())
		n.API.Delete(p.UID)
		p.Pass()
		clean(t, n.Node, p)
	}
	if ends := n.folders.ended(); ends != 2 {
		t.Errorf("%d ends for 2 processes", ends)
	}
}

func TestAFilesystemThatDoesNotComeToServeIsAFailureAndLeavesNothing(t *testing.T) {
	n := newUserspaceNode(t)
	for source, want := range map[string]struct{ code, says string }{
		"wrong":      {"INVALID_SOURCE", "there is no such bucket"},
		"refused":    {"SECRET_REFUSED", "the key was refused"},
		"unprepared": {"SECRET_REFUSED", "has no key"},
		"missing":    {"MOUNT_FAILED", "no such file"},
	} {
		p := n.RunningPod(source)
		p.Start(simnode.ContainerOptions{})
		p.Grant(bucketGrant(source, "data", grant.ReadWrite))
		st := p.Answered(failedWith("data", want.code))
		if !strings.Contains(st.Messages["data"], want.says) || len(st.Mounted) != 0 {
			t.Errorf("%s: %+v", source, st)
		}
		absent(t, filepath.Join(treeOf(n.Node, p), "data"))
		within(t, "no process is left", func() bool { return len(n.keeper.Children()) == 0 })
	}
}

func TestAProcessOutlivesTheAgent(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	before, child := standing(t, filepath.Join(treeOf(n.Node, p), "data")), n.keeper.Children()[0]
	held, err := c.Hold(in + "data/a.txt")
	must(t, err)
	for range 3 {
		n.Restart()
		st := p.Answered(isReady)
		if len(st.Mounted) != 1 {
			t.Fatalf("the answer is %+v", st)
		}
	}
	if got, err := c.HeldRead(held); err != nil || string(got) != "a.txt\n" {
		t.Errorf("reading on: %q, %v", got, err)
	}
	must(t, c.Drop(held))
	after := standing(t, filepath.Join(treeOf(n.Node, p), "data"))
	if len(after) != 1 || len(before) != 1 || after[0].ID != before[0].ID || n.keeper.Children()[0].ID != child.ID {
		t.Errorf("it was made anew: %+v, %+v", before, after)
	}
	// And it is watched again.
	must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGKILL))
	p.Answered(isDead("data"))
	p.Answered(isReady)
}

// pauses makes passes until the Pod is ready, and lets pass between two of them the
// time that the first has asked for. It returns how much that was.
func pauses(t *testing.T, clock *clocktesting.FakeClock, p *agenttest.Pod) (all time.Duration) {
	t.Helper()
	for range 100 {
		after := p.Pass()
		if isReady(p.Status()) {
			return all
		}
		clock.Step(after)
		all += after
	}
	t.Fatalf("the answer is %+v", p.Status())
	return all
}

func TestADeadProcessIsReplacedWithoutAnEmptyFolder(t *testing.T) {
	n := newUserspaceNode(t)
	clock := clocktesting.NewFakeClock(time.Now())
	n.Clock = clock
	n.Restart()
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	mounts := len(seenBy(t, c)["data"])
	if mnttest.MountsBeneath() {
		point := filepath.Join(treeOf(n.Node, p), "data")
		defer neverEmpty(t, "on the node", func() ([]string, error) { return namesIn(point) })()
	}
	for i := range 10 {
		end := func() {}
		if mnttest.MountsBeneath() {
			end = neverEmpty(t, "in the container", func() ([]string, error) { return c.ReadDir(in + "data") })
		}
		must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGKILL))
		// What tenants are promised: the end itself has them told, and what the agent lets
		// pass before it starts another process is seconds. How quick the machine is has no
		// part in it: the agent's clock stands still.
		p.Told(isDead("data"))
		if paused := pauses(t, clock, p); paused > 5*time.Second {
			t.Errorf("kill %d: restored after %v", i, paused)
		}
		if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
			t.Fatalf("kill %d: %q, %v", i, got, err)
		}
		end()
		if got := seenBy(t, c)["data"]; len(got) != mounts {
			t.Fatalf("kill %d: %+v", i, got)
		}
		if i == 4 {
			// Another container of the Pod, between two kills.
			must(t, c.Stop())
			c = p.Start(simnode.ContainerOptions{})
		}
	}
	if n := len(n.Left()); n == 0 {
		t.Error("nothing is mounted")
	}
}

func TestADeadProcessIsReplacedByNoneThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	point := filepath.Join(treeOf(n.Node, p), "data")
	before := standing(t, point)
	silent := filepath.Join(n.folders.root, "bucket", silentName)
	must(t, os.WriteFile(silent, nil, 0o644))
	must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGKILL))
	p.Answered(isDead("data"))
	st := p.Answered(func(st *grant.Status) bool {
		return isReady(st) || strings.Contains(st.Messages["data"], "did not answer")
	})
	if !isDead("data")(st) {
		t.Fatalf("the answer is %+v", st)
	}
	if after := standing(t, point); len(after) != 1 || len(before) != 1 || after[0].ID != before[0].ID {
		t.Errorf("one that does not answer stands in its place: %+v, was %+v", after, before)
	}
	if names, err := c.ReadDir(in + "data"); err == nil {
		t.Errorf("a dead mount lists %q", names)
	}
	within(t, "the one that does not answer has ended", func() bool { return len(n.keeper.Children()) == 0 })
	must(t, os.Remove(silent))
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAKeeperThatIsReplacedCostsItsMountsASecond(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	n.keeper.Kill()
	st := p.Answered(isDead("data"))
	if st.State != grant.StateDegraded || len(st.Mounted) != 1 {
		t.Errorf("the answer is %+v", st)
	}
	if _, err := c.ReadDir(in + "data"); err == nil {
		t.Error("a dead mount can be read")
	}
	n.keeper.Start()
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
		t.Errorf("%q, %v", got, err)
	}
	// Both at once.
	n.keeper.Kill()
	n.StopAgent()
	n.keeper.Start()
	n.Restart()
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAnAgentWithoutAKeeperSaysNothingAboutProcessesItDoesNotKnow(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	answer := n.API.Answers()
	// It runs, and this agent does not find it.
	socket := n.keeper.Socket()
	must(t, os.Rename(socket, socket+".away"))
	n.Restart()
	for range 3 {
		p.Pass()
	}
	if got := n.API.Answers(); got != answer {
		t.Errorf("%d answers, want %d: %+v", got, answer, p.Status())
	}
	must(t, os.Rename(socket+".away", socket))
	within(t, "the agent has heard from the keeper", func() bool { p.Pass(); return n.API.Queued(p.UID) || isReady(p.Status()) })
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" || len(n.keeper.Children()) != 1 {
		t.Errorf("%q, %v, %v", got, err, n.keeper.Children())
	}
}

func TestAHungProcessIsFoundAndItsRevocationAbortsIt(t *testing.T) {
	n := newUserspaceNode(t)
	n.Bound = shortBound
	n.Restart()
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	n.folder("other", "other.txt")
	_, oc := n.running("other", grant.ReadWrite)
	pause(t, n.keeper.PID(p.UID+"/data"))
	// A sweep leaves out a Pod whose pass is under way.
	var st *grant.Status
	within(t, "a sweep has found it", func() bool {
		must(t, n.Agent.Sweep(t.Context()))
		p.Pass()
		st = p.Status()
		return st != nil && isDead("data")(st)
	})
	if !strings.Contains(st.Messages["data"], "does not answer") {
		t.Errorf("the answer is %+v", st)
	}
	if got, err := oc.ReadFile(in + "data/other.txt"); err != nil || string(got) != "other.txt\n" {
		t.Errorf("another Pod: %q, %v", got, err)
	}
	// Others are granted to, and revoked, meanwhile.
	n.folder("third", "third.txt")
	third, tc := n.running("third", grant.ReadWrite)
	if got, err := tc.ReadFile(in + "data/third.txt"); err != nil || string(got) != "third.txt\n" {
		t.Errorf("a Pod that came later: %q, %v", got, err)
	}
	third.Grant()
	third.Answered(isReady)
	within(t, "its process has ended", func() bool { return len(n.keeper.Children()) == 2 })
	stuck := waits(t, filepath.Join(treeOf(n.Node, p), "data"), func() error {
		_, err := c.ReadDir(in + "data")
		return err
	})
	p.Grant()
	p.Answered(isReady)
	select {
	case err := <-stuck:
		if err == nil {
			t.Error("a read of a hung filesystem succeeded")
		}
	case <-time.After(30 * time.Second):
		t.Error("a call into the revoked mount still waits")
	}
	within(t, "the process has ended", func() bool { return len(n.keeper.Children()) == 1 })
}

func TestARevocationFreesWhoWaitsForAProcessThatNobodyHasFoundToHang(t *testing.T) {
	t.Parallel()
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	pid := n.keeper.PID(p.UID + "/data")
	pause(t, pid)
	stuck := waits(t, filepath.Join(treeOf(n.Node, p), "data"), func() error {
		_, err := c.ReadDir(in + "data")
		return err
	})
	p.Grant()
	p.Answered(isReady)
	select {
	case err := <-stuck:
		if err == nil {
			t.Error("a read of a stopped filesystem succeeded")
		}
	case <-time.After(10 * time.Second): // a third of the time that the process has
		t.Error("a call into the revoked mount still waits")
	}
	// It was freed by the agent, and not by the end of the process.
	if left := n.keeper.Children(); len(left) != 1 {
		t.Errorf("the process was not given its time to store what was written: %v", left)
	}
	must(t, unix.Kill(pid, unix.SIGCONT))
	within(t, "the process has ended", func() bool { return len(n.keeper.Children()) == 0 })
}

func TestARevokedFilesystemIsOfNoUseToWhoHasItOpen(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	held, err := c.Hold(in + "data/a.txt")
	must(t, err)
	p.Grant()
	st := p.Answered(func(*grant.Status) bool { return true })
	if st.State != grant.StateReady || len(st.Failed) != 0 {
		t.Errorf("the answer is %+v", st)
	}
	if _, err := c.HeldRead(held); err == nil {
		t.Error("what was revoked can be read on")
	}
	within(t, "the process has ended", func() bool { return len(n.keeper.Children()) == 0 })
}

func TestAPodIsToldWhatTheProcessOfARevokedMountCouldNotStore(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("good", "a.txt")
	n.folder("bad", "a.txt", unstorableName)
	n.folder("killed", "a.txt")
	events := &toldEvents{}
	n.Events = events
	n.Restart()
	told := func(words ...string) bool {
		return slices.ContainsFunc(strings.Split(events.String(), "\n"), func(line string) bool {
			for _, w := range words {
				if !strings.Contains(line, w) {
					return false
				}
			}
			return true
		})
	}
	p := n.RunningPod("writes")
	p.Start(simnode.ContainerOptions{})
	in := []grant.Mount{
		bucketGrant("good", "good", grant.ReadWrite), bucketGrant("bad", "bad", grant.ReadWrite),
		bucketGrant("bad", "taken", grant.ReadWrite), bucketGrant("killed", "killed", grant.ReadWrite),
	}
	p.Grant(in...)
	p.Answered(isReady)

	stopped := n.keeper.PID(p.UID + "/killed") // does not end when it is told to
	pause(t, stopped)
	// Taken away by somebody else.
	must(t, unix.Unmount(filepath.Join(treeOf(n.Node, p), "taken"), 0))
	p.Grant(in[0])
	p.Answered(func(st *grant.Status) bool { return isReady(st) && len(st.Mounted) == 1 })
	must(t, unix.Kill(stopped, unix.SIGKILL)) // as the keeper does in the end
	within(t, "the Pod is told of the others", func() bool {
		return told(agent.ReasonLost, "bad ", "2 files could not be stored") &&
			told(agent.ReasonLost, "taken ", "2 files could not be stored") &&
			told(agent.ReasonLost, "killed ", "was killed before it ended by itself")
	})
	p.Grant()
	p.Answered(func(st *grant.Status) bool { return isReady(st) && len(st.Mounted) == 0 })
	within(t, "every process has ended", func() bool { return len(n.keeper.Children()) == 0 })
	if told(agent.ReasonLost, "good ") {
		t.Errorf("events tell of what was stored:\n%s", events)
	}
}

func TestAProcessThatServesNothingIsEnded(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, _ := n.running("bucket", grant.ReadWrite)
	n.StopAgent()
	// Taken away by somebody else while no agent runs.
	must(t, unix.Unmount(filepath.Join(treeOf(n.Node, p), "data"), 0))
	n.Restart()
	p.Answered(isReady)
	within(t, "one process is left", func() bool { return len(n.keeper.Children()) == 1 })
}

func TestAProcessThatNoMountEverHadIsEnded(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	n.folder("orphan", silentName)
	p, c := n.running("bucket", grant.ReadWrite)
	served := n.keeper.PID(p.UID + "/data")
	begin := func(target string) string {
		t.Helper()
		program, err := os.Open("/proc/self/exe")
		must(t, err)
		defer program.Close()
		_, child, pidfd, err := n.keeper.Client().Start(t.Context(), keeper.Start{
			Use: p.UID + "/" + target, Args: []string{"folder"}, Env: []string{folderEnv + "=" + filepath.Join(n.folders.root, "orphan")},
			UID: 12345, GID: 12345, Program: program,
		})
		must(t, err)
		pidfd.Close()
		return child.ID
	}
	ended := func(id string) {
		t.Helper()
		within(t, "it has ended", func() bool {
			child, err := n.keeper.Client().Child(t.Context(), id)
			must(t, err)
			if child.Ended != nil && child.Ended.Signal != unix.SIGTERM {
				t.Fatalf("it has ended by itself: %+v", child.Ended)
			}
			return child.Ended != nil
		})
	}
	// Of a start whose end the agent did not live to see: no such mount, and one that
	// another process serves.
	n.StopAgent()
	first, second := begin("other"), begin("data")
	n.Restart()
	ended(first)
	ended(second)
	p.Answered(isReady)
	// Of a revocation that did not reach the keeper.
	third := begin("other")
	must(t, n.Agent.Sweep(t.Context()))
	ended(third)
	if got := n.keeper.PID(p.UID + "/data"); got != served {
		t.Errorf("the process of a mount was replaced: %d, was %d", got, served)
	}
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a.txt\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestTheProcessesOfAPodAreDifferentUsers(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	n.folder("other", "b.txt")
	p := n.RunningPod("pod")
	p.Start(simnode.ContainerOptions{})
	p.Grant(bucketGrant("bucket", "one", grant.ReadWrite), bucketGrant("other", "two", grant.ReadWrite))
	p.Answered(isReady)
	got := n.keeper.Children()
	if len(got) != 2 || got[0].UID == got[1].UID {
		t.Errorf("running: %v", got)
	}
	// An agent that comes later gives nobody a user that is taken.
	n.Restart()
	p.Grant(bucketGrant("bucket", "one", grant.ReadWrite), bucketGrant("other", "two", grant.ReadWrite), bucketGrant("bucket", "three", grant.ReadOnly))
	p.Answered(isReady)
	users := map[int]bool{}
	for _, c := range n.keeper.Children() {
		users[c.UID] = true
	}
	if len(users) != 3 {
		t.Errorf("running: %v", n.keeper.Children())
	}
}

func TestACredentialThatCannotBeUsedAnyMoreIsTold(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, _ := n.running("bucket", grant.ReadWrite)
	n.folders.tell["data"](&secret.RefusedError{Reason: "the Secret does not belong to this Pod"})
	if !n.API.Queued(p.UID) {
		t.Error("no pass was asked for")
	}
	st := p.Answered(isDead("data"))
	if !strings.Contains(st.Messages["data"], "does not belong to this Pod") {
		t.Errorf("the answer is %+v", st)
	}
	if len(n.keeper.Children()) != 1 {
		t.Error("its process was ended")
	}
	n.folders.tell["data"](nil)
	p.Answered(isReady)
}

func TestADeletedPodLeavesNoProcess(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	must(t, c.WriteFile(in+"data/b.txt", []byte("b"), 0o644))
	must(t, c.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	within(t, "the process has ended", func() bool { return len(n.keeper.Children()) == 0 })
	clean(t, n.Node, p)
	if _, err := os.Stat(filepath.Join(n.folders.root, "bucket/b.txt")); err != nil {
		t.Error(err)
	}
}

func TestAMountThatOthersTakeAwayTakesItsProcessWithIt(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, _ := n.running("bucket", grant.ReadWrite)
	must(t, unix.Unmount(filepath.Join(treeOf(n.Node, p), "data"), 0))
	p.Annotate(nil)
	must(t, n.Agent.Sweep(t.Context()))
	p.Pass()
	within(t, "the process has ended", func() bool { return len(n.keeper.Children()) == 0 })
}

func TestAPodThatGoesWhileTheKeeperDoesNotAnswerLeavesNoProcess(t *testing.T) {
	t.Parallel() // its grace passes
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	// One that runs notices the end of its mount by itself.
	must(t, unix.Kill(n.keeper.PID(p.UID+"/data"), unix.SIGSTOP))
	socket := n.keeper.Socket()
	must(t, os.Rename(socket, socket+".away"))
	n.Restart()
	must(t, c.Stop())
	n.API.Delete(p.UID)
	p.Pass()
	must(t, os.Rename(socket+".away", socket))
	within(t, "the process has ended", func() bool {
		_, children, err := n.keeper.Client().List(t.Context())
		return err == nil && !slices.ContainsFunc(children, func(c keeper.Child) bool { return c.Ended == nil })
	})
	clean(t, n.Node, p)
}
