package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
)

func TestAServerThatGoesDownUnderAStandingMountIsTold(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	p, c := n.running("bucket", grant.ReadWrite)
	pid := n.keeper.PID(p.UID + "/data")
	down := filepath.Join(n.folders.root, "bucket", downName)
	must(t, os.WriteFile(down, nil, 0o644))
	swept := func(does func(st *grant.Status) bool) func() bool {
		return func() bool { // a sweep leaves out a Pod whose pass is under way
			must(t, n.Agent.Sweep(t.Context()))
			p.Pass()
			return does(p.Status())
		}
	}
	within(t, "it is told", swept(isDead("data")))
	if st := p.Status(); st.State != grant.StateDegraded || !strings.Contains(st.Messages["data"], "cannot reach what it serves: EHOSTUNREACH") {
		t.Errorf("the answer is %+v", st)
	}
	if _, err := c.ReadFile(in + "data/a.txt"); err != nil {
		t.Errorf("what the process can answer by itself: %v", err)
	}
	must(t, os.Remove(down))
	within(t, "it is told that it is back", swept(isReady))
	if got := n.keeper.PID(p.UID + "/data"); got != pid {
		t.Errorf("the process was replaced: %d, was %d", got, pid)
	}
}

func TestAProcessWhoseServerIsDownDoesNotComeToServe(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", downName)
	p := n.RunningPod("pod")
	p.Grant(bucketGrant("bucket", "data", grant.ReadWrite))
	p.Answered(failedWith("data", "MOUNT_FAILED"))
	absent(t, filepath.Join(treeOf(n.Node, p), "data"))
	must(t, os.Remove(filepath.Join(n.folders.root, "bucket", downName)))
	p.Answered(isReady)
}

func TestAReadOnlyBucketCannotBeWrittenThroughAnotherMountOfItEither(t *testing.T) {
	n := newUserspaceNode(t)
	n.folder("bucket", "a.txt")
	for _, mode := range []grant.Mode{grant.ReadOnly, grant.ReadWrite} {
		p := n.RunningPod("pod-" + string(mode))
		p.Grant(bucketGrant("bucket", "data", mode))
		p.Answered(isReady)
		other := t.TempDir()
		must(t, unix.Mount(filepath.Join(treeOf(n.Node, p), "data"), other, "", unix.MS_BIND, ""))
		// What root in a sandbox with a namespace of its own might try.
		must(t, unix.Mount("", other, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
		err := os.WriteFile(filepath.Join(other, "file"), nil, 0o644)
		if errors.Is(err, unix.EROFS) != (mode == grant.ReadOnly) {
			t.Errorf("%s: writing says %v", mode, err)
		}
		must(t, unix.Unmount(other, 0))
	}
}
