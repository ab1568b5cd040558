// Package simnode is a node in namespaces: what a real one gives the agent, for
// the tests on the kernel and for the demo, without a cluster.
//
// There are three kinds of mount namespaces, as on a node:
//
//   - the agent's: that of the process which calls New, see Enter;
//   - the host's: a child process that makes and takes away volumes exactly as
//     kubelet does. Its namespace is a copy in the same peer groups, so what
//     either mounts below Node.Dir appears in both, as with a hostPath volume
//     mounted Bidirectional;
//   - one for each container: children of the host, with a root of their own, in
//     which the Pod's volume is a slave (HostToContainer).
//
// Nothing outlives the process that called New: every process is killed with its
// parent, and their namespaces go with them.
package simnode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Options say what kind of node it is.
type Options struct {
	// Dir is the directory that the node is made on; it is made when it is not
	// there. "" stands for a new temporary one, and removes those that programs
	// which were killed have left empty.
	Dir string
	// Private makes the kubelet directory private: the broken node, on which
	// nothing that is mounted there reaches a container.
	Private bool
}

// Node is a node. Its paths are absolute and the same for agent and host.
type Node struct {
	Dir     string // a shared tmpfs: stands for the host's "/"
	Kubelet string // kubelet's directory
	Root    string // the agent's own directory, plain and empty
	Claim   string // the shared filesystem claim, a tmpfs of its own

	madeDir bool
	lock    *os.File // says to others that a temporary Dir is in use
	proc    *child
	host    *client
	// starting keeps the descriptor that is sent together with the request that
	// it belongs to.
	starting    sync.Mutex
	descriptors *os.File

	mu         sync.Mutex
	containers []*core
	closed     bool
}

// New makes a node. The program must have called Main and Enter.
func New(o Options) (*Node, error) {
	n := &Node{}
	if err := n.start(o); err != nil {
		return nil, fmt.Errorf("making a node: %w", errors.Join(err, n.Close()))
	}
	return n, nil
}

func (n *Node) start(o Options) error {
	in, err := entered()
	if err != nil {
		return err
	}
	if !in {
		return errors.New("this process is not in a mount namespace of its own: call simnode.Enter first")
	}
	dir, made, lock, err := makeDir(o.Dir)
	n.madeDir, n.lock = made, lock
	if err != nil {
		return err
	}
	if err := n.mount(dir, o.Private); err != nil {
		return err
	}
	return n.startHost()
}

// mount makes the node's filesystems. What is mounted before the host process
// is started is in its namespace from the beginning.
func (n *Node) mount(dir string, private bool) error {
	if err := mountAll([]mountStep{
		{from: "node", on: dir, fstype: "tmpfs", data: "mode=0755"},
		{on: dir, flags: unix.MS_SHARED},
	}); err != nil {
		if n.madeDir {
			err = errors.Join(err, os.Remove(dir))
		}
		return err
	}
	// From here on there is something for Close to undo.
	n.Dir = dir
	n.Kubelet, n.Root, n.Claim = filepath.Join(dir, "kubelet"), filepath.Join(dir, "gateway"), filepath.Join(dir, "claim")
	// kubelet makes the folder of its Pods when it starts.
	for _, d := range []string{n.Kubelet, filepath.Join(n.Kubelet, "pods"), n.Root, n.Claim, filepath.Join(dir, "run"), n.scratch()} {
		if err := mkdir(d, 0o755); err != nil {
			return err
		}
	}
	steps := []mountStep{{from: "claim", on: n.Claim, fstype: "tmpfs", data: "mode=0755"}}
	if private {
		steps = append(steps, mountStep{from: n.Kubelet, on: n.Kubelet, flags: unix.MS_BIND}, mountStep{on: n.Kubelet, flags: unix.MS_PRIVATE})
	}
	return mountAll(steps)
}

// scratch is where containers build their roots, each in a namespace of its own.
func (n *Node) scratch() string { return filepath.Join(n.Dir, "run", "rootfs") }

func (n *Node) startHost() error {
	exe, err := n.executable()
	if err != nil {
		return err
	}
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	defer theirs.Close()
	descriptors, take, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		ours.Close()
		return err
	}
	defer take.Close()
	cmd := role(exe, roleHost, "host", theirs, take)
	// A session of its own: Ctrl-C on the terminal is for the program, which
	// decides when its node ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Setsid: true}
	n.proc, err = start(cmd)
	if err != nil {
		n.proc = nil
		ours.Close()
		descriptors.Close()
		return fmt.Errorf("starting the host: %w", err)
	}
	n.host, n.descriptors = newClient(ours), descriptors
	if _, err := n.host.call(request{Op: opBoot}); err != nil {
		return fmt.Errorf("starting the host: %w", err)
	}
	return nil
}

// executable is the binary that the host is started from, and everything else
// from there. Users in a container must be able to execute it, which they cannot
// where it was built under a strict umask: then it is a copy.
func (n *Node) executable() (string, error) {
	const forAll = 0o005
	info, err := os.Stat(self)
	if err != nil || info.Mode()&forAll == forAll {
		return self, err
	}
	in, err := os.Open(self)
	if err != nil {
		return "", err
	}
	defer in.Close()
	path := filepath.Join(n.Dir, "run", "program")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	return path, errors.Join(err, out.Chmod(0o755), out.Close())
}

// HostPID is the pid of the host process.
func (n *Node) HostPID() int { return n.proc.pid() }

// startProcess has the host start a process with sock as its socket.
func (n *Node) startProcess(sock *os.File, req request) (pid int, err error) {
	n.starting.Lock()
	defer n.starting.Unlock()
	if err := sendFD(n.descriptors, sock); err != nil {
		return 0, err
	}
	resp, err := n.host.call(req)
	return resp.N, err
}

func (n *Node) add(c *core) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers = append(n.containers, c)
}

func (n *Node) remove(c *core) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers = slices.DeleteFunc(n.containers, func(o *core) bool { return o == c })
}

// Close ends the containers and the host, and takes every mount below Dir away,
// one by one and without force. What will not go because it is in use is listed
// in the error, and only then detached with Dir. A Dir that New made is removed.
func (n *Node) Close() error {
	n.mu.Lock()
	containers := slices.Clone(n.containers)
	closed := n.closed
	n.closed = true
	n.mu.Unlock()
	if closed {
		return nil
	}
	if n.lock != nil {
		defer n.lock.Close()
	}
	var errs []error
	for _, c := range containers {
		errs = append(errs, c.stop())
	}
	if n.proc != nil {
		errs = append(errs, n.proc.kill())
		n.host.close()
		n.descriptors.Close()
	}
	if n.Dir == "" {
		return errors.Join(errs...)
	}
	errs = append(errs, unmountBelow(n.Dir))
	if n.madeDir {
		errs = append(errs, os.Remove(n.Dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the node at %s: %w", n.Dir, err)
	}
	return nil
}
