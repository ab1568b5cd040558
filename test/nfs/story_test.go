package nfs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/simnode"
)

const (
	// softTimeout is short, and bound shorter: an emulated machine is slow, but it is
	// alone with its server.
	softTimeout = 6 * time.Second
	bound       = 3 * time.Second
	// patience is how long a chapter waits for what has to come.
	patience = 90 * time.Second
	in       = simnode.DefaultMountPath + "/"
)

func chapters() []testing.InternalTest {
	return []testing.InternalTest{
		{Name: "an export is mounted in a running container with its flags", F: granted},
		{Name: "a server may have an IPv6 address", F: overIPv6},
		{Name: "an export that squashes root is its user's", F: squashed},
		{Name: "a read-only export cannot be written by another way either", F: readOnly},
		{Name: "what cannot be mounted is refused with the reason", F: refused},
		{Name: "an older server is spoken to in its own version", F: older},
		{Name: "a server that accepts and never answers holds up nobody else", F: neverAnswers},
		{Name: "a mount outlives the agent that made it and its network", F: outlives},
		{Name: "a server that stops is EIO and not a hang, and comes back", F: stops},
		{Name: "a mount of a server that is gone is revoked", F: revokedWhileGone},
		{Name: "a network that goes is EIO too, and comes back", F: unplugged},
		{Name: "a server of version 3 alone is for those who only read", F: onlyVersion3},
	}
}

// node is a node whose agent serves exports.
func node(t *testing.T) *agenttest.Node {
	t.Helper()
	n := agenttest.NewNode(t)
	n.NFS, n.Bound = settings(t), bound
	n.Policy.Serves[grant.KindNFS] = true
	n.Restart()
	return n
}

func settings(t testing.TB) delivery.NFS {
	t.Helper()
	servers, err := delivery.ParseServers([]string{address, address6, silent, "127.0.0.3"})
	must(t, err)
	return delivery.NFS{
		Servers: servers, SoftTimeout: softTimeout, HostProc: delivery.HostProc,
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(address)}, nil
		},
	}
}

func export(server, path, target string, mode grant.Mode) grant.Mount {
	return grant.Mount{Kind: grant.KindNFS, Source: server + ":" + path, Target: target, Mode: mode, AllowExec: true}
}

// withExport is a running Pod that has the export at "data".
func withExport(t *testing.T, n *agenttest.Node, name, path string, mode grant.Mode) *agenttest.Pod {
	t.Helper()
	p := n.RunningPod(name)
	p.Grant(export(address, path, "data", mode))
	p.MustAnswer(grant.StateReady, []string{"data"}, map[string]grant.Code{})
	return p
}

// reads wants the text of a file in the container.
func reads(t *testing.T, c *simnode.Container, path, want string) {
	t.Helper()
	if got, err := c.ReadFile(in + path); string(got) != want || err != nil {
		t.Fatalf("reading %s: %q, %v", path, got, err)
	}
}

// within fails the test unless call comes back in time.
func within(t *testing.T, what string, most time.Duration, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- call() }()
	select {
	case err := <-done:
		t.Logf("%s: %v after %s", what, err, time.Since(began).Round(10*time.Millisecond))
		return err
	case <-time.After(most):
		t.Fatalf("%s: nothing after %s", what, most)
		return nil
	}
}

