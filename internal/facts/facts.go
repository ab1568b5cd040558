// Package facts finds out what a node is: whether correct mounts can be made on
// it, whether they reach its Pods, and what the shared claim is on it. It changes
// nothing, and may be asked at any time.
package facts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/proof"
)

// Node is where to look.
type Node struct {
	Table mnt.Table
	// Mounts is the table that the two host paths are in, as it was just read, and
	// Claimed the one that the claim is in: an agent has both in its own, and who looks
	// at the node from a container has not. nil where it could not be read.
	Mounts, Claimed []mnt.Mount
	// Host is the node's own table, nil where it is Mounts or cannot be seen.
	Host []mnt.Mount
	// Probe is a folder of the node's to try a detached mount of.
	Probe *beneath.Dir
	// Root and Kubelet are the two host paths.
	Root, Kubelet string
	// Sight is where the folder / of the node is seen, "" where it is this one's.
	Sight   string
	SELinux bool
	// Claim is where the shared claim is to be, and Bound how long it may take to
	// answer.
	Claim  string
	Bound  time.Duration
	Budget *deadline.Budget
	// Keys are what a thread that the claim hangs is charged to.
	Keys []deadline.Key
}

// localBound is for calls that reach only the node's own disk. They answer at
// once, unless somebody mounted something dead in the way.
const localBound = 2 * time.Second

// Of looks. It returns within the claim's bound and localBound. The kernel's release
// is for the caller to add.
func Of(ctx context.Context, n Node) nodeview.Facts {
	return nodeview.Facts{
		MountSetattr:       n.Probe != nil && n.Table.Probe(n.Probe) == nil,
		KubeletPropagation: Propagation(n.Mounts, n.Host, n.Kubelet),
		RootPropagation:    Propagation(n.Mounts, n.Host, n.Root),
		KubeletFound:       n.kubeletFound(ctx),
		SELinux:            n.SELinux,
		Claim:              n.claim(ctx),
	}
}

// Propagation says what becomes of a mount made beneath a host path, as it is seen
// from own, the mount table of whoever makes it. A mount that is shared and a slave
// at once passes on what is mounted on it: shared.
//
// host is the node's own table, nil where it is own or cannot be seen.
// `mount --make-rprivate /` on the node leaves a container's mount shared, with
// nobody: it reaches the node only while the node has one of its peer group.
func Propagation(own, host []mnt.Mount, dir string) nodeview.Propagation {
	m, ok := mnt.Covering(own, dir)
	switch {
	case !ok:
		return nodeview.Unknown
	case m.Peer != 0 && host != nil && !arrives(m, host, dir):
		return nodeview.Private
	case m.Peer != 0:
		return nodeview.Shared
	case m.Master != 0:
		return nodeview.Slave
	}
	return nodeview.Private
}

// arrives tells whether what is mounted at dir, which lies on m, is seen at the same
// folder in host, too: a mount of m's peer group has that folder, and nothing hides
// it. The folder counts and not its path, which may be a link on the node.
func arrives(m mnt.Mount, host []mnt.Mount, dir string) bool {
	folder := path.Join(m.Root, strings.TrimPrefix(path.Clean(dir), path.Clean(m.Point)))
	return slices.ContainsFunc(host, func(there mnt.Mount) bool {
		if there.Peer != m.Peer || !mnt.Within(there.Root, folder) {
			return false
		}
		at := path.Join(there.Point, strings.TrimPrefix(folder, path.Clean(there.Root)))
		seen, ok := mnt.Covering(host, at)
		return ok && seen.ID == there.ID
	})
}

// NotShared is the fault of a host path whose mounts reach no Pod.
func NotShared(dir string, p nodeview.Propagation) string {
	return fmt.Sprintf("%s is on a mount that is %s, not shared, so nothing mounted there reaches a Pod: run `mount --make-rshared /` on the node, at every boot", dir, p)
}

