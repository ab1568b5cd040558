package simnode

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// DefaultMountPath is where a container has the Pod's volume unless told
// otherwise.
const DefaultMountPath = grant.DefaultMountPath

// ContainerOptions say how a container is started.
type ContainerOptions struct {
	ID        string // 64 hex digits; made up when ""
	MountPath string // DefaultMountPath when ""
	Private   bool   // mount the volume without HostToContainer: later mounts do not arrive
	UserNS    bool   // as with hostUsers: false; every user must be able to reach Node.Dir
	Sandbox   bool   // the pause container: in the Pod's cgroup, without the volume
	// ExtraBinds are other directories or files of the host, by host path, and
	// the path that each has in the container.
	ExtraBinds map[string]string
}

// Container is a running container, or a view of one as another user (AsUser,
// Pinned). Its methods run inside it. They are safe for concurrent use, block as
// long as the kernel blocks them, and fail with ErrEnded once the container has
// ended; the errors of the kernel carry their errno.
type Container struct {
	core *core
	via  string    // the helper that runs the operations, "" for the first process
	user *identity // whose helper that is, where it is started on first use
}

type identity struct{ uid, gid int }

// core is what the views of one container share.
type core struct {
	node  *Node
	pod   string
	id    string
	pid   int
	pidNS string // of the container, as /proc names it
	first *client
	done  chan struct{}

	mu      sync.Mutex
	helpers map[string]int // by via: pids in the agent's pid namespace
}

// StartContainer starts a container of the Pod, as the container runtime does:
// first a process in the Pod's cgroup, then its mounts. When it returns, the
// container sees its volume with what is mounted in it.
func (p *Pod) StartContainer(o ContainerOptions) (*Container, error) {
	if o.ID == "" {
		var id [32]byte
		_, _ = rand.Read(id[:]) // never fails
		o.ID = hex.EncodeToString(id[:])
	}
	if o.MountPath == "" {
		o.MountPath = DefaultMountPath
	}
	c := &core{node: p.node, pod: p.UID, id: o.ID, done: make(chan struct{}), helpers: map[string]int{}}
	if err := c.describe(); err != nil {
		return nil, fmt.Errorf("pod %s: starting a container: %w", p.UID, err)
	}
	if err := c.start(o.UserNS); err != nil {
		return nil, fmt.Errorf("pod %s: starting a container: %w", p.UID, err)
	}
	root := rootfs{Scratch: p.node.scratch(), Mount: o.MountPath, Private: o.Private, Binds: o.ExtraBinds}
	if !o.Sandbox {
		root.Volume = p.VolumePath()
	}
	err := c.mark(c.pid)
	if err == nil {
		_, err = c.first.call(request{Op: opRootfs, Rootfs: &root})
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s: starting a container: %w", p.UID, errors.Join(err, c.stop()))
	}
	return &Container{core: c}, nil
}

// start starts the container's first process, which waits for its rootfs.
func (c *core) start(userNS bool) error {
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	defer theirs.Close()
	pid, err := c.node.startProcess(theirs, request{Op: opStart, To: "container " + c.id[:min(12, len(c.id))], Flag: userNS})
	if err != nil {
		ours.Close()
		return err
	}
	c.pid, c.first = pid, newClient(ours)
	c.pidNS, err = pidNamespace(pid)
	c.node.add(c)
	go func() {
		// An error says that the host has ended, and with it the container.
		_, _ = c.node.host.call(request{Op: opWait, Handle: pid})
		close(c.done)
	}()
	if err != nil {
		return errors.Join(err, c.stop())
	}
	return nil
}

func (c *core) stop() error {
	_, err := c.node.host.call(request{Op: opKill, Handle: c.pid})
	if errors.Is(err, ErrEnded) {
		err = nil
	}
	if err == nil {
		<-c.done
	}
	c.first.close()
	c.node.remove(c)
	_ = os.Remove(c.cgroupFile()) // gone with the node at the latest
	return err
}

// do runs req in the process that this view stands for.
func (c *Container) do(req request) (response, error) {
	if c.user != nil {
		if err := c.core.startUser(c.via, *c.user); err != nil {
			return response{}, c.core.errorf(err)
		}
	}
	req.Via = c.via
	resp, err := c.core.first.call(req)
	return resp, c.core.errorf(err)
}

