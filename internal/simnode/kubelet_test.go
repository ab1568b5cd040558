package simnode_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestTearingDownAMemoryVolumeStopsAtAGrant(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	dir := folder(t, n, "a")
	on := grant(t, p, dir, "t", 0)
	how, err := p.TearDownVolume()
	if how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
		t.Errorf("with a grant standing: %q, %v", how, err)
	}
	if _, err := os.Stat(filepath.Join(on, "f")); err != nil {
		t.Error(err)
	}
	check(t, unix.Unmount(on, 0))
	if how, err := p.TearDownVolume(); how != "tmpfs" || err != nil {
		t.Errorf("without: %q, %v", how, err)
	}
	if how, err := p.TearDownVolume(); how != "gone" || err != nil {
		t.Errorf("when it is gone: %q, %v", how, err)
	}
	if _, err := os.Stat(p.VolumePath()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the volume is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
		t.Errorf("a file on the claim is lost: %v", err)
	}
}

func TestEachTearDownTakesOneMountOffAMemoryVolume(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	check(t, unix.Mount("stacked", p.VolumePath(), "tmpfs", 0, ""))
	// The first takes what is stacked on kubelet's own tmpfs, and cannot remove a
	// directory on which that still stands.
	if how, err := p.TearDownVolume(); how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
		t.Errorf("the first: %q, %v", how, err)
	}
	ms, err := n.Mounts()
	if got := at(t, ms, err, p.VolumePath()); len(got) != 1 || got[0].Source != "tmpfs" {
		t.Errorf("left on the volume: %v", got)
	}
	if how, err := p.TearDownVolume(); how != "tmpfs" || err != nil {
		t.Errorf("the second: %q, %v", how, err)
	}
}

func TestTearingDownADiskVolumeDeletesThroughAGrant(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := n.NewPod(podUID)
	check(t, p.SetUpVolume(true))
	if info, err := os.Stat(p.VolumePath()); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the volume is %v, %v", info, err)
	}
	dir := folder(t, n, "a")
	on := grant(t, p, dir, "t", 0)
	if how, err := p.TearDownVolume(); how != "disk" || !errors.Is(err, unix.EBUSY) {
		t.Errorf("with a grant standing: %q, %v", how, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the loss that memory-backed volumes prevent does not happen: %v", err)
	}
	check(t, unix.Unmount(on, 0))
	if how, err := p.TearDownVolume(); how != "disk" || err != nil {
		t.Errorf("without: %q, %v", how, err)
	}
}

func TestTheWalkForFSGroupChangesWhatIsMountedInTheVolume(t *testing.T) {
	n := newNode(t, simnode.Options{})
	p := newPod(t, n)
	dir := folder(t, n, "a")
	key, outside := filepath.Join(dir, "key"), filepath.Join(n.Claim, "outside")
	check(t, os.WriteFile(key, nil, 0o600))
	check(t, os.WriteFile(outside, nil, 0o600))
	check(t, os.Symlink(outside, filepath.Join(dir, "link")))
	check(t, os.Chmod(dir, 0o700))
	on := grant(t, p, dir, "t", 0)

	check(t, p.ChownWalk(100))
	for path, want := range map[string]fs.FileMode{
		dir:                        fs.ModeDir | fs.ModeSetgid | 0o770,
		key:                        0o660,
		filepath.Join(dir, "f"):    0o664,
		p.VolumePath():             fs.ModeDir | fs.ModeSetgid | 0o777,
		filepath.Join(dir, "link"): fs.ModeSymlink | 0o777,
	} {
		info, err := os.Lstat(path)
		check(t, err)
		if st := info.Sys().(*syscall.Stat_t); info.Mode() != want || st.Gid != 100 || st.Uid != 0 {
			t.Errorf("%s is %v %d:%d; want %v 0:100", path, info.Mode(), st.Uid, st.Gid, want)
		}
	}
	if info, err := os.Stat(outside); err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Gid != 0 {
		t.Errorf("the walk followed a symlink: %v, %v", info.Mode(), err)
	}

	// It goes on where it is refused, and says so.
	check(t, unix.Unmount(on, 0))
	check(t, os.Chmod(key, 0o600))
	grant(t, p, dir, "t", unix.MOUNT_ATTR_RDONLY)
	check(t, os.Mkdir(filepath.Join(p.VolumePath(), "u"), 0o700))
	if err := p.ChownWalk(200); !errors.Is(err, unix.EROFS) {
		t.Errorf("the walk over a read-only mount: %v", err)
	}
	if info, err := os.Stat(key); err != nil || info.Mode() != 0o600 {
		t.Errorf("the key is %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(p.VolumePath(), "u")); err != nil || info.Sys().(*syscall.Stat_t).Gid != 200 {
		t.Errorf("the walk stopped at the first error: %v", err)
	}
}