// eventually repeats call until it is true.
func eventually(t *testing.T, what string, call func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !call(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

// answers makes sweeps and passes until the Pod's answer is in state.
func answers(t *testing.T, p *agenttest.Pod, state grant.State) *grant.Status {
	t.Helper()
	var st *grant.Status
	eventually(t, "the answer "+string(state), func() bool {
		must(t, p.N.Agent.Sweep(t.Context()))
		p.Pass()
		st = p.Status()
		return st != nil && st.State == state
	})
	return st
}

func granted(t *testing.T) {
	n := node(t)
	p := withExport(t, n, "granted", "/", grant.ReadWrite)
	reads(t, p.Ctr, "data/hello", "hello over nfs\n")
	reads(t, p.Ctr, "data/deep/file", "deep\n")
	must(t, p.Ctr.WriteFile(in+"data/written", []byte("from inside"), 0o644))
	if got, err := os.ReadFile("/srv/written"); string(got) != "from inside" || err != nil {
		t.Errorf("the server has %q, %v", got, err)
	}
	if err := p.Ctr.OpenDevice(in + "data/null"); !errors.Is(err, unix.EACCES) {
		t.Errorf("opening a device: %v", err)
	}
	line := mountLine(t, p.Ctr)
	for _, want := range []string{"rw,nosuid,nodev", " nfs4 127.0.0.1:/ ", "vers=4.2", "soft", "timeo=20", "retrans=2", "addr=127.0.0.1", "clientaddr=127.0.0.1", "nosharecache"} {
		// The kernel shows no nosharecache: that two grants are apart is seen by their devices.
		if want != "nosharecache" && !strings.Contains(line, want) {
			t.Errorf("the mount has no %q: %s", want, line)
		}
	}
	// Another filesystem of the server, which the kernel mounts as it is walked into.
	reads(t, p.Ctr.AsUser(1000, 100), "data/squash/private/note", "of ada\n")
	p.Grant(export(address, "/", "data", grant.ReadWrite), export(address, "/", "again", grant.ReadOnly), export(address, "/deep", "deep", grant.ReadOnly))
	p.MustAnswer(grant.StateReady, []string{"again", "data", "deep"}, map[string]grant.Code{})
	devices := map[mnt.Dev]bool{}
	mounts, err := p.Ctr.Mounts()
	must(t, err)
	for _, m := range mounts {
		if m.FSType == "nfs4" {
			devices[m.Dev] = true
			if m.Flags&(mnt.NoSUID|mnt.NoDev) != mnt.NoSUID|mnt.NoDev {
				t.Errorf("%s is %v", m.Point, m.Flags)
			}
		}
	}
	if len(devices) != 4 { // and the one within the first
		t.Errorf("three grants and one beneath are on %d filesystems", len(devices))
	}
	reads(t, p.Ctr, "deep/file", "deep\n")
	p.Grant()
	p.MustAnswer(grant.StateReady, []string{}, map[string]grant.Code{})
	if names, err := p.Ctr.ReadDir(in); len(names) != 0 || err != nil {
		t.Errorf("revoked, and the container has %v, %v", names, err)
	}
}

func overIPv6(t *testing.T) {
	n := node(t)
	p := n.RunningPod("six")
	p.Grant(export("["+address6+"]", "/deep", "data", grant.ReadWrite))
	p.MustAnswer(grant.StateReady, []string{"data"}, map[string]grant.Code{})
	reads(t, p.Ctr, "data/file", "deep\n")
	if line := mountLine(t, p.Ctr); !strings.Contains(line, " [::1]:/deep ") || !strings.Contains(line, "proto=tcp6") || !strings.Contains(line, "addr=::1") {
		t.Errorf("it is mounted as %s", line)
	}
}

// mountLine is the export's line in the container's mount table, all of it.
func mountLine(t *testing.T, c *simnode.Container) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.PID()))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " - nfs") {
			return line
		}
	}
	t.Fatalf("no export is mounted:\n%s", text)
	return ""
}

func squashed(t *testing.T) {
	n := node(t)
	p := withExport(t, n, "squashed", "/squash/private", grant.ReadWrite)
	ada := p.Ctr.AsUser(1000, 100)
	reads(t, ada, "data/note", "of ada\n")
	must(t, ada.WriteFile(in+"data/new", []byte("x"), 0o600))
	if _, err := p.Ctr.ReadDir(in + "data"); !errors.Is(err, unix.EACCES) {
		t.Errorf("root, whom the server squashes, lists it: %v", err)
	}
	must(t, n.Agent.Sweep(t.Context())) // the agent is root as well
	p.Pass()
	p.MustHave(grant.StateReady, []string{"data"}, map[string]grant.Code{})
}

func readOnly(t *testing.T) {
	n := node(t)
	// Two ways: the export is the server's root, and another filesystem of it.
	for _, path := range []string{"/", "/squash"} {
		p := withExport(t, n, "read-only", path, grant.ReadOnly)
		for _, file := range []string{"data/x", "data/private/x", "data/squash/x"} {
			err := p.Ctr.AsUser(1000, 100).WriteFile(in+file, nil, 0o644)
			if !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.ENOENT) || err == nil || file == "data/x" && !errors.Is(err, unix.EROFS) {
				t.Errorf("%s: writing %s: %v", path, file, err)
			}
		}
		notThroughAnother(t, n, p)
		p.Grant()
		p.MustAnswer(grant.StateReady, []string{}, map[string]grant.Code{})
		must(t, p.Ctr.Stop())
		n.API.Delete(p.UID)
		p.Pass()
	}
}