func (c *core) errorf(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("container %.12s: %w", c.id, err)
}

// startUser starts the helper that runs as u, once.
func (c *core) startUser(via string, u identity) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.helpers[via]; ok {
		return nil
	}
	return c.spawn(via, request{Op: opSpawn, UID: u.uid, GID: u.gid})
}

// spawn starts a helper, to be reached by via, and puts it into the Pod's cgroup.
// c.mu is held.
func (c *core) spawn(via string, req request) error {
	req.To = filepath.Base(via)
	if dir := filepath.Dir(via); dir != "." {
		req.Via = dir
	}
	resp, err := c.first.call(req)
	if err != nil {
		return err
	}
	pid, err := c.markInner(resp.N)
	if err != nil {
		return err
	}
	c.helpers[via] = pid
	return nil
}

// ID is the container's id.
func (c *Container) ID() string { return c.core.id }

// PID is the pid of the container's first process, or of the process that the
// view runs its operations in, once there is one. It is the agent's and the
// host's name for it, not the container's own.
func (c *Container) PID() int {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	if pid, ok := c.core.helpers[c.via]; ok {
		return pid
	}
	return c.core.pid
}

// Done is closed when the container has ended, whoever ended it, and nothing of
// it runs any more.
func (c *Container) Done() <-chan struct{} { return c.core.done }

// Stop kills every process of the container and waits until they are gone. To
// stop one that has ended is no error.
func (c *Container) Stop() error { return c.core.errorf(c.core.stop()) }

// AsUser is the container as a process of uid and gid sees it that has no other
// group and, unless uid is 0, no capability. The process is started at the first
// operation.
func (c *Container) AsUser(uid, gid int) *Container {
	u := identity{uid, gid}
	return &Container{core: c.core, via: strconv.Itoa(uid) + ":" + strconv.Itoa(gid), user: &u}
}

// Mounts is the mount table as this process of the container sees it.
func (c *Container) Mounts() ([]mnt.Mount, error) {
	ms, err := mountsOf(c.PID())
	return ms, c.core.errorf(err)
}

// The user that a sandbox runs as.
const (
	sandboxUID = 1000
	sandboxGID = 100
)

const pinName = "pin"

// Pinned is the container as the process that PinPrivate started sees it.
func (c *Container) Pinned() *Container {
	v := c.AsUser(sandboxUID, sandboxGID)
	return &Container{core: c.core, via: v.via + "/" + pinName}
}

// PinPrivate does what any user can do to keep a mount: uid 1000, without a
// capability, starts a process in a user and a mount namespace of its own and
// makes everything there private (`unshare -Urm --propagation private`). No
// unmount reaches it from then on. The process runs until Unpin. When it does not
// see path, that is the error, and there is no pin.
func (c *Container) PinPrivate(path string) error {
	user := c.AsUser(sandboxUID, sandboxGID)
	pinned := c.Pinned()
	if err := c.core.startUser(user.via, *user.user); err != nil {
		return c.core.errorf(err)
	}
	if err := c.core.startPin(pinned.via); err != nil {
		return c.core.errorf(err)
	}
	_, err := pinned.do(request{Op: opPrivate, Path: "/"})
	if err == nil {
		_, err = pinned.Stat(path)
	}
	if err != nil {
		return errors.Join(err, c.Unpin())
	}
	return nil
}

func (c *core) startPin(via string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.helpers[via]; ok {
		return fmt.Errorf("a pin is there already: %w", fs.ErrExist)
	}
	return c.spawn(via, request{Op: opSpawn, Flag: true})
}

// PinRead reads a file through the process of PinPrivate.
func (c *Container) PinRead(path string) ([]byte, error) { return c.Pinned().ReadFile(path) }

// Unpin ends the process of PinPrivate, and its namespaces with it.
func (c *Container) Unpin() error {
	_, err := c.AsUser(sandboxUID, sandboxGID).do(request{Op: opEnd, To: pinName})
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	delete(c.core.helpers, c.Pinned().via)
	return err
}
