package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// defaultTimeout is longer than a keeper takes to give up a start.
const defaultTimeout = 15 * time.Second

// Client asks a keeper. Each call is a connection of its own: a Client holds nothing
// and serves any number of goroutines. Every error is one of ErrUnavailable,
// ErrUnknownChild, ErrEnded, a *RemoteError, or about the arguments.
type Client struct {
	// Dial connects to the keeper; the connection is a *net.UnixConn of the network
	// "unixpacket" (DialSocket).
	Dial func(ctx context.Context) (net.Conn, error)
	// Timeout bounds each call; 0: 15 s.
	Timeout time.Duration
}

// Info asks who the keeper is.
func (c *Client) Info(ctx context.Context) (Info, error) {
	a, _, err := c.ask(ctx, request{Op: opInfo})
	return a.Info, err
}

// List returns all children, also those that have ended and were not forgotten, the
// oldest first.
func (c *Client) List(ctx context.Context) (Info, []Child, error) {
	a, _, err := c.ask(ctx, request{Op: opList})
	return a.Info, a.Children, err
}

// Start starts a child and returns the descriptor that polls readable when it has
// ended. That is of the kind that does not block, so that a goroutine can wait for
// it: the caller closes it. The program was executed when Start returns. After an
// error the child may exist all the same, if the connection broke: List shows it.
func (c *Client) Start(ctx context.Context, s Start) (Info, Child, *os.File, error) {
	if s.Program == nil {
		return Info{}, Child{}, nil, errors.New("start a child: no program")
	}
	o := order{
		Use: s.Use, Note: s.Note, Args: asBytes(s.Args), Env: asBytes(s.Env), UID: s.UID, GID: s.GID,
		Memory: s.Memory, CacheName: s.CacheName, Files: len(s.Files),
	}
	if err := o.check(); err != nil {
		return Info{}, Child{}, nil, fmt.Errorf("start a child: %w", err)
	}
	var own rights
	defer func() { own.close() }()
	for _, f := range append([]*os.File{s.Program}, s.Files...) {
		fd, err := duplicate(f)
		if err != nil {
			return Info{}, Child{}, nil, fmt.Errorf("start a child: %w", err)
		}
		own = append(own, fd)
	}
	a, got, err := c.ask(ctx, request{Op: opStart, Start: &o}, own...)
	if err != nil {
		return a.Info, Child{}, nil, err
	}
	if len(a.Children) != 1 || got == nil {
		got.Close()
		return a.Info, Child{}, nil, errAnswer
	}
	return a.Info, a.Children[0], got, nil
}

// Pidfd is the descriptor that Start returned, once more: for a child that was started
// by an earlier agent. ErrEnded: it does not run any more.
func (c *Client) Pidfd(ctx context.Context, id string) (*os.File, error) {
	return c.descriptor(ctx, request{Op: opPidfd, ID: id})
}

// Child returns what the keeper knows of one child. Once its pidfd says that it has
// ended, Ended is there.
func (c *Client) Child(ctx context.Context, id string) (Child, error) {
	a, _, err := c.ask(ctx, request{Op: opChild, ID: id})
	if err != nil {
		return Child{}, err
	}
	if len(a.Children) != 1 {
		return Child{}, errAnswer
	}
	return a.Children[0], nil
}

// Stop sends the child SIGTERM, and SIGKILL after grace, which is at most ten minutes.
// It returns at once. A child that has ended, or that is not known, is stopped.
func (c *Client) Stop(ctx context.Context, id string, grace time.Duration) error {
	_, _, err := c.ask(ctx, request{Op: opStop, ID: id, Grace: milliseconds(grace)})
	return err
}

// Forget drops a child that has ended from the list. One that is not known is
// forgotten; one that runs is not.
func (c *Client) Forget(ctx context.Context, id string) error {
	_, _, err := c.ask(ctx, request{Op: opForget, ID: id})
	return err
}

// Listener is a copy of the one TCP socket, on a loopback port of the keeper's network
// namespace, that listens for as long as the keeper runs. Connections wait there while
// nobody accepts. Closing the copy leaves the socket listening.
func (c *Client) Listener(ctx context.Context) (net.Listener, error) {
	f, err := c.descriptor(ctx, request{Op: opListener})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("use the keeper's socket: %w", err)
	}
	return l, nil
}

var errAnswer = &RemoteError{"(an answer that is none)"}

func (c *Client) descriptor(ctx context.Context, r request) (*os.File, error) {
	_, f, err := c.ask(ctx, r)
	if err == nil && f == nil {
		err = errAnswer
	}
	return f, err
}

// ask sends one request and returns the whole answer, with the descriptor that came
// with it.
func (c *Client) ask(ctx context.Context, r request, descriptors ...int) (answer, *os.File, error) {
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := c.Dial(ctx)
	if err != nil {
		return answer{}, nil, unavailable(ctx, err)
	}
	defer func() { _ = conn.Close() }()
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return answer{}, nil, fmt.Errorf("%w: a connection of type %T", ErrUnavailable, conn)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	r.Protocol = Protocol
	if err := send(u, r, descriptors...); err != nil {
		return answer{}, nil, unavailable(ctx, err)
	}
	var all answer
	for {
		a, got, err := receiveAnswer(u)
		if err != nil {
			got.close()
			return answer{}, nil, unavailable(ctx, err)
		}
		if a.Failure != nil {
			got.close()
			return answer{Info: a.Info}, nil, a.Failure.asError()
		}
		all.Info, all.Children = a.Info, append(all.Children, a.Children...)
		switch {
		case a.More && len(got) == 0:
			continue
		case len(got) == 0:
			return all, nil, nil
		case len(got) == 1 && !a.More:
			return all, os.NewFile(uintptr(got[0]), "of the keeper"), nil
		}
		got.close()
		return answer{}, nil, errAnswer
	}
}

// unavailable is the error of a connection that did not do its work.
func unavailable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// duplicate copies a descriptor. (*os.File).Fd would make it a blocking one, for
// everybody who shares it.
func duplicate(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	controlErr := raw.Control(func(n uintptr) {
		fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := errors.Join(controlErr, os.NewSyscallError("dup", err)); err != nil {
		return -1, err
	}
	return fd, nil
}

func asBytes(list []string) [][]byte {
	all := make([][]byte, len(list))
	for i, s := range list {
		all[i] = []byte(s)
	}
	return all
}
