package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spawner starts this keeper's processes, and waits for them.
type spawner struct {
	// orphans: processes that were given to this one by the kernel are waited for too.
	orphans bool

	jobs   chan func()
	done   chan struct{} // closed: the thread ends
	reaped chan struct{} // a process of ours has gone

	mu    sync.Mutex
	known map[int]bool // the pids of processes that were started and not waited for
	// forbidden: nothing is started any more.
	forbidden bool
}

// newSpawner returns a spawner whose processes end with it. The kernel ends them with
// the thread that has forked them, so all are forked by one that does nothing else
// and is there until stop is called.
func newSpawner(orphans bool) (s *spawner, stop func()) {
	s = &spawner{orphans: orphans, jobs: make(chan func()), done: make(chan struct{}), reaped: make(chan struct{}, 1), known: map[int]bool{}}
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		for {
			select {
			case job := <-s.jobs:
				job()
			case <-s.done:
				return
			}
		}
	}()
	return s, func() { close(s.done) }
}

// process is one of this keeper's processes.
type process struct {
	pid    int
	gone   chan struct{}      // closed when it has been waited for
	status syscall.WaitStatus // then
	// handle is a copy of the pidfd for whoever has started it, who closes it.
	handle int

	mu    sync.Mutex
	pidfd *os.File // nil when it has been waited for
}

// signal signals the process, unless it has ended.
func (p *process) signal(s unix.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd != nil { // so the pid is still its own
		_ = unix.Kill(p.pid, s)
	}
}

// duplicate copies the pidfd; it fails when the process has been waited for.
func (p *process) duplicate() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd == nil {
		return -1, os.ErrProcessDone
	}
	return duplicate(p.pidfd)
}

// dead tells whether it has ended, waited for or not.
func (p *process) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd == nil {
		return true
	}
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	var is bool
	_ = raw.Control(func(fd uintptr) { is = readable(int(fd)) })
	return is
}

func readable(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// stdio are the descriptors 0 and 1 and 2 of a process.
type stdio struct {
	in, out int
}

// start runs this program as the confined process that spec describes, and returns
// when it executes the child's program, or when it has not done so in time: then
// nothing of it is left. descriptors are the program and its files.
func (s *spawner) start(spec *spec, std stdio, within time.Duration, descriptors ...int) (*process, error) {
	p, link, err := s.fork(spec, std, within, descriptors)
	if err != nil {
		return nil, err
	}
	said, err := hear(link)
	if err == nil && said == executing {
		return p, nil
	}
	unix.Close(p.handle)
	p.signal(unix.SIGKILL)
	<-p.gone
	switch {
	case err != nil:
		return nil, fmt.Errorf("start the child: %w", err)
	case said == "":
		return nil, fmt.Errorf("start the child: it ended before it executed its program: %v", describe(p.status))
	}
	if len(said) > len(executing) && said[:len(executing)] == executing {
		said = said[len(executing):]
	}
	return nil, errors.New(said)
}

// run runs the confined process to its end, where spec has no program.
func (s *spawner) run(spec *spec, std stdio, within time.Duration) error {
	p, link, err := s.fork(spec, std, within, nil)
	if err != nil {
		return err
	}
	unix.Close(p.handle)
	said, err := hear(link)
	if err != nil {
		p.signal(unix.SIGKILL)
	}
	<-p.gone
	switch {
	case err != nil:
		return err
	case said != "":
		return errors.New(said)
	case p.status != 0:
		return errors.New(describe(p.status).String())
	}
	return nil
}

// hear reads what the confined process says until it closes the link.
func hear(link *os.File) (string, error) {
	defer link.Close()
	const most = 4 << 10
	b, err := io.ReadAll(io.LimitReader(link, most))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.New("it took too long")
	}
	return string(b), err
}

// fork starts the confined process and hands it the spec. The link has a deadline.
func (s *spawner) fork(spec *spec, std stdio, within time.Duration, descriptors []int) (*process, *os.File, error) {
	message, err := json.Marshal(spec)
	if err != nil {
		return nil, nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	// Ours alone does not block, so that a deadline ends a call.
	err = unix.SetNonblock(pair[0], true)
	link := os.NewFile(uintptr(pair[0]), "link")
	if err == nil {
		err = link.SetDeadline(time.Now().Add(within))
	}
	var p *process
	if err == nil {
		p, err = s.forkOnThread(append([]int{std.in, std.out, std.out, pair[1]}, descriptors...))
	}
	unix.Close(pair[1])
	if err != nil {
		link.Close()
		return nil, nil, fmt.Errorf("start a process: %w", err)
	}
	// One that ended before it read is explained by its end.
	_, _ = link.Write(append(message, '\n'))
	return p, link, nil
}

func (s *spawner) forkOnThread(descriptors []int) (p *process, err error) {
	done := make(chan struct{})
	job := func() {
		defer close(done)
		p, err = s.forkNow(descriptors)
	}
	select {
	case s.jobs <- job:
		<-done
		return p, err
	case <-s.done:
		return nil, errEnding
	}
}

var errEnding = &failure{codeEnding, "it is ending"}

func (s *spawner) forkNow(descriptors []int) (*process, error) {
	files := make([]uintptr, len(descriptors))
	for i, fd := range descriptors {
		files[i] = uintptr(fd)
	}
	pidfd := -1
	// Whoever waits for orphans must know this pid first.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forbidden {
		return nil, errEnding
	}
	// The program itself, also when its file has been replaced since it started.
	pid, err := syscall.ForkExec("/proc/self/exe", []string{confinedName}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	})
	if err != nil {
		return nil, err
	}
	s.known[pid] = true
	p := &process{pid: pid, gone: make(chan struct{}), handle: -1}
	if pidfd < 0 || unix.SetNonblock(pidfd, true) != nil {
		pidfd = -1
	} else {
		p.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
		p.handle, err = duplicate(p.pidfd)
	}
	go s.wait(p)
	if p.handle < 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
		return nil, fmt.Errorf("no pidfd: %w", errors.Join(err, unix.EOPNOTSUPP))
	}
	return p, nil
}

// wait waits for a process and for nothing else's.
func (s *spawner) wait(p *process) {
	if p.pidfd != nil {
		if raw, err := p.pidfd.SyscallConn(); err == nil {
			_ = raw.Read(func(fd uintptr) bool { return readable(int(fd)) })
		}
	}
	// It is a zombie by now: this returns at once, and leaves it one.
	for errors.Is(unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		continue
	}
	// What it started ends with it, while its number is nobody else's: a helper that
	// lives on would keep its descriptors, and with them its mount.
	_ = unix.Kill(-p.pid, unix.SIGKILL)
	s.mu.Lock()
	p.mu.Lock()
	for {
		if _, err := syscall.Wait4(p.pid, &p.status, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	delete(s.known, p.pid)
	if p.pidfd != nil {
		p.pidfd.Close()
		p.pidfd = nil
	}
	p.mu.Unlock()
	s.mu.Unlock()
	close(p.gone)
	select {
	case s.reaped <- struct{}{}:
	default:
	}
}

// forbid lets nothing be started from now on.
func (s *spawner) forbid() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forbidden = true
}

// describe is the Exit of a status, without words.
func describe(status syscall.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Code: -1, Signal: status.Signal()}
	}
	return Exit{Code: status.ExitStatus()}
}