// NoMounts is the fault of a node on which a mount was tried in vain.
func NoMounts(tried error) string {
	switch {
	case errors.Is(tried, mnt.ErrUnsupported):
		return "it has no mount_setattr: Linux 5.12 or newer is needed"
	case tried != nil:
		return fmt.Sprintf("correct mounts cannot be tried (%v): this needs root, in a privileged container", tried)
	}
	return "correct mounts cannot be made"
}

// kubeletFound tells whether kubelet keeps its Pods there, as far as that can be told.
func (n Node) kubeletFound(ctx context.Context) bool {
	found, err := KeepsPods(ctx, n.Budget, cmp.Or(n.Sight, "/"), n.Kubelet)
	return err == nil && found
}

// KeepsPods tells whether kubelet keeps its Pods in a folder, seen from the root that
// sight is. It has its folder "pods" from its start on. The error is deadline.ErrHung
// or the context's.
func KeepsPods(ctx context.Context, b *deadline.Budget, sight, kubelet string) (bool, error) {
	return deadline.Do(ctx, b, localBound, func() (bool, error) {
		return folder(sight, filepath.Join(kubelet, "pods")), nil
	}, nil, deadline.Key{Name: "look:" + kubelet, Limit: 1})
}

// NoPods is the fault of a kubelet's folder in which it does not keep its Pods.
func NoPods(kubelet string) string {
	return kubelet + ` has no folder "pods": kubelet keeps its Pods elsewhere (its --root-dir): set kubeletDir of the chart, or --kubelet-dir, to that folder`
}

// folder tells whether p is one beneath root, which is p's own root: a link that
// kubelet's folder is leads elsewhere on the node, and not in this container.
func folder(root, p string) bool {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// claim describes what stands at the claim's path, and asks it. What it is the
// mount table says, which does not hang.
func (n Node) claim(ctx context.Context) nodeview.Claim {
	c := nodeview.Claim{Path: n.Claim, Backing: nodeview.BackingUnknown}
	if m, ok := mnt.Covering(n.Claimed, n.Claim); ok && m.Point == filepath.Clean(n.Claim) {
		c.Mounted, c.Filesystem, c.Backing = true, m.FSType, Backing(m)
	}
	if n.Budget == nil || n.Claim == "" {
		return c
	}
	mounted, err := deadline.Do(ctx, n.Budget, n.Bound, n.ask, nil, n.Keys...)
	if err == nil {
		c.Answers = mounted
		c.Mounted = mounted // its path may lead to it through a symbolic link
	}
	return c
}

// ask reads the claim's folder: a call that reaches the storage, not a cached
// attribute. It tells whether a filesystem stands there. It may hang.
func (n Node) ask() (mounted bool, err error) {
	dir, err := beneath.OpenRoot(n.Claim)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	place, err := n.Table.At(dir)
	if err != nil || !place.MountRoot {
		return false, err
	}
	return true, proof.Reads(dir)
}

// Faults says what keeps a node from serving, and what to do about each. claim
// tells whether the claim is expected to be there.
func Faults(f nodeview.Facts, dirs Dirs, claim bool) []string {
	faults := []string{}
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if !f.MountSetattr {
		add("kernel %s: %s", f.Kernel, NoMounts(dirs.Tried))
	}
	if !f.KubeletFound {
		add("%s", NoPods(dirs.Kubelet))
	}
	for _, d := range []struct {
		path string
		p    nodeview.Propagation
	}{{dirs.Kubelet, f.KubeletPropagation}, {dirs.Root, f.RootPropagation}} {
		if d.p != nodeview.Shared {
			add("%s", NotShared(d.path, d.p))
		}
	}
	switch {
	case !claim:
	case !f.Claim.Mounted:
		add("no filesystem is mounted at %s: mount the shared claim there", f.Claim.Path)
	case !f.Claim.Answers:
		add("the filesystem at %s does not answer: look at its server", f.Claim.Path)
	}
	return faults
}

// Dirs are the two host paths, and why a mount could not be tried.
type Dirs struct {
	Root, Kubelet string
	// Tried is the error of the mount that was tried, nil where it was made.
	Tried error
}
