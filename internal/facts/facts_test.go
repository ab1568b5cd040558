package facts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

func TestWhatKeepsAFilesystemAnsweringIsToldByItsTypeAndSource(t *testing.T) {
	for _, c := range []struct {
		fstype, source string
		want           nodeview.Backing
	}{
		{"ext4", "/dev/nvme1n1", nodeview.BackedByKernel},
		{"xfs", "/dev/sdb", nodeview.BackedByKernel},
		{"tmpfs", "tmpfs", nodeview.BackedByKernel},
		{"ceph", "10.0.0.1:6789:/", nodeview.BackedByKernel},
		{"lustre", "10.0.0.1@tcp:/fs", nodeview.BackedByKernel},
		{"virtiofs", "hostshare", nodeview.BackedByKernel},
		{"fusectl", "fusectl", nodeview.BackedByKernel},
		{"fuse", "s3fs", nodeview.BackedByProcess},
		{"fuseblk", "/dev/sdc1", nodeview.BackedByProcess},
		{"fuse.juicefs", "JuiceFS:home", nodeview.BackedByProcess},
		{"fuse.glusterfs", "server:/volume", nodeview.BackedByProcess},
		{"nfs4", "fs-1.efs.example.org:/", nodeview.BackedByKernel},
		{"nfs", "10.1.2.3:/export", nodeview.BackedByKernel},
		{"nfs4", "[2001:db8::1]:/export", nodeview.BackedByKernel},
		{"nfs4", "localhost.example.org:/export", nodeview.BackedByKernel},
		{"nfs4", "127.0.0.1:/", nodeview.BackedByProcess},
		{"nfs4", "127.4.5.6:/a:/b", nodeview.BackedByProcess},
		{"nfs4", "[::1]:/export", nodeview.BackedByProcess},
		{"nfs4", "::1:/export", nodeview.BackedByProcess},
		{"nfs", "localhost:/export", nodeview.BackedByProcess},
		{"cifs", "//127.0.0.1/share", nodeview.BackedByProcess},
		{"cifs", "//server/share", nodeview.BackedByKernel},
		{"9p", "hostshare", nodeview.BackingUnknown},
		{"9p", "127.0.0.1", nodeview.BackedByProcess},
		{"9p", "/run/server.sock", nodeview.BackedByProcess},
		{"ext4", "/dev/nbd0", nodeview.BackedByProcess},
		{"overlay", "overlay", nodeview.BackingUnknown},
		{"autofs", "systemd-1", nodeview.BackingUnknown},
	} {
		if got := Backing(mnt.Mount{FSType: c.fstype, Source: c.source}); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.fstype, c.source, got, c.want)
		}
	}
}

