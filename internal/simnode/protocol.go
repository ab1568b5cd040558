package simnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrEnded is returned by every operation of a process that has ended.
var ErrEnded = errors.New("the process has ended")

// request is one line of JSON on a process's socket. A process answers requests
// in any order and each on a thread of its own: one that hangs on a dead
// filesystem must not keep the others from being answered.
type request struct {
	ID     uint64   `json:"id"`
	Via    string   `json:"via,omitempty"` // names of helpers to hand it on to, joined by "/"
	Op     string   `json:"op"`
	Path   string   `json:"path,omitempty"`
	To     string   `json:"to,omitempty"`
	Data   []byte   `json:"data,omitempty"`
	Mode   uint32   `json:"mode,omitempty"` // an fs.FileMode
	UID    int      `json:"uid,omitempty"`
	GID    int      `json:"gid,omitempty"`
	Handle int      `json:"handle,omitempty"`
	Flag   bool     `json:"flag,omitempty"`
	Argv   []string `json:"argv,omitempty"`
	Rootfs *rootfs  `json:"rootfs,omitempty"`
}

// response is one line of JSON the other way.
type response struct {
	ID    uint64       `json:"id"`
	Err   *remoteError `json:"err,omitempty"`
	Data  []byte       `json:"data,omitempty"`
	Names []string     `json:"names,omitempty"`
	Info  *FileInfo    `json:"info,omitempty"`
	N     int          `json:"n,omitempty"` // a pid, a handle or an exit status
	Text  string       `json:"text,omitempty"`
}

// remoteError is an error of another process. The errno survives the pipe, so
// errors.Is(err, unix.EROFS) and errors.Is(err, fs.ErrNotExist) hold.
type remoteError struct {
	Errno int    `json:"errno,omitempty"`
	Ended bool   `json:"ended,omitempty"` // ErrEnded, of a process further on
	Text  string `json:"text"`
}

func (e *remoteError) Error() string { return e.Text }

// Is passes ErrEnded on.
func (e *remoteError) Is(target error) bool { return e.Ended && target == ErrEnded }

// Unwrap is the errno, nil where there was none.
func (e *remoteError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return syscall.Errno(e.Errno)
}

func wireError(err error) *remoteError {
	if err == nil {
		return nil
	}
	e := &remoteError{Text: err.Error(), Ended: errors.Is(err, ErrEnded)}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		e.Errno = int(errno)
	}
	return e
}

// client is our end of a process's socket. Safe for concurrent use.
type client struct {
	sock *os.File

	writing sync.Mutex
	enc     *json.Encoder

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan response // nil once the process has ended
}

func newClient(sock *os.File) *client {
	c := &client{sock: sock, enc: json.NewEncoder(sock), waiting: map[uint64]chan response{}}
	go c.receive()
	return c
}

func (c *client) receive() {
	dec := json.NewDecoder(c.sock)
	for {
		var resp response
		if dec.Decode(&resp) != nil {
			break
		}
		c.mu.Lock()
		answer := c.waiting[resp.ID]
		delete(c.waiting, resp.ID)
		c.mu.Unlock()
		if answer != nil {
			answer <- resp
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, answer := range c.waiting {
		close(answer)
	}
	c.waiting = nil
}

// call sends req and waits for its answer, however long that takes. The error
// is the other process's, or ErrEnded.
func (c *client) call(req request) (response, error) {
	answer := make(chan response, 1)
	c.mu.Lock()
	if c.waiting == nil {
		c.mu.Unlock()
		return response{}, ErrEnded
	}
	c.last++
	id := c.last
	c.waiting[id] = answer
	c.mu.Unlock()

	req.ID = id
	c.writing.Lock()
	err := c.enc.Encode(req)
	c.writing.Unlock()
	if err != nil {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return response{}, fmt.Errorf("%w: %w", ErrEnded, err)
	}
	resp, ok := <-answer
	if !ok {
		return response{}, ErrEnded
	}
	if resp.Err != nil {
		return resp, resp.Err
	}
	return resp, nil
}

func (c *client) close() { c.sock.Close() }

// handler is one operation of a process.
type handler func(request) (response, error)

// serve answers the requests on sock until the other end is closed.
func serve(sock io.ReadWriter, handle handler) {
	dec, enc := json.NewDecoder(sock), json.NewEncoder(sock)
	var writing sync.Mutex
	for {
		var req request
		if dec.Decode(&req) != nil {
			return
		}
		go func() {
			resp, err := handle(req)
			resp.ID, resp.Err = req.ID, wireError(err)
			writing.Lock()
			defer writing.Unlock()
			// A write that fails means that nobody is there to hear of it: the
			// reading side ends this process.
			_ = enc.Encode(resp)
		}()
	}
}

// table hands a request to the operation that it names.
func table(ops map[string]handler) handler {
	return func(req request) (response, error) {
		if op := ops[req.Op]; op != nil {
			return op(req)
		}
		return response{}, fmt.Errorf("no operation %q", req.Op)
	}
}

// only makes a handler of an operation whose answer is its error.
func only(op func(request) error) handler {
	return func(req request) (response, error) { return response{}, op(req) }
}

// socketPair is two connected ends that no other child inherits. The first is
// ours; it is non-blocking, so that closing it ends a read on it.
func socketPair(kind int) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// sendFD gives a copy of f to the process at the other end of a SOCK_SEQPACKET
// socket.
func sendFD(over, f *os.File) error {
	rights := unix.UnixRights(int(f.Fd()))
	return os.NewSyscallError("sendmsg", unix.Sendmsg(int(over.Fd()), []byte{0}, rights, nil, 0))
}

// receiveFD takes what sendFD sent.
func receiveFD(over *os.File) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(over.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("receiving a descriptor: %d messages: %w", len(msgs), errors.Join(err, io.ErrUnexpectedEOF))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receiving a descriptor: %d descriptors: %w", len(fds), errors.Join(err, io.ErrUnexpectedEOF))
	}
	return os.NewFile(uintptr(fds[0]), "socket"), nil
}

// route splits the name of the next helper off a Via.
func route(via string) (next, rest string) {
	next, rest, _ = strings.Cut(via, "/")
	return next, rest
}
