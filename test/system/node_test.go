package system_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/operator"
)

const (
	// patience is how long a test waits for what takes milliseconds on a machine
	// that has nothing else to do. It is more than the longest pause of a client
	// whose API server was away: client-go's reflector tries again after 30 to 60 s.
	patience = 2 * time.Minute
	// glance is the pause between two looks at what sends no events.
	glance = 20 * time.Millisecond
)

// node is a node with its claim, its kubelet, which is the test, and at most one
// agent at a time.
type node struct {
	*simnode.Node
	t               *testing.T
	c               *cluster
	name, namespace string
	kubeconfig      string
	boot            string // the agents' boot, "" for the node's
	outlives        string // what is mounted here does not end with a boot
	operator        *operator.Client

	agent  *agentProcess
	agents []*agentProcess
	claim  map[string]string // what the claim has to have in the end
	made   string            // a folder of it that agents make, "" for none
}

// node makes a node, a namespace for its Pods and the agent's rights there. When
// the test ends, nothing may be left on it: every test deletes its Pods.
func (c *cluster) node(t *testing.T) *node {
	t.Helper()
	return c.nodeWith(t, agentRules())
}

// nodeWith is node with other rights for its agent.
func (c *cluster) nodeWith(t *testing.T, rules []rbacv1.PolicyRule) *node {
	t.Helper()
	name := fmt.Sprintf("n-%08x", rand.Uint32())
	n := &node{t: t, c: c, name: name, namespace: name, operator: operator.New(c.admin.CoreV1(), c.names)}
	n.kubeconfig = c.namespace(t, n.namespace, rules)
	var err error
	n.Node, err = simnode.New(simnode.Options{})
	must(t, err)
	t.Cleanup(n.end)
	for _, rel := range []string{"home/users/ada", "home/users/bob", "home/teams/red", "datasets/cats"} {
		n.folder(rel)
	}
	n.claim = n.checksums()
	return n
}

// folder makes a folder of the claim with files in it.
func (n *node) folder(rel string) {
	n.t.Helper()
	dir := filepath.Join(n.Claim, rel)
	must(n.t, os.MkdirAll(filepath.Join(dir, "deep/er"), 0o755))
	for _, name := range []string{"file", "deep/two", "deep/er/three"} {
		must(n.t, os.WriteFile(filepath.Join(dir, name), []byte(rel+" "+name), 0o644))
	}
	if strings.HasPrefix(rel, "home/") {
		must(n.t, os.Chown(dir, 1000, 100))
	}
}

// checksums are every file and folder of the claim with owner, mode and content.
func (n *node) checksums() map[string]string {
	n.t.Helper()
	sums := make(map[string]string)
	must(n.t, filepath.WalkDir(n.Claim, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == n.made {
			return fs.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		what := fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode)
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(text)
			what += " " + hex.EncodeToString(sum[:])
		}
		sums[path] = what
		return nil
	}))
	return sums
}

// mustHaveClaim says what of the claim has changed.
func (n *node) mustHaveClaim() {
	n.t.Helper()
	now := n.checksums()
	if maps.Equal(n.claim, now) {
		return
	}
	for path, what := range n.claim {
		if now[path] != what {
			n.t.Errorf("%s is %q, was %q", path, now[path], what)
		}
	}
	for path, what := range now {
		if _, was := n.claim[path]; !was {
			n.t.Errorf("%s is new: %s", path, what)
		}
	}
}

// end looks for what the test has left, and puts the node away.
func (n *node) end() {
	if n.agent != nil {
		n.agent.Kill()
	}
	n.mustHaveRecorded()
	if !n.t.Failed() {
		n.mustHaveClaim()
		for _, m := range n.ours() {
			n.t.Errorf("left: %s on %s", m.Root, m.Point)
		}
		trees, err := os.ReadDir(filepath.Join(n.Root, "pods"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) || len(trees) > 0 {
			n.t.Errorf("left: %v, %v", trees, err)
		}
		records, err := filepath.Glob(filepath.Join(n.Root, "journal", "*.json*"))
		if err != nil || len(records) > 0 {
			n.t.Errorf("left: %v, %v", records, err)
		}
	}
	if n.t.Failed() {
		n.tell()
	}
	if err := n.Close(); err != nil {
		n.t.Errorf("closing the node: %v", err)
	}
}

// ours are the mounts of the host that the agent makes, and kubelet's volumes.
func (n *node) ours() []mnt.Mount {
	n.t.Helper()
	ms, err := n.Mounts()
	must(n.t, err)
	return slices.DeleteFunc(ms, func(m mnt.Mount) bool {
		return !mnt.Within(filepath.Join(n.Root, "pods"), m.Point) && !mnt.Within(filepath.Join(n.Kubelet, "pods"), m.Point)
	})
}

// tableOf is the mount table of a process, false for one that has ended.
func (n *node) tableOf(pid int) ([]mnt.Mount, bool) {
	n.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	// EINVAL: it is about to end, and has no namespace any more.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH) {
		return nil, false
	}
	must(n.t, err)
	defer f.Close()
	ms, err := mnt.ParseMountinfo(f)
	if errors.Is(err, unix.ESRCH) {
		return nil, false
	}
	must(n.t, err)
	return ms, true
}

// at counts the mounts on a path.
func at(table []mnt.Mount, point string) int {
	count := 0
	for _, m := range table {
		if m.Point == point {
			count++
		}
	}
	return count
}

// eventually looks until what it waits for holds. ready says what is missing.
func eventually(t testing.TB, what string, ready func() (missing string)) {
	t.Helper()
	end := time.After(patience)
	for {
		missing := ready()
		if missing == "" {
			return
		}
		select {
		case <-time.After(glance):
		case <-end:
			t.Fatalf("waiting for %s: %s", what, missing)
		}
	}
}

// throughout looks again and again for d, and fails at the first time that
// something is wrong.
func throughout(t testing.TB, d time.Duration, wrong func() string) {
	t.Helper()
	for end := time.After(d); ; {
		if w := wrong(); w != "" {
			t.Fatal(w)
		}
		select {
		case <-time.After(glance):
		case <-end:
			return
		}
	}
}
