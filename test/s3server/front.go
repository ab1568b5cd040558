package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// front is the port of S3: it carries bytes to the gateway, which listens on a
// socket of its own, so that the port can be closed and opened again and answers
// can be held back.
type front struct {
	addr    net.Addr
	backend string

	mu       sync.Mutex
	listener net.Listener
	held     int // a socket that keeps the port while nobody listens
	conns    map[net.Conn]struct{}
	stalled  chan struct{} // nil, or closed when bytes may flow
}

// step is how many bytes are carried before a stall is looked for.
const step = 256 << 10

func newFront(address, backend string) (*front, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &front{addr: l.Addr(), backend: backend, listener: l, conns: map[net.Conn]struct{}{}}, nil
}

func (f *front) open() { go f.accept(f.listener) }

func (f *front) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go f.carry(conn)
	}
}

func (f *front) carry(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", f.backend)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	if !f.keep(client) {
		return
	}
	defer f.drop(client)
	done := make(chan struct{}, 2)
	go func() { f.copy(server, client); done <- struct{}{} }()
	go func() { f.copy(client, server); done <- struct{}{} }()
	// Neither protocol goes on with half a connection.
	<-done
}

func (f *front) copy(to io.Writer, from io.Reader) {
	for {
		if _, err := io.CopyN(to, from, step); err != nil {
			return
		}
		f.mu.Lock()
		stalled := f.stalled
		f.mu.Unlock()
		if stalled != nil {
			<-stalled
		}
	}
}

// keep says false where the port was closed in the meantime.
func (f *front) keep(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener == nil {
		return false
	}
	f.conns[conn] = struct{}{}
	return true
}

func (f *front) drop(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, conn)
}

func (f *front) stall(until chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalled = until
}

func (f *front) refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.listener.Close()
	f.listener, f.held = nil, holdPort(f.addr)
	for conn := range f.conns {
		_ = conn.Close()
	}
}

// holdPort binds the port and does not listen: connections are refused, and nobody
// else is given it. It returns a descriptor, or -1 where it cannot.
func holdPort(at net.Addr) int {
	addr, ok := at.(*net.TCPAddr)
	if !ok || addr.IP.To4() == nil {
		return -1
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	// With it a port may be bound twice, as long as nobody listens.
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())})
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1
	}
	return fd
}

func (f *front) listen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := net.Listen("tcp", f.addr.String())
	if err != nil {
		return fmt.Errorf("the port was taken while it was closed: %w", errors.Unwrap(err))
	}
	if f.held >= 0 {
		_ = syscall.Close(f.held)
		f.held = -1
	}
	f.listener = l
	go f.accept(l)
	return nil
}
