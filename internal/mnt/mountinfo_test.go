package mnt_test

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// A node's table, as kernels from 5.10 to 6.18 write it: the root of a systemd
// host, an overlay, a Pod's volume with a tree published on it, and sources
// whose names a shell would quote.
const nodeTable = `24 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw,discard,errors=remount-ro
25 24 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw
30 24 0:26 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,size=1604k,nr_inodes=819200,mode=755,inode64
411 30 0:61 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/9c1/rootfs rw,relatime shared:210 - overlay overlay rw,lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/41/fs:/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/40/fs,upperdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/77/fs,workdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/77/work,uuid=on
502 24 0:88 / /var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/node-mount-gateway rw,relatime shared:301 - tmpfs tmpfs rw,size=1024k,inode64
510 24 0:90 / /var/lib/datalayer/node-mount-gateway/pods/u1 rw,nosuid,nodev,noexec,relatime shared:305 - tmpfs node-mounts rw,size=1024k,nr_inodes=4096,mode=755,inode64
512 502 0:90 / /var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/node-mount-gateway ro,nosuid,nodev,noexec,relatime shared:307 master:305 - tmpfs node-mounts rw,size=1024k,nr_inodes=4096,mode=755,inode64
520 510 0:53 /home/users/a\040b\011c\012d\134e\043f /var/lib/datalayer/node-mount-gateway/pods/u1/alice rw,nosuid,nodev,relatime shared:309 - nfs4 10.0.0.7:/exports/home\0401 rw,vers=4.2,rsize=1048576,addr=10.0.0.7
521 510 0:53 /home/users/gone//deleted /var/lib/datalayer/node-mount-gateway/pods/u1/bob ro,nosuid,nodev,noexec,relatime shared:311 - nfs4 10.0.0.7:/exports rw,vers=4.2
530 24 0:95 / /mnt/bucket rw,nosuid,nodev,relatime shared:320 - fuse.mount-s3 mount-s3 rw,user_id=0,group_id=0,default_permissions,allow_other
531 24 0:96 / /mnt/dash rw,relatime unbindable - tmpfs - rw,inode64
532 24 0:97 / /mnt/empty rw,relatime - tmpfs  rw,inode64
`

// A container's table: what it sees comes from groups it cannot see.
const containerTable = `900 880 0:61 / / rw,relatime master:210 - overlay overlay rw,lowerdir=/l1:/l2,upperdir=/u,workdir=/w
905 900 0:88 / /mnt/datalayer rw,relatime master:301 - tmpfs tmpfs rw,size=1024k,inode64
906 905 0:90 / /mnt/datalayer ro,nosuid,nodev,noexec,relatime master:307 propagate_from:305 - tmpfs node-mounts rw,size=1024k,nr_inodes=4096,mode=755,inode64
907 906 0:53 /home/users/ünï /mnt/datalayer/alice rw,nosuid,nodev,relatime shared:12 master:309 - nfs4 10.0.0.7:/exports rw,vers=4.2
`

func parse(t *testing.T, table string) []mnt.Mount {
	t.Helper()
	mounts, err := mnt.ParseMountinfo(strings.NewReader(table))
	must(t, err)
	return mounts
}

func TestMountinfoOfANodeIsRead(t *testing.T) {
	mounts := parse(t, nodeTable)
	if n := strings.Count(nodeTable, "\n"); len(mounts) != n {
		t.Fatalf("%d mounts of %d lines", len(mounts), n)
	}
	const volume = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/node-mount-gateway"
	const tree = "/var/lib/datalayer/node-mount-gateway/pods/u1"
	const all = mnt.ReadOnly | mnt.NoSUID | mnt.NoDev | mnt.NoExec
	for _, want := range []mnt.Mount{
		{ID: 24, Parent: 1, Dev: mnt.Dev{Major: 259, Minor: 1}, Root: "/", Point: "/", FSType: "ext4", Source: "/dev/nvme0n1p1", Peer: 1},
		{ID: 512, Parent: 502, Dev: mnt.Dev{Minor: 90}, Root: "/", Point: volume, Flags: all, FSType: "tmpfs", Source: "node-mounts", Peer: 307, Master: 305},
		{ID: 520, Parent: 510, Dev: mnt.Dev{Minor: 53}, Root: "/home/users/a b\tc\nd\\e#f", Point: tree + "/alice", Flags: mnt.NoSUID | mnt.NoDev, FSType: "nfs4", Source: "10.0.0.7:/exports/home 1", Peer: 309},
		{ID: 521, Parent: 510, Dev: mnt.Dev{Minor: 53}, Root: "/home/users/gone//deleted", Point: tree + "/bob", Flags: all, FSType: "nfs4", Source: "10.0.0.7:/exports", Peer: 311},
		{ID: 530, Parent: 24, Dev: mnt.Dev{Minor: 95}, Root: "/", Point: "/mnt/bucket", Flags: mnt.NoSUID | mnt.NoDev, FSType: "fuse.mount-s3", Source: "mount-s3", Peer: 320},
		{ID: 531, Parent: 24, Dev: mnt.Dev{Minor: 96}, Root: "/", Point: "/mnt/dash", FSType: "tmpfs", Source: "-"},
		{ID: 532, Parent: 24, Dev: mnt.Dev{Minor: 97}, Root: "/", Point: "/mnt/empty", FSType: "tmpfs"},
	} {
		if !slices.Contains(mounts, want) {
			t.Errorf("no %+v", want)
		}
	}
}

