package main

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// callLimit is for a call while the server is silent, with those that the kernel has come
// before it, because they change the same folder: README.md.
const (
	callsBefore = 10
	callLimit   = answerTimeout + healthTimeout + callsBefore*(latePause+gateTimeout)
)

// Whatever hangs holds nothing that another call waits for without a bound.
func TestNothingWaitsWithoutABoundForAServerThatHangs(t *testing.T) {
	for _, kind := range []string{"hang", "stall"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			content := pattern(48 << 20)
			for _, name := range []string{"written", "other", "read", "cut", "moved", "removed"} {
				s.put(name, content)
			}
			m := start(t, s, startEndpoint(t, s.Credentials))
			// In the cache in part: its content and its close need the server both.
			write := func(name string) *os.File {
				f, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
				must(t, err)
				t.Cleanup(func() { _ = f.Close() })
				_, err = f.WriteAt([]byte("new"), 10)
				must(t, err)
				return f
			}
			read, err := os.Open(m.path("read"))
			must(t, err)
			defer read.Close()
			must(t, readAt(read, content[:4096], 0))
			var written, other, again, third *os.File
			alone(func() {
				written, other, again, third = write("written"), write("other"), write("written"), write("written")
				m.names("")
				s.fault(kind)
			})
			const off = 40 << 20
			at := func(f *os.File) func() error {
				return func() error { return readAt(f, content[off:off+4096], off) }
			}
			var calls sync.WaitGroup
			for what, do := range map[string]func() error{
				"a read":                      at(read),
				"a read of what is written":   at(written),
				"fsync":                       written.Sync,
				"a write beside fsync":        func() error { _, err := again.WriteAt([]byte("x"), 0); return err },
				"close of the same beside it": third.Close,
				"close":                       other.Close,
				"truncate":                    func() error { return os.Truncate(m.path("cut"), 5) },
				"unlink":                      func() error { return os.Remove(m.path("removed")) },
				"rename":                      func() error { return os.Rename(m.path("moved"), m.path("elsewhere")) },
				"mkdir":                       func() error { return os.Mkdir(m.path("dir"), 0o755) },
			} {
				calls.Go(func() {
					err := within(t, callLimit, what, do)
					// A write may have come before the fsync that it would wait for.
					if !errors.Is(err, syscall.EIO) && (err != nil || what != "a write beside fsync") {
						t.Errorf("%s: got %v", what, err)
					}
				})
			}
			calls.Wait()
			// They have left requests behind, which nobody who opens a file waits for.
			for name, flags := range map[string]int{"read": os.O_RDONLY, "written": os.O_RDWR, "other": os.O_RDONLY} {
				var f *os.File
				err := within(t, time.Second, "open of the file "+name, func() (err error) {
					f, err = os.OpenFile(m.path(name), flags, 0)
					return err
				})
				if err != nil {
					t.Fatalf("open of the file %s: %v", name, err)
				}
				if err := within(t, callLimit, "a read of it", at(f)); !errors.Is(err, syscall.EIO) {
					t.Errorf("a read of the file %s: got %v", name, err)
				}
				_ = within(t, callLimit, "its close", f.Close)
			}
			must(t, within(t, time.Second, "stat of the root", func() error { _, err := os.Stat(m.dir); return err }))

			s.whole()
			eventually(t, "everything works", func() error {
				return within(t, callLimit, "a call", func() error {
					return errors.Join(at(read)(), os.WriteFile(m.path("written"), []byte("whole"), 0o644), os.WriteFile(m.path("new"), []byte("whole"), 0o644))
				})
			}, nil)
			for _, name := range []string{"written", "new"} {
				if got := string(s.object(name)); got != "whole" {
					t.Errorf("%s is %.40q", name, got)
				}
			}
		})
	}
}

// A large object takes its time to be stored, and the caller waits for it.
func TestAServerThatIsSlowIsNotOneThatHangs(t *testing.T) {
	s, m := whole(t)
	s.control("POST", "/fault?kind=hang&operation=put", nil)
	result := make(chan error, 1)
	go func() { result <- os.WriteFile(m.path("slow"), []byte("x"), 0o644) }()
	select {
	case err := <-result:
		t.Errorf("close(2) did not wait for a server that answers other requests: %v", err)
	case <-time.After(callLimit):
	}
	s.whole()
	if err := <-result; err != nil {
		t.Errorf("stored in the end: %v", err)
	}
}

func TestALockThatIsGivenUpIsFreeForOthers(t *testing.T) {
	var l lock
	up := errors.New("given up")
	give := func(<-chan struct{}) error { return up }
	must(t, l.take(false, give))
	must(t, l.take(false, give))
	if err := l.take(true, give); !errors.Is(err, up) {
		t.Errorf("a writer beside readers: %v", err)
	}
	must(t, l.take(false, give)) // nobody waits to write any more
	for range 3 {
		l.unlock()
	}
	must(t, l.take(true, give))
	for _, write := range []bool{false, true} {
		if err := l.take(write, give); !errors.Is(err, up) {
			t.Errorf("beside a writer: %v", err)
		}
	}
	if l.try() {
		t.Error("two writers")
	}
	waiting, taken := make(chan struct{}), make(chan struct{})
	for _, write := range []bool{false, true} {
		go func() {
			_ = l.take(write, func(let <-chan struct{}) error { waiting <- struct{}{}; <-let; return nil })
			l.unlock()
			taken <- struct{}{}
		}()
		<-waiting
	}
	go func() {
		for range waiting { // again, where the other came first
		}
	}()
	l.unlock()
	<-taken
	<-taken
	close(waiting)
	if !l.try() {
		t.Error("it is not free")
	}
}

// A reader does not overtake a writer for ever.
func TestAWriterThatWaitsComesBeforeReadersThatComeLater(t *testing.T) {
	var l lock
	must(t, l.take(false, forever))
	waits := make(chan struct{})
	written := make(chan struct{})
	go func() {
		_ = l.take(true, func(let <-chan struct{}) error { close(waits); return forever(let) })
		close(written)
	}()
	<-waits
	if err := l.take(false, func(<-chan struct{}) error { return os.ErrDeadlineExceeded }); err == nil {
		t.Error("a reader overtook it")
	}
	l.unlock()
	<-written
}