func table(t *testing.T, lines string) []mnt.Mount {
	t.Helper()
	mounts, err := mnt.ParseMountinfo(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func TestPropagationIsThatOfTheMountAPathLiesOn(t *testing.T) {
	mounts := table(t, `1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
2 1 8:2 / /var rw - ext4 /dev/sda2 rw
3 2 8:1 /k /var/lib/kubelet rw shared:1 - ext4 /dev/sda1 rw
4 1 8:3 / /slave rw master:1 - ext4 /dev/sda3 rw
5 1 8:4 / /both rw shared:7 master:1 - ext4 /dev/sda4 rw
`)
	for p, want := range map[string]nodeview.Propagation{
		"/etc": nodeview.Shared, "/var/lib": nodeview.Private, "/var/lib/kubelet": nodeview.Shared, "/var/lib/kubelet/pods": nodeview.Shared,
		"/var/lib/kubelet2": nodeview.Private, "/slave/x": nodeview.Slave, "/both": nodeview.Shared,
	} {
		if got := Propagation(mounts, nil, p); got != want {
			t.Errorf("%s: %s, want %s", p, got, want)
		}
	}
	if got := Propagation(nil, nil, "/etc"); got != nodeview.Unknown {
		t.Errorf("without a table: %s", got)
	}
}

func TestKubeletsFolderIsFoundAlsoThroughALinkOfTheNodes(t *testing.T) {
	node := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(node, "data/kubelet/pods"), 0o755),
		os.MkdirAll(filepath.Join(node, "var/lib"), 0o755),
		os.Symlink("/data/kubelet", filepath.Join(node, "var/lib/kubelet")),
		os.WriteFile(filepath.Join(node, "var/pods"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for kubelet, want := range map[string]bool{"/var/lib/kubelet": true, "/data/kubelet": true, "/data": false, "/var": false, "/none": false} {
		n := Node{Sight: node, Kubelet: kubelet, Budget: &deadline.Budget{}}
		if got := n.kubeletFound(t.Context()); got != want {
			t.Errorf("%s: %v", kubelet, got)
		}
	}
}

// good is a node that can serve.
func good() nodeview.Facts {
	return nodeview.Facts{
		Kernel: "6.1.0", MountSetattr: true, KubeletPropagation: nodeview.Shared, RootPropagation: nodeview.Shared, KubeletFound: true,
		Claim: nodeview.Claim{Path: "/claim", Mounted: true, Answers: true},
	}
}

func TestEveryFactThatKeepsANodeFromServingIsAFaultThatSaysWhatToDo(t *testing.T) {
	dirs := Dirs{Root: "/root-dir", Kubelet: "/kubelet"}
	if got := Faults(good(), dirs, true); len(got) != 0 || got == nil {
		t.Errorf("a good node: %q", got)
	}
	for _, c := range []struct {
		says   string
		change func(f *nodeview.Facts, d *Dirs)
	}{
		{"5.12", func(f *nodeview.Facts, d *Dirs) { f.MountSetattr, d.Tried = false, mnt.ErrUnsupported }},
		{"privileged", func(f *nodeview.Facts, d *Dirs) { f.MountSetattr, d.Tried = false, unix.EPERM }},
		{"/kubelet has no folder \"pods\"", func(f *nodeview.Facts, _ *Dirs) { f.KubeletFound = false }},
		{"/kubelet is on a mount that is private, not shared", func(f *nodeview.Facts, _ *Dirs) { f.KubeletPropagation = nodeview.Private }},
		{"/root-dir is on a mount that is slave, not shared", func(f *nodeview.Facts, _ *Dirs) { f.RootPropagation = nodeview.Slave }},
		{"unknown", func(f *nodeview.Facts, _ *Dirs) { f.RootPropagation = nodeview.Unknown }},
		{"no filesystem is mounted at /claim", func(f *nodeview.Facts, _ *Dirs) { f.Claim.Mounted, f.Claim.Answers = false, false }},
		{"/claim does not answer", func(f *nodeview.Facts, _ *Dirs) { f.Claim.Answers = false }},
	} {
		f, d := good(), dirs
		c.change(&f, &d)
		got := Faults(f, d, true)
		if len(got) != 1 || !strings.Contains(got[0], c.says) {
			t.Errorf("%q expected, got %q", c.says, got)
		}
		if strings.Contains(c.says, "claim") && len(Faults(f, d, false)) != 0 {
			t.Errorf("%q although the claim is not asked for", c.says)
		}
	}
}

// stuck is a table on which a look at a place hangs until it is closed, as a claim's
// server may.
type stuck struct {
	mnt.Table
	until chan struct{}
}

func (s stuck) At(dir *beneath.Dir) (mnt.Place, error) {
	<-s.until
	return s.Table.At(dir)
}

func TestAClaimThatHangsCostsOneThreadHoweverOftenItIsAskedFor(t *testing.T) {
	claim := t.TempDir()
	hanging := make(chan struct{})
	budget := &deadline.Budget{}
	n := Node{
		Table: mnttest.New(), Claim: claim, Claimed: table(t, "1 0 8:1 / "+claim+" rw - fuse.test storage rw\n"), Kubelet: "/none",
		Bound: 20 * time.Millisecond, Budget: budget, Keys: []deadline.Key{{Name: "look", Limit: 1}},
	}
	n.Table = stuck{n.Table, hanging}
	for range 5 {
		f := Of(t.Context(), n)
		if f.Claim.Answers || !f.Claim.Mounted || f.Claim.Filesystem != "fuse.test" || f.Claim.Backing != nodeview.BackedByProcess {
			t.Errorf("%+v", f.Claim)
		}
	}
	if got := budget.Lost(); got != 1 {
		t.Errorf("%d threads are lost", got)
	}
	close(hanging)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); budget.Lost() != 0; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("the thread does not come back")
		}
	}
}
