package main

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (m *mount) statfs() error { return statfs(m.dir) }

func statfs(name string) error {
	var is unix.Statfs_t
	if err := unix.Statfs(name, &is); err != nil {
		return err
	}
	if is.Blocks == 0 || is.Bavail != is.Blocks {
		return errors.New("there is no room")
	}
	return nil
}

// until asks statfs until it answers so.
func (m *mount) until(want error, limit time.Duration) {
	m.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := within(m.t, 2*healthTimeout, "statfs", m.statfs)
		if errors.Is(err, want) {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("statfs: got %v after %s, want %v", err, limit, want)
		}
	}
}

func (s *server) requests() (sum int) {
	s.t.Helper()
	var counts map[string]int
	s.control("GET", "/stats", &counts)
	for _, n := range counts {
		sum += n
	}
	return sum
}

func TestStatfsSaysWhetherTheServerAnswers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	e := startEndpoint(t, s.Credentials)
	m := start(t, s, e)
	must(t, m.statfs())
	m.write("file", "x")
	must(t, statfs(m.path("file")))
	before, began := s.requests(), time.Now()
	for range 1000 {
		must(t, m.statfs())
		_, err := os.Stat(m.dir)
		must(t, err)
	}
	took := time.Since(began)
	if got, most := s.requests()-before, 1+int(took/goodFor); got > most {
		t.Errorf("1000 calls of statfs and stat were %d requests in %s, at most %d are wanted", got, took, most)
	}
	for _, kind := range []string{"refuse", "hang", "unavailable"} {
		s.fault(kind)
		m.until(syscall.EIO, 3*goodFor)
		must(t, within(t, healthTimeout, "stat of the root", func() error { _, err := os.Stat(m.dir); return err }))
		if err := m.statfs(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: got %v", kind, err)
		}
		s.whole()
		m.until(nil, 3*goodFor)
	}
	must(t, os.Rename(s.dir, s.dir+"-gone"))
	m.until(syscall.EIO, 3*goodFor)
	must(t, os.Rename(s.dir+"-gone", s.dir))
	m.until(nil, 3*goodFor)
	e.refuse(404)
	m.until(syscall.EIO, 3*goodFor)
	e.set(s.Credentials)
	m.until(nil, 3*goodFor)
}

func TestNoNameOfAFileIsSaid(t *testing.T) {
	const name = "name-of-a-tenant"
	for _, kind := range []string{"refuse", "unavailable"} {
		s := startServer(t)
		s.put(name+"/"+name, []byte("x"))
		m := start(t, s, startEndpoint(t, s.Credentials))
		if got := m.names(name); got != name {
			t.Fatalf("got %q", got)
		}
		f, err := os.Create(m.path(name + "/new-" + name))
		must(t, err)
		_, err = f.WriteString("content")
		must(t, err)
		s.fault(kind)
		if err := f.Close(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: close: got %v", kind, err)
		}
		must(t, m.command.Process.Kill())
		<-m.ended
		if said := m.stderr.String(); !strings.Contains(said, "store failed: ") || strings.Contains(said, name) || strings.Contains(said, "another kind") {
			t.Errorf("%s: it said %q", kind, said)
		}
	}
}

func TestErrorsAreSaidWithoutNames(t *testing.T) {
	const name = "name-of-a-tenant"
	for _, err := range []error{
		errors.New(name),
		errors.Join(errors.New(name), &os.PathError{Op: "open", Path: name, Err: syscall.EACCES}),
		&os.PathError{Op: "open", Path: name, Err: errors.New(name)},
	} {
		if said := nameless(err); said == "" || strings.Contains(said, name) {
			t.Errorf("%v: it says %q", err, said)
		}
	}
}
