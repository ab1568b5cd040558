package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// DefaultGrace is how long children have between SIGTERM and SIGKILL when the keeper
	// ends: shorter than the 30 s that kubelet gives it.
	DefaultGrace = 25 * time.Second

	defaultChildren = 1024

	maxConnections = 256
	requestTime    = 5 * time.Second  // for a client to send its request, and to take each part of the answer
	startTime      = 10 * time.Second // for a child to execute its program
	killTime       = 5 * time.Second  // for a child to end by SIGKILL
	pollTime       = time.Second      // between two looks at the memory of the children
)

// Server is a keeper. The zero value works.
type Server struct {
	Version   string
	CacheRoot string        // a folder of root's for the children's caches; "" none
	Grace     time.Duration // 0: DefaultGrace
	// MaxChildren is how many children may run; 0: 1024. Of those that have ended and are
	// not forgotten as many are kept, the latest.
	MaxChildren int
	// Orphans: the process is the first of its pid namespace, or a subreaper, and waits
	// for what the kernel gives it. A program that starts processes by other means than
	// this package must leave it off.
	Orphans bool
	Log     *slog.Logger // nil: none
	Output  *Output      // where the children's lines go; nil: nowhere
}

// service is a Server at work.
type service struct {
	Server
	info     Info
	spawner  *spawner
	null     int // a descriptor of /dev/null
	listener *net.TCPListener
	work     sync.WaitGroup // removals of caches, and children whose end is being recorded

	mu       sync.Mutex
	children []*child        // the oldest first
	running  int             // of them, and starts under way
	caches   map[string]bool // names in use or being removed
	ending   bool
}

// Serve answers on l, and closes it, until ctx ends. Then it sends SIGTERM to the
// children, waits for them while it goes on answering, but starts none, and sends
// SIGKILL to those that are left after Grace. An error says why it could not begin, or
// go on.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	defer func() { _ = l.Close() }()
	v := &service{Server: *s, caches: map[string]bool{}}
	if v.Log == nil {
		v.Log = slog.New(slog.DiscardHandler)
	}
	if v.Grace <= 0 {
		v.Grace = DefaultGrace
	}
	if v.MaxChildren <= 0 {
		v.MaxChildren = defaultChildren
	}
	v.info = Info{Protocol: Protocol, Instance: rand.Text(), Version: s.Version, CacheRoot: s.CacheRoot}
	var err error
	if v.null, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer unix.Close(v.null)
	if v.listener, err = listenLoopback(ctx); err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	defer func() { _ = v.listener.Close() }()
	left, err := v.openCaches()
	if err != nil {
		return err
	}
	var stop func()
	v.spawner, stop = newSpawner(s.Orphans)
	defer stop()
	v.removeLeft(left)
	v.Log.Info("the keeper answers", "socket", l.Addr().String(), "instance", v.info.Instance, "version", s.Version,
		"port", v.listener.Addr().(*net.TCPAddr).Port, "cacheRoot", s.CacheRoot)

	behind, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if s.Orphans {
		go v.spawner.reapOrphans(behind)
	}
	go v.watchMemory(behind)
	failed := make(chan error, 1)
	go func() { failed <- v.accept(behind, l) }()
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	v.end()
	return err
}

