package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sessions are how long a session lasts, and how many are followed by another while a
// file is read. Each is at half of its time, so that whoever reads has seconds to see
// it: with less, a busy machine uses one that is over.
func sessions() (ttl time.Duration, count int) {
	if os.Getenv("NODE_MOUNTS_SOAK") != "" {
		return 12 * time.Second, 20
	}
	return 4 * time.Second, 5
}

func TestAnOpenDescriptorOutlivesSessions(t *testing.T) {
	ttl, count := sessions()
	s := startServer(t)
	content := pattern(64 << 20)
	s.put("file", content)
	// One that lasts, until everything runs.
	e := startEndpoint(t, s.session(time.Hour))
	m := start(t, s, e)
	before, err := os.Stat(m.dir)
	must(t, err)
	f, err := os.Open(m.path("file"))
	must(t, err)
	defer f.Close()

	stop := make(chan struct{})
	var reads atomic.Int64
	var failed atomic.Pointer[error]
	var readers sync.WaitGroup
	for reader := range 4 {
		readers.Go(func() {
			for i := reader; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				off := i * 7_340_033 % (len(content) - 1<<20)
				// Or the kernel would answer by itself.
				_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
				if err := readAt(f, content[off:off+1<<20], int64(off)); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
				reads.Add(1)
			}
		})
	}
	for range count {
		e.set(s.session(ttl))
		<-time.After(ttl / 2) // whoever refreshes the Secret does so in time
	}
	close(stop)
	readers.Wait()
	if err := failed.Load(); err != nil {
		t.Errorf("a read failed: %v", *err)
	}
	after, err := os.Stat(m.dir)
	must(t, err)
	if before.Sys().(*syscall.Stat_t).Dev != after.Sys().(*syscall.Stat_t).Dev {
		t.Error("it was mounted again")
	}
	var counts map[string]int
	s.control("GET", "/stats", &counts)
	t.Logf("%d reads, the server counted %v", reads.Load(), counts)
	if counts["get"] < 10*count {
		t.Errorf("the server was asked %d times: nothing was proven", counts["get"])
	}
	if counts["refused"] != 0 {
		t.Errorf("%d requests with an expired session", counts["refused"])
	}
}

func TestAnExpiredSessionFailsAtOnceAndTheNextWorksAtOnce(t *testing.T) {
	s := startServer(t)
	content := pattern(32 << 20)
	s.put("file", content)
	s.put("other/file", []byte("x"))
	// The runner starts, and opens the file, with a session that lasts.
	e := startEndpoint(t, s.session(time.Hour))
	m := start(t, s, e)
	f, err := os.Open(m.path("file"))
	must(t, err)
	defer f.Close()
	must(t, readAt(f, content[:4096], 0))
	short := s.session(time.Second)
	e.set(short)
	eventually(t, "the runner has the short session", func() error {
		_ = os.WriteFile(m.path("before"), []byte("x"), 0o644) // on a slow machine its time is over already
		if e.answers() == 0 {
			return errors.New("nobody has asked for it")
		}
		return nil
	}, nil)
	waitExpired(t, short)

	off := int64(20 << 20)
	err = within(t, 10*time.Second, "a read", func() error { return readAt(f, content[off:off+4096], off) })
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("read: got %v", err)
	}
	err = within(t, 10*time.Second, "a listing", func() error { _, err := os.ReadDir(m.path("other")); return err })
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("readdir: got %v", err)
	}
	err = within(t, 30*time.Second, "a write", func() error { return os.WriteFile(m.path("new"), []byte("x"), 0o644) })
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("write: got %v", err)
	}
	if s.has("new") {
		t.Error("an expired session wrote")
	}
	e.set(s.session(time.Hour))
	if err := within(t, rest, "a read", func() error { return readAt(f, content[off:off+4096], off) }); err != nil {
		t.Errorf("after the refresh: %v", err)
	}
	m.wantContent("other/file", "x")
	m.write("new", "y")
	if got := string(s.object("new")); got != "y" {
		t.Errorf("got %q", got)
	}
	if strings.Contains(m.stderr.String(), e.have.SecretAccessKey) || strings.Contains(m.stderr.String(), e.have.SessionToken) {
		t.Error("a secret was written to stderr")
	}
}

func waitExpired(t *testing.T, c credentials) {
	t.Helper()
	ends, err := time.Parse(time.RFC3339, c.Expiration)
	must(t, err)
	<-time.After(time.Until(ends) + 100*time.Millisecond)
}

func TestPermanentKeysAreReplaced(t *testing.T) {
	s := startServer(t)
	var first, second credentials
	s.control("POST", "/keys", &first)
	s.control("POST", "/keys", &second)
	e := startEndpoint(t, first)
	m := start(t, s, e)
	m.write("file", "one")
	e.set(second)
	eventually(t, "the new key is used", func() error {
		s.control("DELETE", "/keys/"+first.AccessKeyID, nil)
		return os.WriteFile(m.path("file"), []byte("two"), 0o644)
	}, func() {
		s.control("POST", "/keys", &first) // for the next attempt to revoke
	})
	if got := string(s.object("file")); got != "two" {
		t.Errorf("got %q", got)
	}
}