func TestMountinfoOfAContainerIsRead(t *testing.T) {
	mounts := parse(t, containerTable)
	want := mnt.Mount{
		ID: 906, Parent: 905, Dev: mnt.Dev{Minor: 90}, Root: "/", Point: "/mnt/datalayer",
		Flags:  mnt.ReadOnly | mnt.NoSUID | mnt.NoDev | mnt.NoExec,
		FSType: "tmpfs", Source: "node-mounts", Master: 307,
	}
	if mounts[2] != want {
		t.Errorf("%+v, want %+v", mounts[2], want)
	}
	if m := mounts[3]; m.Peer != 12 || m.Master != 309 || m.Root != "/home/users/ünï" {
		t.Errorf("%+v", m)
	}
}

func TestOctalEscapesAreUndoneAndNothingElseIs(t *testing.T) {
	for field, want := range map[string]string{
		`/a\040b`:         "/a b",
		`/\011\012\134`:   "/\t\n\\",
		`/lit\134040eral`: `/lit\040eral`,
		`/end\04`:         `/end\04`,
		`/end\`:           `/end\`,
		`/no\999`:         `/no\999`,
		`/high\377`:       "/high\xff",
		`/over\777`:       `/over\777`,
		"/\xff\xfe":       "/\xff\xfe",
		`/sign\+40`:       `/sign\+40`,
	} {
		m := parse(t, "1 0 8:1 "+field+" "+field+" rw - ext4 "+field+" rw\n")[0]
		if m.Root != want || m.Point != want || m.Source != want {
			t.Errorf("%s: root %q, point %q, source %q, want %q", field, m.Root, m.Point, m.Source, want)
		}
	}
}

func TestALineOfAnyLengthIsRead(t *testing.T) {
	options := strings.Repeat("lowerdir+=/a/very/long/name,", 200_000) // 5.6 MB
	deep := strings.Repeat("/deep", 100_000)                           // 500 KB
	mounts := parse(t, "1 0 0:1 / / rw - overlay overlay rw,"+options+"\n"+
		"2 1 0:2 "+deep+" "+deep+" ro - tmpfs tmpfs rw\n"+
		"3 1 0:3 / /last rw - tmpfs tmpfs rw") // and no newline at the end
	if len(mounts) != 3 {
		t.Fatalf("%d mounts", len(mounts))
	}
	if mounts[0].FSType != "overlay" || mounts[1].Point != deep || mounts[1].Flags != mnt.ReadOnly || mounts[2].Point != "/last" {
		t.Error("a long line changed what was read")
	}
}

func TestATableThatCannotBeReadIsAnErrorAndNotAHole(t *testing.T) {
	good := "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
	for _, bad := range []string{
		"\n",
		"nonsense\n",
		"2 1 8:1 / /a rw shared:1 ext4 /dev/sda1 rw more\n", // no dash
		"2 1 8:1 / /a rw shared:1 shared:2 shared:3 - ext4\n",
		"x 1 8:1 / /a rw - ext4 /dev/sda1 rw\n",
		"2 x 8:1 / /a rw - ext4 /dev/sda1 rw\n",
		"2 1 8 / /a rw - ext4 /dev/sda1 rw\n",
		"2 1 8:x / /a rw - ext4 /dev/sda1 rw\n",
		"2 1 4294967296:1 / /a rw - ext4 /dev/sda1 rw\n",
		"2 1 0:2 / /" + strings.Repeat("x", 2<<20) + " rw - tmpfs tmpfs rw\n",
	} {
		mounts, err := mnt.ParseMountinfo(strings.NewReader(good + bad + good))
		if err == nil || mounts != nil {
			t.Errorf("%.60q: %d mounts, error %v", bad, len(mounts), err)
		} else if len(err.Error()) > 1000 {
			t.Errorf("%.60q: an error of %d bytes", bad, len(err.Error()))
		}
	}
	_, err := mnt.ParseMountinfo(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(good))))
	if !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("a reader that fails: %v", err)
	}
	if mounts := parse(t, ""); len(mounts) != 0 {
		t.Errorf("an empty table has %+v", mounts)
	}
}

// One line of a process's table is as long as its user likes: here by the depth
// of a mount point, which is no longer a path that any call takes.
func TestTheTableIsReadWhereAMountPointIsDeeperThanAnyPath(t *testing.T) {
	b := newBench(t)
	name := strings.Repeat("x", 255)
	dir, err := unix.Open(b.Claim(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	want := b.Claim()
	for len(want) <= bufio.MaxScanTokenSize {
		must(t, unix.Mkdirat(dir, name, 0o755))
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(dir)
		dir = next
		want += "/" + name
	}
	defer unix.Close(dir)
	must(t, unix.Mkdirat(dir, name, 0o755))
	at := fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)
	must(t, unix.Mount("deep", at, "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount(at, 0)) }()
	if got := mountsAt(t, b, want+"/"+name); len(got) != 1 || got[0].Source != "deep" {
		t.Errorf("found %d mounts", len(got))
	}
}
