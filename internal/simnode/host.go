package simnode

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Operations of the host process.
const (
	opBoot  = "boot"
	opStart = "container-start"
	opKill  = "container-kill"
	opWait  = "container-wait"
)

// host is roleHost: it makes and takes away volumes as kubelet does, and is the
// parent of the containers, whose namespaces are copies of its own.
type host struct {
	descriptors *os.File // where the sockets of new containers come from

	mu         sync.Mutex
	containers map[int]*child // by pid
}

func newHost(descriptors *os.File) *host {
	return &host{descriptors: descriptors, containers: map[int]*child{}}
}

func (h *host) operations() map[string]handler {
	return map[string]handler{
		opBoot:     only(boot),
		opSetUp:    only(setUpVolume),
		opWalk:     only(chownWalk),
		opTearDown: tearDownVolume,
		opStart:    h.start,
		opKill:     only(h.kill),
		opWait:     only(h.wait),
	}
}

// boot gives the host a /proc with nothing mounted in it. A container with a user
// namespace may mount one of its own only if it sees a complete one already
// (mount_too_revealing in the kernel), and the agent's has files mounted over.
// It is private first: where the agent's /proc is shared, the new one would cover
// that too.
func boot(request) error {
	if err := unix.Mount("", "/proc", "", unix.MS_PRIVATE, ""); err != nil {
		return &fs.PathError{Op: "mount(private)", Path: "/proc", Err: err}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: "/proc", Err: err}
	}
	return nil
}

// start starts the first process of a container on the socket that was sent
// before the request. It is pid 1 of a pid namespace: when it is killed, the
// kernel ends everything that it has started, and waits for that.
func (h *host) start(req request) (response, error) {
	sock, err := receiveFD(h.descriptors)
	if err != nil {
		return response{}, err
	}
	defer sock.Close()
	cmd := role(self, roleWorker, req.To, sock)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	if req.Flag {
		// As kubelet's: 65,536 ids that are nobody else's.
		const first, size = 65536, 65536
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: size}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: size}}
		cmd.SysProcAttr.GidMappingsEnableSetgroups = true
		// Without it the process would keep an id that has no name in there, and
		// lose its capabilities with the exec.
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 0, Gid: 0}
	}
	c, err := start(cmd)
	if err != nil {
		return response{}, fmt.Errorf("starting a container: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.containers[c.pid()] = c
	return response{N: c.pid()}, nil
}

func (h *host) container(pid int) (*child, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.containers[pid]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("process %d is no container's: %w", pid, ErrEnded)
}

func (h *host) kill(req request) error {
	c, err := h.container(req.Handle)
	if err != nil {
		return err
	}
	return c.kill()
}

// wait answers when the container has ended, and forgets it.
func (h *host) wait(req request) error {
	c, err := h.container(req.Handle)
	if err != nil {
		return err
	}
	<-c.done
	h.mu.Lock()
	defer h.mu.Unlock()
	// A new container may have been given the pid in the meantime.
	if h.containers[req.Handle] == c {
		delete(h.containers, req.Handle)
	}
	return nil
}
