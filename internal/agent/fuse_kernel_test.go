package agent_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// storageEnv makes the test binary the server of a storage on this folder, and
// storageRulesEnv has its rules.
const (
	storageEnv      = "AGENT_TEST_STORAGE"
	storageRulesEnv = "AGENT_TEST_STORAGE_RULES"
)

// What the tests ask a server for, and what it says.
const (
	hang    = "hang"
	answer  = "answer"
	done    = "done"
	arrived = "arrived"
)

// hangBound is how long a storage may hang. It is longer than any test needs: in
// that time the agent has given up many times over.
const hangBound = 2 * time.Minute

// storage is a filesystem whose server is in the tests' hands: it can stop
// answering, die, and refuse root what it gives to users.
//
// The server is a process of its own. A thread that waits for an answer cannot be
// killed, and a server in the same process lives for as long as that thread has its
// descriptors: neither `go test`'s timeout nor Ctrl-C would end the tests.
type storage struct {
	t    testing.TB
	dir  string // where it is mounted
	end  func() // kills the server and waits for that
	gone sync.Once

	mu      sync.Mutex // one request at a time
	ask     io.Writer
	said    chan struct{} // one for each request that was done; closed with the server
	arrived chan chan struct{}
	resumed chan struct{} // closed when it no longer hangs; nil while it does not
	watch   sync.WaitGroup
}

// rules are how the storage departs from a local disk.
type rules struct {
	Chown, Chmod  syscall.Errno // what it answers root
	Owner, Group  uint32        // whose a new folder is
	SquashesReads bool          // root may not list what is not open to all
	DropsSticky   bool          // a new folder is not given the sticky bit
}

// serve mounts a storage on a folder. Both go with the test.
func serve(t testing.TB, dir string, r rules) *storage {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	config, err := json.Marshal(r)
	must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), storageEnv+"="+dir, storageRulesEnv+"="+string(config))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	s := &storage{t: t, dir: dir, ask: in, said: make(chan struct{}, 1), arrived: make(chan chan struct{}, 1)}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// The death signal is tied to the thread that forks (prctl(2)).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			s.listen(out)
			_ = cmd.Wait()
		}
		close(ended)
	}()
	must(t, <-started)
	s.end = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(func() {
		s.answer()
		s.unmount(t)
		s.end()
		s.watch.Wait()
	})
	if _, ok := <-s.said; !ok {
		t.Fatal("the server has not started")
	}
	return s
}

// listen hears what the server says until it ends.
func (s *storage) listen(out io.Reader) {
	for in := bufio.NewScanner(out); in.Scan(); {
		switch in.Text() {
		case done:
			s.said <- struct{}{}
		case arrived:
			close(<-s.arrived)
		}
	}
	close(s.said)
}

// request has the server do something. One that is dead does nothing any more.
func (s *storage) request(what string) {
	if _, err := fmt.Fprintln(s.ask, what); err == nil {
		<-s.said
	}
}

// hang stops the server from answering. arrived is closed when a request has
// come that it does not answer. A test in which it goes on for too long fails,
// and the server is killed: whoever waits for it goes on with an error.
func (s *storage) hang() (arrived <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, resumed := make(chan struct{}), make(chan struct{})
	select {
	case <-s.arrived: // nothing came the last time
	default:
	}
	s.arrived <- c
	s.resumed = resumed
	s.request(hang)
	s.watch.Go(func() {
		select {
		case <-resumed:
		case <-time.After(hangBound):
			s.t.Errorf("somebody has waited for the storage for %s: its server is killed", hangBound)
			s.end()
		}
	})
	return c
}

// answer has the server answer again, what has come in the meantime first.
func (s *storage) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resumed != nil {
		s.request(answer)
		close(s.resumed)
		s.resumed = nil
	}
}

// die kills the server, and returns when every call on the storage fails.
func (s *storage) die(t testing.TB) {
	t.Helper()
	s.end()
	wants(t, "a question to a storage that is dead", unix.Stat(s.dir, &unix.Stat_t{}), unix.ENOTCONN)
}

// unmount takes the storage off its folder. It ends with the last grant of it.
func (s *storage) unmount(t testing.TB) {
	t.Helper()
	s.gone.Do(func() { must(t, unix.Unmount(s.dir, unix.MNT_DETACH)) })
}
