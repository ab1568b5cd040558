package simnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
)

// VolumeName is the name of the Pod volume that the agent mounts into.
const VolumeName = grant.DefaultVolumeName

// Operations of the host process.
const (
	opSetUp    = "volume-set-up"
	opTearDown = "volume-tear-down"
	opWalk     = "volume-chown-walk"
)

// Pod is one Pod on a node: its volume, which kubelet makes and takes away, and
// its containers.
type Pod struct {
	UID  string
	node *Node
}

// NewPod is the Pod with this uid. Nothing is made on the node yet.
func (n *Node) NewPod(uid string) *Pod { return &Pod{UID: uid, node: n} }

// VolumePath is where kubelet keeps the Pod's gateway volume.
func (p *Pod) VolumePath() string {
	return filepath.Join(p.node.Kubelet, "pods", p.UID, "volumes", "kubernetes.io~empty-dir", VolumeName)
}

// SetUpVolume makes the volume as kubelet does: a directory, and a tmpfs of 1 MiB
// on it unless it is disk-backed.
func (p *Pod) SetUpVolume(disk bool) error {
	_, err := p.node.host.call(request{Op: opSetUp, Path: p.VolumePath(), Flag: disk})
	return p.errorf("setting up the volume", err)
}

// ChownWalk is kubelet's walk for fsGroup: everything in the volume, across
// mounts, is given to gid, made readable and writable for it, and directories
// setgid. Symlinks are not followed. Like kubelet's it goes on after an error;
// the first one is returned.
func (p *Pod) ChownWalk(gid int) error {
	_, err := p.node.host.call(request{Op: opWalk, Path: p.VolumePath(), GID: gid})
	return p.errorf("the walk for fsGroup", err)
}

// TearDownVolume is one attempt of kubelet's to take the volume away. how is the
// branch it took: "tmpfs" where the topmost mount of the volume is one (it is
// unmounted once and then removed), "disk" for anything else (it is removed
// recursively, through whatever is mounted in it). It is no error, and how is
// "gone", when there is no volume. kubelet repeats the attempt until it succeeds.
//
// Errors carry the errno: unix.EBUSY where a mount stands in it.
func (p *Pod) TearDownVolume() (how string, err error) {
	resp, err := p.node.host.call(request{Op: opTearDown, Path: p.VolumePath()})
	return resp.Text, p.errorf("tearing down the volume", err)
}

func (p *Pod) errorf(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pod %s: %s: %w", p.UID, what, err)
}

func setUpVolume(req request) error {
	// 0755, where kubelet has 0750: there the container runtime opens the volume
	// before it enters a user namespace, here the container's process itself does.
	if err := os.MkdirAll(req.Path, 0o755); err != nil {
		return err
	}
	if !req.Flag {
		if err := unix.Mount("tmpfs", req.Path, "tmpfs", 0, "size=1m"); err != nil {
			return &fs.PathError{Op: "mount", Path: req.Path, Err: err}
		}
	}
	// Any user of the Pod may write to an emptyDir.
	return os.Chmod(req.Path, 0o777)
}

func chownWalk(req request) error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	// As kubelet: the mode is the one found before the walk descends, and what
	// cannot be read is reported and stepped over.
	err := filepath.Walk(req.Path, func(path string, info fs.FileInfo, err error) error {
		if err != nil {
			keep(err)
			return nil
		}
		if err := os.Lchown(path, -1, req.GID); err != nil {
			keep(err)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil // chmod would change what it points to
		}
		add := fs.FileMode(0o660)
		if info.IsDir() {
			add |= 0o110 | fs.ModeSetgid
		}
		if err := os.Chmod(path, info.Mode()|add); err != nil {
			keep(err)
		}
		return nil
	})
	keep(err)
	return first
}

func tearDownVolume(req request) (response, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, req.Path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st)
	if errors.Is(err, unix.ENOENT) {
		return response{Text: "gone"}, nil
	}
	if err != nil {
		return response{}, &fs.PathError{Op: "statx", Path: req.Path, Err: err}
	}
	var super unix.Statfs_t
	if err := unix.Statfs(req.Path, &super); err != nil {
		return response{}, &fs.PathError{Op: "statfs", Path: req.Path, Err: err}
	}
	// kubelet looks at the topmost mount, whoever made it, and believes what it
	// says over what the Pod's spec says.
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 || super.Type != unix.TMPFS_MAGIC {
		return response{Text: "disk"}, os.RemoveAll(req.Path)
	}
	if err := unix.Unmount(req.Path, 0); err != nil {
		return response{Text: "tmpfs"}, &fs.PathError{Op: "umount", Path: req.Path, Err: err}
	}
	return response{Text: "tmpfs"}, os.RemoveAll(req.Path)
}
