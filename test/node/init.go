package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// order is one line that the lab writes to the machine's first process, and
// report the one that answers it. One is answered before the next is read.
type order struct {
	Do       string // "start" or "end"
	Name     string // of the component
	Args     []string
	Log      string         // a file, appended to
	Signal   syscall.Signal // "end": sent first
	Patience time.Duration  // "end": until SIGKILL
}

type report struct {
	Error string
	PID   int // "start": in the machine's pid namespace
}

// supervisor is the machine's first process: it starts components, and waits for
// every orphan of the namespace.
type supervisor struct {
	mu      sync.Mutex
	running map[string]*component
}

type component struct {
	pid   int
	ended chan struct{}
}

// initRole follows the orders on standard input until it ends. The exit of the
// first process ends all others.
func initRole() int {
	s := &supervisor{running: map[string]*component{}}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go s.reap(children)
	out := json.NewEncoder(os.Stdout)
	in := json.NewDecoder(os.Stdin)
	if err := out.Encode(report{PID: os.Getpid()}); err != nil {
		return 1
	}
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return 0
		}
		if err := out.Encode(s.follow(o)); err != nil {
			return 0
		}
	}
}

func (s *supervisor) follow(o order) report {
	var r report
	var err error
	switch o.Do {
	case "start":
		r.PID, err = s.start(o)
	case "end":
		err = s.end(o)
	default:
		err = fmt.Errorf("%q is no order", o.Do)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

func (s *supervisor) start(o order) (int, error) {
	s.mu.Lock() // an end before it is noted would be nobody's
	defer s.mu.Unlock()
	if s.running[o.Name] != nil {
		return 0, fmt.Errorf("%s runs already", o.Name)
	}
	log, err := os.OpenFile(o.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	none, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer none.Close()
	// Not os.StartProcess: its handle wants to wait for the child itself.
	pid, err := syscall.ForkExec(o.Args[0], o.Args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8"},
		Files: []uintptr{none.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", o.Args[0], err)
	}
	s.running[o.Name] = &component{pid: pid, ended: make(chan struct{})}
	return pid, nil
}

func (s *supervisor) end(o order) error {
	s.mu.Lock()
	c := s.running[o.Name]
	s.mu.Unlock()
	if c == nil {
		return fmt.Errorf("%s does not run", o.Name)
	}
	if err := syscall.Kill(c.pid, o.Signal); err != nil {
		return fmt.Errorf("ending %s: %w", o.Name, err)
	}
	patience := time.NewTimer(o.Patience)
	defer patience.Stop()
	select {
	case <-c.ended:
		return nil
	case <-patience.C:
	}
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing %s: %w", o.Name, err)
	}
	<-c.ended
	return nil
}

// reap waits for every child that has ended, own or orphaned.
func (s *supervisor) reap(children <-chan os.Signal) {
	for range children {
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			s.ended(pid, status)
		}
	}
}

func (s *supervisor) ended(pid int, status syscall.WaitStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, c := range s.running {
		if c.pid == pid {
			fmt.Fprintf(os.Stderr, "%s %s (process %d) ended: exit %d, signal %d\n",
				time.Now().UTC().Format(time.RFC3339Nano), name, pid, status.ExitStatus(), status.Signal())
			close(c.ended)
			delete(s.running, name)
		}
	}
}
