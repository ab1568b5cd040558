package simnode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Operations of the processes in a container.
const (
	opRootfs    = "rootfs"
	opRead      = "read"
	opWrite     = "write"
	opReadDir   = "read-dir"
	opStat      = "stat"
	opChmod     = "chmod"
	opSymlink   = "symlink"
	opMkdir     = "mkdir"
	opRemove    = "remove"
	opDevice    = "device"
	opChdir     = "chdir"
	opHold      = "hold"
	opMap       = "map"
	opHeldRead  = "held-read"
	opHeldWrite = "held-write"
	opDrop      = "drop"
	opMount     = "mount"
	opBind      = "bind"
	opUnmount   = "unmount"
	opPrivate   = "private"
	opSpawn     = "spawn"
	opEnd       = "end"
	opPrepare   = "exec-prepare"
	opExec      = "exec"
)

// worker is roleWorker: a process in a container that does what it is told. The
// first process of a container is one; its helpers, who run as somebody else or
// in namespaces of their own, are others, and are reached through it.
type worker struct {
	table handler

	mu       sync.Mutex
	last     int
	held     map[int]held
	helpers  map[string]helper
	prepared map[int]*program
}

// held is an open file, or a mapping of one that is no longer open.
type held struct {
	file    *os.File
	mapping []byte
}

type helper struct {
	*child
	*client
}

// program is a process that waits for leave to become another program.
type program struct {
	*child
	sock *os.File
	out  bytes.Buffer
}

func newWorker() *worker {
	w := &worker{held: map[int]held{}, helpers: map[string]helper{}, prepared: map[int]*program{}}
	ops := fileOperations()
	for name, op := range map[string]handler{
		opRootfs:    only(func(req request) error { return req.Rootfs.enter() }),
		opMount:     only(mountOne),
		opBind:      only(bindOne),
		opUnmount:   only(unmountOne),
		opPrivate:   only(makePrivate),
		opHold:      w.hold,
		opMap:       w.mapFile,
		opHeldRead:  w.heldRead,
		opHeldWrite: only(w.heldWrite),
		opDrop:      only(w.drop),
		opSpawn:     w.spawn,
		opEnd:       only(w.end),
		opPrepare:   w.prepare,
		opExec:      w.exec,
	} {
		ops[name] = op
	}
	w.table = table(ops)
	return w
}

// handle answers req, or hands it on to the helper that it is for.
func (w *worker) handle(req request) (response, error) {
	if req.Via == "" {
		return w.table(req)
	}
	name, rest := route(req.Via)
	w.mu.Lock()
	h, ok := w.helpers[name]
	w.mu.Unlock()
	if !ok {
		return response{}, fmt.Errorf("helper %q: %w", name, ErrEnded)
	}
	req.Via = rest
	return h.call(req)
}

// spawn starts the helper named To: as UID and GID without any capability, or,
// with Flag, as this process's user in a user and mount namespace of its own.
// The answer is its pid in this pid namespace.
func (w *worker) spawn(req request) (response, error) {
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return response{}, err
	}
	defer theirs.Close()
	cmd := role(self, roleWorker, "helper "+req.To, theirs)
	if req.Flag {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
	} else {
		// Leaving uid 0 takes the capabilities away, and exec does not give them
		// back to another user.
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(req.UID), Gid: uint32(req.GID)}}
	}
	c, err := start(cmd)
	if err != nil {
		ours.Close()
		return response{}, fmt.Errorf("starting helper %q: %w", req.To, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.helpers[req.To] = helper{child: c, client: newClient(ours)}
	return response{N: c.pid()}, nil
}

// end ends the helper named To.
func (w *worker) end(req request) error {
	w.mu.Lock()
	h, ok := w.helpers[req.To]
	delete(w.helpers, req.To)
	w.mu.Unlock()
	if !ok {
		return fmt.Errorf("helper %q: %w", req.To, ErrEnded)
	}
	defer h.close()
	return h.kill()
}

// prepare starts the process of a program and answers its pid in this pid
// namespace. It runs the program once exec says so.
func (w *worker) prepare(req request) (response, error) {
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return response{}, err
	}
	defer theirs.Close()
	p := &program{sock: ours}
	cmd := role(self, roleExec, req.Argv[0], theirs)
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if p.child, err = start(cmd); err != nil {
		ours.Close()
		return response{}, fmt.Errorf("starting a process: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prepared[p.pid()] = p
	return response{N: p.pid()}, nil
}

// exec lets the prepared process run its program, and answers how it ended.
func (w *worker) exec(req request) (response, error) {
	w.mu.Lock()
	p := w.prepared[req.Handle]
	delete(w.prepared, req.Handle)
	w.mu.Unlock()
	if p == nil {
		return response{}, fmt.Errorf("process %d: %w", req.Handle, ErrEnded)
	}
	defer p.sock.Close()
	if err := json.NewEncoder(p.sock).Encode(req); err != nil {
		return response{}, errors.Join(fmt.Errorf("starting a program: %w", err), p.kill())
	}
	// The process closes the socket by executing the program, or says why not.
	var failed response
	err := json.NewDecoder(p.sock).Decode(&failed)
	<-p.done
	if err == nil {
		return response{}, failed.Err
	}
	if !errors.Is(err, io.EOF) {
		return response{}, fmt.Errorf("starting a program: %w", err)
	}
	return response{N: exitStatus(p.cmd), Text: p.out.String()}, nil
}

// exitStatus is the exit code, or 128 and the signal, as a shell gives it.
func exitStatus(cmd *exec.Cmd) int {
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

func mountOne(req request) error {
	if err := unix.Mount("own", req.Path, req.To, 0, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: req.Path, Err: err}
	}
	return nil
}

func bindOne(req request) error {
	if err := unix.Mount(req.Path, req.To, "", unix.MS_BIND, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: req.To, Err: err}
	}
	return nil
}

func unmountOne(req request) error {
	if err := unix.Unmount(req.Path, unix.UMOUNT_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "umount", Path: req.Path, Err: err}
	}
	return nil
}

func makePrivate(req request) error {
	if err := unix.Mount("", req.Path, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: req.Path, Err: err}
	}
	return nil
}
