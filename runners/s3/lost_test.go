package main

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// longOutage is more than rclone goes on trying to fetch what is missing of a file.
const longOutage = 40 * time.Second

// forgotten is more than the time after which rclone forgets a folder.
const forgotten = 2*dirCacheTime + 15*time.Second

// soaking skips what takes minutes.
func soaking(t *testing.T) {
	t.Helper()
	if os.Getenv("NODE_MOUNTS_SOAK") == "" {
		t.Skip("it takes minutes: NODE_MOUNTS_SOAK")
	}
}

// What was written to a file of which a part is still to be fetched is not lost when the
// server is away at the first fsync.
func TestAPartlyFetchedFileIsStoredAfterAnOutage(t *testing.T) {
	for _, kind := range []string{"unavailable", "refuse"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			content := pattern(4 << 20)
			s.put("big", content)
			m := start(t, s, startEndpoint(t, s.Credentials))
			f, err := os.OpenFile(m.path("big"), os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			_, err = f.WriteAt([]byte("new"), 10)
			must(t, err)
			s.fault(kind)
			begun := time.Now()
			if err := f.Sync(); err == nil {
				t.Fatal("fsync without a server worked")
			} else {
				t.Logf("fsync: %v after %v", err, time.Since(begun))
			}
			time.Sleep(longOutage)
			s.whole()
			deadline := time.Now().Add(90 * time.Second)
			for {
				err := f.Sync()
				t.Logf("fsync: %v after %v", err, time.Since(begun))
				if err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("never")
				}
				time.Sleep(500 * time.Millisecond)
			}
			want := bytes.Clone(content)
			copy(want[10:], "new")
			if got := s.object("big"); !bytes.Equal(got, want) {
				t.Errorf("fsync returned 0, and the object has %d bytes, at 10 %q", len(got), got[10:13])
			}
		})
	}
}

// The server is away for some seconds when the grant is revoked: there are 20 s.
func TestTheEndWaitsForAServerThatComesBack(t *testing.T) {
	for _, kind := range []string{"unavailable", "hang", "refuse"} {
		for _, known := range []bool{false, true} {
			name := kind
			if known {
				name += " known"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s, m := whole(t)
				m.write("other", "x")
				unclosed, err := os.Create(m.path("unclosed"))
				must(t, err)
				defer unclosed.Close()
				_, err = unclosed.WriteString("written, not closed")
				must(t, err)
				s.fault(kind)
				if known { // as the agent's watch does
					var is syscall.Statfs_t
					begun := time.Now()
					for syscall.Statfs(m.dir, &is) == nil {
						time.Sleep(500 * time.Millisecond)
					}
					t.Log("statfs", time.Since(begun))
				}
				begun := time.Now()
				must(t, m.command.Process.Signal(syscall.SIGTERM))
				select {
				case <-m.ended:
				case <-time.After(3 * time.Second):
				}
				early := time.Since(begun)
				s.whole()
				status := m.wait(endTimeout + patience)
				t.Log("before the server came back:", early)
				t.Logf("ended after %s with %d: %s", time.Since(begun), status, strings.TrimSpace(m.stderr.String()))
				if !s.has("unclosed") {
					t.Error("it is not stored")
				}
			})
		}
	}
}

// The kernel releases a descriptor some time after its close.
func TestAFileIsReplacedRightAfterItsClose(t *testing.T) {
	s, m := whole(t)
	var before, after map[string]int
	s.control("GET", "/stats", &before)
	failed := 0
	const rounds = 1000
	for range rounds {
		if err := os.WriteFile(m.path("file"), []byte("content"), 0o644); err != nil {
			failed++
			if failed < 5 {
				t.Error(err)
			}
		}
		if got := string(s.object("file")); got != "content" {
			t.Errorf("got %q", got)
		}
	}
	s.control("GET", "/stats", &after)
	t.Logf("%d failed, %d puts", failed, after["put"]-before["put"])
}

// What is awaited of a file is not waited for when it is cut.
func TestTruncatedWhileARangeIsAwaited(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	content := pattern(48 << 20)
	s.put("file", content)
	m := start(t, s, startEndpoint(t, s.Credentials))
	f, err := os.OpenFile(m.path("file"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("new"), 10)
	must(t, err)
	s.control("POST", "/fault?kind=hang&operation=get", nil)
	t.Log("a read: ", readAt(f, content[40<<20:40<<20+4096], 40<<20))
	must(t, within(t, 30*time.Second, "truncate", func() error { return f.Truncate(0) }))
	_, err = f.WriteAt([]byte("whole"), 0)
	must(t, err)
	s.whole()
	begun := time.Now()
	t.Log("fsync:", within(t, 100*time.Second, "fsync", f.Sync), time.Since(begun))
	if got := s.object("file"); string(got) != "whole" {
		t.Errorf("%d bytes, begins with %.10q", len(got), got)
	}
}

// A file is open for longer than rclone remembers its folder, and another program opens it.
func TestAnFsyncStoresWhateverElseIsOpen(t *testing.T) {
	soaking(t)
	t.Parallel()
	s := startServer(t)
	s.put("file", []byte("0123456789"))
	m := start(t, s, startEndpoint(t, s.Credentials))
	a, err := os.OpenFile(m.path("file"), os.O_RDWR, 0)
	must(t, err)
	defer a.Close()
	_, err = a.WriteAt([]byte("a"), 0)
	must(t, err)
	must(t, a.Sync())
	time.Sleep(forgotten)
	b, err := os.OpenFile(m.path("file"), os.O_RDWR, 0)
	must(t, err)
	defer b.Close()
	_, err = b.WriteAt([]byte("b"), 1)
	must(t, err)
	_, err = a.WriteAt([]byte("c"), 2)
	must(t, err)
	must(t, a.Sync())
	if got := string(s.object("file")); got[2] != 'c' {
		t.Errorf("after fsync of what was written through a: %q", got)
	}
	must(t, b.Sync())
	t.Logf("in the end: %q", s.object("file"))
	if got := string(s.object("file")); got != "abc3456789" {
		t.Errorf("after both: %q", got)
	}
}

// The same, and the first one's store takes longer than the second one's.
func TestAnOlderStoreDoesNotOvertakeANewerOne(t *testing.T) {
	soaking(t)
	t.Parallel()
	s := startServer(t)
	s.put("file", []byte("0123456789"))
	m := start(t, s, startEndpoint(t, s.Credentials))
	a, err := os.OpenFile(m.path("file"), os.O_RDWR, 0)
	must(t, err)
	defer a.Close()
	time.Sleep(forgotten) // rclone forgets the folder after two minutes
	_, err = os.Stat(m.path("file"))
	must(t, err)
	s.control("POST", "/fault?kind=hang&operation=put&times=1", nil)
	_, err = a.WriteAt([]byte("older"), 0)
	must(t, err)
	stored := make(chan error, 1)
	go func() { stored <- a.Sync() }()
	s.waitFor("put", 1)
	newer := make(chan error, 1)
	go func() { newer <- os.WriteFile(m.path("file"), []byte("newer"), 0o644) }()
	select {
	case err := <-newer:
		t.Logf("close of the newer: %v", err)
		newer <- err
	case <-time.After(5 * time.Second):
		t.Log("the newer waits for the older")
	}
	s.whole()
	t.Log("fsync of the older:", <-stored, "close of the newer:", <-newer)
	time.Sleep(2 * time.Second)
	if got := string(s.object("file")); got != "newer" {
		t.Errorf("in the end it is %q", got)
	}
}