// listenLoopback makes the socket that is handed to agents.
func listenLoopback(ctx context.Context) (*net.TCPListener, error) {
	var config net.ListenConfig
	// A copy of the socket is used in another process: a plain one has no surprises.
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// accept serves connections until the listener is closed.
func (s *service) accept(ctx context.Context, l *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	slots := make(chan struct{}, maxConnections)
	for {
		slots <- struct{}{} // the others wait in the backlog
		c, err := l.AcceptUnix()
		if err == nil {
			go func() {
				defer func() { <-slots }()
				s.serve(c)
			}()
			continue
		}
		<-slots
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		// No descriptor is left, or no memory: that passes.
		s.Log.Warn("no connection can be accepted", "error", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// serve answers one request.
func (s *service) serve(c *net.UnixConn) {
	defer func() { _ = c.Close() }()
	uid, err := peer(c)
	if err != nil || uid != 0 {
		s.Log.Warn("a request that is not root's was refused", "uid", uid, "error", err)
		return
	}
	if err := c.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return
	}
	b, descriptors, err := receive(c)
	defer func() { descriptors.close() }()
	var refused *failure
	var r *request
	switch {
	case errors.Is(err, errTruncated):
		refused = refuse("%v", err)
	case err != nil:
		s.Log.Debug("a connection without a request", "error", err)
		return
	default:
		r, refused = decode(b, len(descriptors))
	}
	if refused == nil {
		refused = s.perform(c, r, descriptors)
	}
	if refused != nil {
		if refused.Code == codeRefused || refused.Code == codeFailed {
			s.Log.Warn("a request was not done", "why", refused.Message)
		}
		s.answer(c, answer{Failure: refused})
	}
}

// answer sends one packet of an answer and says whether it was taken.
func (s *service) answer(c *net.UnixConn, a answer, descriptors ...int) bool {
	a.Info = s.info
	err := c.SetWriteDeadline(time.Now().Add(requestTime))
	if err == nil {
		err = send(c, a, descriptors...)
	}
	if err != nil {
		s.Log.Debug("an answer was not taken", "error", err)
	}
	return err == nil
}

// perform does what a request asks for and answers it, or says why not.
func (s *service) perform(c *net.UnixConn, r *request, descriptors rights) *failure {
	switch r.Op {
	case opStart:
		return s.performStart(c, r.Start, descriptors)
	case opList:
		parts := chunks(s.list())
		for i, part := range parts {
			if !s.answer(c, answer{Children: part, More: i+1 < len(parts)}) {
				break
			}
		}
	case opListener:
		return s.answerListener(c)
	case opStop:
		if k := s.find(r.ID); k != nil && !k.dead() {
			k.stop(time.Duration(min(max(0, r.Grace), maxGrace.Milliseconds())) * time.Millisecond)
		}
		s.answer(c, answer{})
	case opForget:
		if err := s.forget(r.ID); err != nil {
			return err
		}
		s.answer(c, answer{})
	case opChild, opPidfd:
		k := s.find(r.ID)
		if k == nil {
			return &failure{codeUnknownChild, ErrUnknownChild.Error()}
		}
		if r.Op == opPidfd {
			return s.answerPidfd(c, k)
		}
		k.settle()
		s.answer(c, answer{Children: []Child{s.view(k)}})
	default:
		s.answer(c, answer{})
	}
	return nil
}

func (s *service) answerPidfd(c *net.UnixConn, k *child) *failure {
	fd, err := k.duplicate()
	if err != nil {
		return &failure{codeEnded, ErrEnded.Error()}
	}
	defer unix.Close(fd)
	s.answer(c, answer{Children: []Child{s.view(k)}}, fd)
	return nil
}

func (s *service) answerListener(c *net.UnixConn) *failure {
	raw, err := s.listener.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { s.answer(c, answer{}, int(fd)) })
	}
	if err != nil {
		return &failure{codeFailed, err.Error()}
	}
	return nil
}

// performStart starts a child. One whose client does not take the answer is ended: the
// client will start another.
func (s *service) performStart(c *net.UnixConn, o *order, descriptors rights) *failure {
	k, err := s.start(o, descriptors)
	if err != nil {
		if known, ok := errors.AsType[*failure](err); ok {
			return known
		}
		return &failure{codeFailed, err.Error()}
	}
	defer unix.Close(k.handle)
	if !s.answer(c, answer{Children: []Child{s.view(k)}}, k.handle) {
		s.Log.Warn("a child was ended, because its client has gone", "use", k.use, "id", k.id)
		k.signal(unix.SIGKILL)
	}
	return nil
}
