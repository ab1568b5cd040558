package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// longOutage is more than rclone goes on trying to fetch what is missing of a file.
const longOutage = 40 * time.Second

// forgotten is more than the time after which a forgetful runner knows nothing of a folder.
const forgotten = 5 * time.Second

// startForgetful starts a runner that forgets what it knows of a folder within seconds.
func startForgetful(t *testing.T, s *server) *mount {
	t.Helper()
	m := prepare(t, s, startEndpoint(t, s.Credentials))
	m.command.Env = append(m.command.Env, forgetsVariable+"=1")
	m.begin()
	m.names("") // it answers
	return m
}

// openToWrite opens a file that is there.
func (m *mount) openToWrite(name string) *os.File {
	m.t.Helper()
	f, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
	must(m.t, err)
	m.t.Cleanup(func() { _ = f.Close() })
	return f
}

func writeAt(t *testing.T, f *os.File, text string, off int64) {
	t.Helper()
	_, err := f.WriteAt([]byte(text), off)
	must(t, err)
}

// What was written to a file of which a part is still to be fetched is not lost when the
// server is away at the first fsync.
func TestAPartlyFetchedFileIsStoredAfterAnOutage(t *testing.T) {
	for _, kind := range []string{"unavailable", "refuse"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			want := pattern(4 << 20)
			s.put("big", want)
			m := start(t, s, startEndpoint(t, s.Credentials))
			f := m.openToWrite("big")
			copy(want[10:], "new")
			alone(func() {
				writeAt(t, f, "new", 10)
				s.fault(kind)
			})
			if err := f.Sync(); err == nil {
				t.Fatal("fsync without a server worked")
			}
			<-time.After(longOutage)
			s.whole()
			eventually(t, "fsync works again", f.Sync, nil)
			if got := s.object("big"); !bytes.Equal(got, want) {
				t.Errorf("fsync returned 0, and the object has %d bytes, at 10 %q", len(got), got[10:13])
			}
		})
	}
}

// The server is away for some seconds when the grant is revoked, and comes back within the
// time that there is.
func TestTheEndWaitsForAServerThatComesBack(t *testing.T) {
	for _, kind := range []string{"unavailable", "hang", "refuse"} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, known: %t", kind, known), func(t *testing.T) {
				t.Parallel()
				s, m := whole(t)
				m.write("other", "x")
				unclosed, err := os.Create(m.path("unclosed"))
				must(t, err)
				defer unclosed.Close()
				alone(func() {
					writeAt(t, unclosed, "written, not closed", 0)
					s.fault(kind)
				})
				if known { // the agent asks so
					eventually(t, "the mount says that the server is away", func() error {
						var is syscall.Statfs_t
						if syscall.Statfs(m.dir, &is) == nil {
							return fmt.Errorf("statfs works")
						}
						return nil
					}, nil)
				}
				must(t, m.command.Process.Signal(syscall.SIGTERM))
				<-time.After(3 * time.Second)
				s.whole()
				if status := m.wait(endTimeout + patience); status != 0 {
					t.Errorf("exit status %d", status)
				}
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
	const rounds = 1000
	for i := range rounds {
		content := fmt.Sprint("content ", i)
		if err := os.WriteFile(m.path("file"), []byte(content), 0o644); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if got := string(s.object("file")); got != content {
			t.Fatalf("round %d: the object is %q", i, got)
		}
	}
	s.control("GET", "/stats", &after)
	if stored := after["put"] - before["put"]; stored != rounds {
		t.Errorf("stored %d times: an object was something in between", stored)
	}
}

// A file is open for longer than its folder is known, and another program opens it.
func TestAnFsyncStoresWhateverElseIsOpen(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.put("file", []byte("0123456789"))
	m := startForgetful(t, s)
	a := m.openToWrite("file")
	writeAt(t, a, "a", 0)
	must(t, a.Sync())
	<-time.After(forgotten)
	b := m.openToWrite("file")
	writeAt(t, b, "b", 1)
	writeAt(t, a, "c", 2)
	must(t, a.Sync())
	if got := string(s.object("file")); got[2] != 'c' {
		t.Errorf("after fsync of what was written through the first: %q", got)
	}
	must(t, b.Sync())
	if got := string(s.object("file")); got != "abc3456789" {
		t.Errorf("after fsync of both: %q", got)
	}
}

// The same, and the first one's store takes longer than the second one's.
func TestAnOlderStoreDoesNotOvertakeANewerOne(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.put("file", []byte("0123456789"))
	m := startForgetful(t, s)
	a := m.openToWrite("file")
	<-time.After(forgotten)
	_, err := os.Stat(m.path("file"))
	must(t, err)
	s.control("POST", "/fault?kind=hang&operation=put&times=1", nil)
	writeAt(t, a, "older", 0)
	older, newer := make(chan error, 1), make(chan error, 1)
	go func() { older <- a.Sync() }()
	s.waitFor("put", 1)
	go func() { newer <- os.WriteFile(m.path("file"), []byte("newer"), 0o644) }()
	select {
	case err := <-newer:
		t.Errorf("the newer did not wait for the older: %v", err)
		newer <- err
	case <-time.After(3 * time.Second):
	}
	s.whole()
	if err := <-older; err != nil {
		t.Errorf("fsync of the older: %v", err)
	}
	if err := <-newer; err != nil {
		t.Errorf("close of the newer: %v", err)
	}
	if got := string(s.object("file")); got != "newer" {
		t.Errorf("in the end it is %q", got)
	}
}
