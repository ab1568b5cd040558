package agent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// The user that a sandbox runs as.
const userID, groupID = 1000, 100

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// home is a writable grant of a folder that is made on first use.
func home(source, target string) grant.Mount {
	return grant.Mount{Kind: grant.KindFiles, Source: source, Target: target, Mode: grant.ReadWrite, AllowExec: true}
}

// dataset is a read-only grant of a folder that must exist.
func dataset(source, target string) grant.Mount {
	return grant.Mount{Kind: grant.KindSharedFolder, Source: source, Target: target, Mode: grant.ReadOnly, AllowExec: true}
}

// codes is failed of an answer, written as target, code, target, code.
func codes(pairs ...string) map[string]grant.Code {
	m := map[string]grant.Code{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = grant.Code("NODE_MOUNT_GATEWAY_" + pairs[i+1])
	}
	return m
}

// entry is a grant as it stands in the annotation, for those that no writer of
// ours would write.
func entry(fields string) string {
	return "{" + fields + "}"
}

func annotation(hash string, entries ...string) *string {
	s := fmt.Sprintf(`{"hash":%q,"mounts":[%s]}`, hash, strings.Join(entries, ","))
	return &s
}

// mountFS mounts a new tmpfs on a folder, as somebody else on the node would.
// It goes with the node.
func mountFS(t testing.TB, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	must(t, unix.Mount("other", dir, "tmpfs", 0, "mode=0755"))
}

func absent(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there (%v)", path, err)
	}
}

// treeOf is where the agent keeps a Pod's grants.
func treeOf(n *agenttest.Node, p *agenttest.Pod) string {
	return filepath.Join(n.Root, "pods", p.UID)
}

// standing are the mounts that the agent's own table has at a place.
func standing(t testing.TB, point string) []mnt.Mount {
	t.Helper()
	var k mnt.Kernel // not the agent's: that one counts how often it is read
	ms, err := k.List()
	must(t, err)
	return slices.DeleteFunc(ms, func(m mnt.Mount) bool { return m.Point != point })
}

// seenBy are the grants in the mount table of a container, by target.
func seenBy(t testing.TB, c *simnode.Container) map[string][]mnt.Mount {
	t.Helper()
	ms, err := c.Mounts()
	must(t, err)
	out := map[string][]mnt.Mount{}
	for _, m := range ms {
		if target, ok := strings.CutPrefix(m.Point, in); ok {
			out[target] = append(out[target], m)
		}
	}
	return out
}

// clean fails the test unless nothing of the Pod is left on the node and in the
// journal, and kubelet can take the volume away.
func clean(t testing.TB, n *agenttest.Node, p *agenttest.Pod) {
	t.Helper()
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	absent(t, treeOf(n, p))
	absent(t, filepath.Join(n.Root, "journal", p.UID+".json"))
	tearDown(t, p)
}

// tearDown has kubelet try until the volume is gone. Once is not enough: a
// process that another test is starting has our descriptors for an instant, and
// what they are open on is busy.
func tearDown(t testing.TB, p *agenttest.Pod) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	how, err := p.TearDownVolume()
	for end := time.Now().Add(patience); errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
		<-tick.C
		how, err = p.TearDownVolume()
	}
	if how == "disk" || err != nil {
		t.Errorf("kubelet's teardown took the branch %q: %v", how, err)
	}
	absent(t, p.VolumePath())
}