// notThroughAnother wants a superblock that is read-only, whatever a mount of it says.
func notThroughAnother(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
	t.Helper()
	other := filepath.Join(t.TempDir(), "other")
	must(t, os.Mkdir(other, 0o755))
	must(t, unix.Mount(filepath.Join(n.Root, "pods", p.UID, "data"), other, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", other, "", unix.MS_BIND|unix.MS_REMOUNT, ""))
	if err := os.WriteFile(filepath.Join(other, "x"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("%s: writing through another mount: %v", p.UID, err)
	}
	must(t, unix.Unmount(other, 0))
}

func refused(t *testing.T) {
	n := node(t)
	p := n.RunningPod("refused")
	p.Grant(
		export(address, "/none", "none", grant.ReadWrite), export(address, "/hello", "file", grant.ReadWrite),
		export("169.254.169.254", "/", "metadata", grant.ReadWrite), export("10.0.0.1", "/", "other", grant.ReadWrite),
		export("127.0.0.3", "/", "away", grant.ReadWrite), export(address, "/", "good", grant.ReadWrite),
	)
	p.Pass()
	st := p.Status()
	t.Logf("%+v", st)
	for target, want := range map[string][2]string{
		"none": {"MOUNT_FAILED", "has no export /none"}, "file": {"MOUNT_FAILED", "not a folder"},
		"metadata": {"INVALID_SOURCE", "metadata"}, "other": {"INVALID_SOURCE", "not among those"},
		"away": {"MOUNT_FAILED", "cannot be reached at 127.0.0.3, port 2049: ECONNREFUSED"},
	} {
		if got := string(st.Failed[target]); got != "NODE_MOUNT_GATEWAY_"+want[0] || !strings.Contains(st.Messages[target], want[1]) {
			t.Errorf("%s: %s %q", target, got, st.Messages[target])
		}
	}
	if !slices.Equal(st.Mounted, []string{"good"}) {
		t.Errorf("mounted: %v", st.Mounted)
	}
	// Through a network that has no way to it, as the agent's own.
	n.NFS.HostProc = ""
	n.Restart()
	p.Grant(export(address, "/deep", "own", grant.ReadWrite))
	p.Pass()
	if st := p.Status(); st.Failed["own"] != grant.CodeMountFailed || !strings.Contains(st.Messages["own"], "cannot be reached") {
		t.Errorf("through the agent's own network: %+v", st)
	}
}

func older(t *testing.T) {
	n := node(t)
	for _, version := range []struct {
		is      string
		without []string
	}{{"4.1", []string{"-N", "4.2"}}, {"4.0", []string{"-N", "4.2", "-N", "4.1"}}} {
		must(t, stopServer())
		must(t, resumeServer(version.without...))
		p := withExport(t, n, "older"+strings.ReplaceAll(version.is, ".", ""), "/", grant.ReadWrite)
		if line := mountLine(t, p.Ctr); !strings.Contains(line, "vers="+version.is) {
			t.Errorf("want version %s: %s", version.is, line)
		}
		reads(t, p.Ctr, "data/hello", "hello over nfs\n")
	}
	must(t, stopServer())
	must(t, resumeServer("-V", "4.1", "-V", "4.2"))
}

func neverAnswers(t *testing.T) {
	n := node(t)
	fd, err := listenSilently(silent, nfsPort)
	must(t, err)
	n.Home("users/ada", 0o777, "note")
	stuck, other := n.RunningPod("stuck"), n.RunningPod("other")
	stuck.Grant(export(silent, "/", "silent", grant.ReadWrite))
	done := make(chan time.Duration, 1)
	began := time.Now()
	go func() {
		stuck.Pass()
		done <- time.Since(began)
	}()
	other.Grant(grant.Mount{Kind: grant.KindFiles, Source: "users/ada", Target: "ada", Mode: grant.ReadWrite, AllowExec: true})
	other.MustAnswer(grant.StateReady, []string{"ada"}, map[string]grant.Code{})
	t.Logf("the other Pod has its home after %s", time.Since(began))
	select {
	case took := <-done:
		t.Logf("the pass over the stuck one took %s", took)
	case <-time.After(patience):
		t.Fatal("a pass does not end")
	}
	st := stuck.Status()
	if st.Failed["silent"] != grant.CodeMountFailed || !strings.Contains(st.Messages["silent"], "accepts connections but does not answer") {
		t.Errorf("%+v", st)
	}
	eventually(t, "the lost thread is back", func() bool { return n.Budget.Lost() == 0 })
	t.Logf("the thread was back after %s", time.Since(began).Round(time.Second))
	unix.Close(fd)
}

// outlives has another process mount, in a network that ends with it.
func outlives(t *testing.T) {
	n := node(t)
	root := filepath.Join(n.Root, "lone")
	must(t, os.MkdirAll(root, 0o755))
	on, err := beneath.OpenRoot(root)
	must(t, err)
	_, err = n.Table.NewTree(on)
	on.Close()
	must(t, err)
	cmd := exec.Command("/proc/self/exe", roleAgent, root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for range 3 {
		must(t, within(t, "reading", patience, func() error {
			_, err := os.ReadFile(filepath.Join(root, "data/deep/new0"))
			return err
		}))
		must(t, os.WriteFile(filepath.Join(root, "data/other/file"), []byte("x"), 0o644))
	}
	must(t, unix.Unmount(filepath.Join(root, "data"), 0))
	must(t, unix.Unmount(root, 0))
	must(t, os.Remove(root))

	// And the agent itself, replaced: the mount is the same one.
	p := withExport(t, n, "outlives", "/", grant.ReadWrite)
	h, err := p.Ctr.Hold(in + "data/hello")
	must(t, err)
	before := mountLine(t, p.Ctr)
	n.Restart()
	p.Pass()
	p.MustHave(grant.StateReady, []string{"data"}, map[string]grant.Code{})
	if after := mountLine(t, p.Ctr); after != before {
		t.Errorf("it was\n%sand is\n%s", before, after)
	}
	if got, err := p.Ctr.HeldRead(h); string(got) != "hello over nfs\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	must(t, p.Ctr.Drop(h))
}

// mountAndEnd is roleAgent.
func mountAndEnd(args []string) error {
	tree, err := beneath.OpenRoot(args[0])
	if err != nil {
		return err
	}
	servers, err := delivery.ParseServers([]string{address})
	if err != nil {
		return err
	}
	f := &delivery.Filesystem{
		Table: &mnt.Kernel{}, Bound: 10 * time.Second, Budget: &deadline.Budget{},
		NFS: delivery.NFS{Servers: servers, SoftTimeout: softTimeout, HostProc: delivery.HostProc},
	}
	set := grant.Set{Mounts: []grant.Mount{export(address, "/", "data", grant.ReadWrite)}}
	for _, m := range plan.Build(set, plan.Policy{Serves: map[grant.Kind]bool{grant.KindNFS: true}}).Mounts {
		if _, err := f.Deliver(context.Background(), tree, m, delivery.Credential{}); err != nil {
			return err
		}
	}
	return nil
}

// outage waits for what the Pod and its neighbour have from a server that is gone.
func outage(t *testing.T, n *agenttest.Node, p *agenttest.Pod, file string) {
	t.Helper()
	err := within(t, "a file that nobody has read yet", patience, func() error {
		_, err := p.Ctr.ReadFile(in + "data/deep/" + file)
		return err
	})
	if !errors.Is(err, unix.EIO) {
		t.Errorf("the sandbox is told %v", err)
	}
	st := answers(t, p, grant.StateDegraded)
	if st.Failed["data"] != grant.CodeMountDead || !slices.Equal(st.Mounted, []string{"data"}) {
		t.Errorf("%+v", st)
	}
	other := n.RunningPod("neighbour" + file)
	n.Home("users/"+file, 0o777)
	other.Grant(grant.Mount{Kind: grant.KindFiles, Source: "users/" + file, Target: "home", Mode: grant.ReadWrite, AllowExec: true})
	must(t, within(t, "another Pod's home", 10*time.Second, func() error { other.Pass(); return nil }))
	other.MustHave(grant.StateReady, []string{"home"}, map[string]grant.Code{})
}

func stops(t *testing.T) {
	n := node(t)
	p := withExport(t, n, "stops", "/", grant.ReadWrite)
	reads(t, p.Ctr, "data/hello", "hello over nfs\n")
	must(t, stopServer())
	outage(t, n, p, "new1")
	must(t, resumeServer())
	answers(t, p, grant.StateReady)
	eventually(t, "the sandbox reads on", func() bool {
		got, err := p.Ctr.ReadFile(in + "data/deep/new2")
		return err == nil && string(got) == "new\n"
	})
}

func unplugged(t *testing.T) {
	n := node(t)
	p := withExport(t, n, "unplugged", "/", grant.ReadWrite)
	must(t, link(false))
	outage(t, n, p, "new3")
	must(t, link(true))
	answers(t, p, grant.StateReady)
	eventually(t, "the sandbox reads on", func() bool {
		got, err := p.Ctr.ReadFile(in + "data/deep/new4")
		return err == nil && string(got) == "new\n"
	})
}

func revokedWhileGone(t *testing.T) {
	n := node(t)
	p := withExport(t, n, "revoked", "/", grant.ReadWrite)
	held := withExport(t, n, "held", "/", grant.ReadWrite)
	deleted := withExport(t, n, "deleted", "/", grant.ReadWrite)
	h, err := held.Ctr.Hold(in + "data/hello")
	must(t, err)
	must(t, stopServer())
	p.Grant()
	held.Grant()
	for _, pod := range []*agenttest.Pod{p, held} {
		var undone error
		must(t, within(t, "a pass that revokes", patience, func() error {
			_, undone = n.Agent.Reconcile(t.Context(), pod.UID)
			return nil
		}))
		t.Logf("%s: %v, %+v", pod.UID, undone, pod.Status())
		if names, err := pod.Ctr.ReadDir(in); len(names) != 0 || err != nil {
			t.Errorf("%s still has %v, %v", pod.UID, names, err)
		}
	}
	eventually(t, "nothing stands, and the answer says so", func() bool {
		_, err := n.Agent.Reconcile(t.Context(), p.UID)
		st := p.Status()
		return err == nil && st != nil && st.State == grant.StateReady && len(st.Mounted) == 0
	})
	eventually(t, "the one that is in use is called held", func() bool {
		_, err := n.Agent.Reconcile(t.Context(), held.UID)
		st := held.Status()
		return err == nil && st != nil && st.Failed["data"] == grant.CodeHeld
	})
	must(t, within(t, "closing the file", patience, func() error { return held.Ctr.Drop(h) }))
	answers(t, held, grant.StateReady)
	must(t, deleted.Ctr.Stop())
	n.API.Delete(deleted.UID)
	eventually(t, "a Pod that is deleted is released", func() bool {
		_, err := n.Agent.Reconcile(t.Context(), deleted.UID)
		_, statErr := os.Lstat(filepath.Join(n.Root, "pods", deleted.UID))
		return err == nil && errors.Is(statErr, os.ErrNotExist)
	})
	if how, err := deleted.TearDownVolume(); how != "tmpfs" || err != nil {
		t.Errorf("kubelet's teardown takes the branch %q: %v", how, err)
	}
	must(t, resumeServer())
}

// withoutClient is the story of a machine without the client's modules. There is no
// server either: something listens where one would be.
func withoutClient(t *testing.T) {
	n := node(t)
	fd, err := listenSilently(silent, nfsPort)
	must(t, err)
	defer unix.Close(fd)
	n.Home("users/ada", 0o777)
	p := n.RunningPod("bare")
	p.Grant(export(silent, "/", "data", grant.ReadWrite),
		grant.Mount{Kind: grant.KindFiles, Source: "users/ada", Target: "ada", Mode: grant.ReadWrite, AllowExec: true})
	st := p.MustAnswer(grant.StateDegraded, []string{"ada"}, map[string]grant.Code{"data": grant.CodeMountFailed})
	if !strings.Contains(st.Messages["data"], "kernel has no NFS client: load its modules") {
		t.Errorf("it says %q", st.Messages["data"])
	}
}