// patience is how long a test waits for what takes milliseconds.
const patience = time.Minute

// eventually tries until do succeeds.
func eventually(t *testing.T, what string, do func() error, between func()) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		if between != nil {
			between()
		}
	}
}

func TestASilentEndpointCostsNothingWhileTheSessionIsGood(t *testing.T) {
	s := startServer(t)
	content := pattern(32 << 20)
	s.put("file", content)
	e := startEndpoint(t, s.session(time.Minute))
	m := start(t, s, e)
	f, err := os.Open(m.path("file"))
	must(t, err)
	defer f.Close()
	until := make(chan struct{})
	e.silence(until)
	defer close(until)
	for i := range 10 {
		off := int64(i) * 3 << 20
		// With nothing at hand it would wait that long.
		if err := within(t, askTimeout, "a read", func() error { return readAt(f, content[off:off+4096], off) }); err != nil {
			t.Errorf("got %v", err)
		}
	}
}

func TestARefusedSecretEndsTheSession(t *testing.T) {
	s := startServer(t)
	s.put("file", []byte("x"))
	e := startEndpoint(t, s.session(time.Hour))
	m := start(t, s, e)
	e.refuse(404)
	eventually(t, "the session is not used any more", func() error {
		if err := os.WriteFile(m.path("new"), []byte("x"), 0o644); !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("got %v", err) //nolint:errorlint // it may be nil
		}
		return nil
	}, nil)
	e.set(s.session(time.Hour))
	m.wantContent("file", "x")
}

func TestAnEndpointOfS3ThatIsDown(t *testing.T) {
	for _, kind := range []string{"refuse", "hang", "stall", "unavailable"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			content := pattern(64 << 20)
			s.put("file", content)
			s.put("dir/file", []byte("x"))
			m := start(t, s, startEndpoint(t, s.Credentials))
			f, err := os.Open(m.path("file"))
			must(t, err)
			defer f.Close()
			must(t, readAt(f, content[:4096], 0))
			s.fault(kind)
			off := int64(50 << 20)
			err = within(t, 2*answerTimeout, "a read", func() error { return readAt(f, content[off:off+4096], off) })
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("read: got %v", err)
			}
			err = within(t, 2*answerTimeout, "a listing", func() error { _, err := os.ReadDir(m.path("dir")); return err })
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("readdir: got %v", err)
			}
			for i := range 8 { // of which none waits for the one before it
				if err := within(t, answerTimeout+5*time.Second, fmt.Sprintf("listing %d", i), func() error { _, err := os.ReadDir(m.path("dir")); return err }); !errors.Is(err, syscall.EIO) {
					t.Errorf("readdir %d: got %v", i, err)
				}
			}
			err = within(t, time.Second, "open", func() error {
				again, err := os.Open(m.path("file"))
				if err == nil {
					err = again.Close()
				}
				return err
			})
			if err != nil {
				t.Errorf("open while a read is not answered: got %v", err)
			}
			s.whole()
			// rclone goes slower for some seconds after requests that failed.
			if err := within(t, 2*answerTimeout, "a read", func() error { return readAt(f, content[off:off+4096], off) }); err != nil {
				t.Errorf("after it: %v", err)
			}
			eventually(t, "a listing", func() error { _, err := os.ReadDir(m.path("dir")); return err }, nil)
			m.wantContent("dir/file", "x")
			again, err := os.Open(m.path("file"))
			must(t, err)
			defer again.Close()
			must(t, readAt(again, content[off:off+4096], off))
		})
	}
}

func TestACloseThatCannotStoreFails(t *testing.T) {
	s, m := whole(t)
	m.write("file", "old")
	s.control("POST", "/fault?kind=unavailable&operation=put", nil)
	f, err := os.OpenFile(m.path("file"), os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	_, err = f.WriteString("new content")
	must(t, err)
	if err := within(t, time.Minute, "close", f.Close); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v", err)
	}
	if got := string(s.object("file")); got != "old" {
		t.Errorf("the object is %q", got)
	}
	s.whole()
	// The content is not lost while the runner lives: the next close stores it.
	f, err = os.OpenFile(m.path("file"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString(", stored")
	must(t, err)
	must(t, f.Close())
	if got := string(s.object("file")); got != "new content, stored" {
		t.Errorf("the object is %q", got)
	}
	// One refusal is tried again without anybody noticing.
	s.control("POST", "/fault?kind=unavailable&operation=put&times=1", nil)
	m.write("file", "third")
	if got := s.object("file"); !bytes.Equal(got, []byte("third")) {
		t.Errorf("the object is %q", got)
	}
}
