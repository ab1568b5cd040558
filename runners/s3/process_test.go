package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWhatIsClosedIsStoredBeforeTheRunnerCanDie(t *testing.T) {
	s := startServer(t)
	e := startEndpoint(t, s.Credentials)
	content := pattern(12 << 20)
	for range 3 {
		m := start(t, s, e)
		must(t, os.WriteFile(m.path("file"), content, 0o644))
		must(t, m.command.Process.Kill())
		<-m.ended
		if !bytes.Equal(s.object("file"), content) {
			t.Fatal("close(2) returned before the object was stored")
		}
		must(t, os.Remove(filepath.Join(s.dir, "file")))
		if _, err := os.ReadDir(m.dir); err == nil {
			t.Error("a dead runner's mount answers")
		}
	}
}

func TestSIGTERMFinishesWhatIsBeingStored(t *testing.T) {
	s, m := whole(t)
	s.control("POST", "/fault?kind=hang&operation=put", nil)
	closed := make(chan error, 1)
	go func() { closed <- os.WriteFile(m.path("file"), []byte("content"), 0o644) }()
	s.waitFor("put", 1)
	unclosed, err := os.Create(m.path("unclosed"))
	must(t, err)
	_, err = unclosed.WriteString("written, not closed")
	must(t, err)
	must(t, m.command.Process.Signal(syscall.SIGTERM))
	select {
	case <-m.ended:
		t.Fatal("it ended while an object was being stored")
	case <-time.After(300 * time.Millisecond):
	}
	s.whole()
	if status := m.wait(patience); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if string(s.object("file")) != "content" || string(s.object("unclosed")) != "written, not closed" {
		t.Error("an object is not what was written")
	}
}

func TestWhatCouldNotBeStoredAtTheEndIsSaid(t *testing.T) {
	t.Parallel()
	s, m := whole(t)
	m.write("closed", "stored")
	unclosed, err := os.Create(m.path("unclosed"))
	must(t, err)
	defer unclosed.Close()
	alone(func() {
		writeAt(t, unclosed, "written, not closed", 0)
		s.control("POST", "/fault?kind=unavailable&operation=put", nil)
	})
	must(t, m.command.Process.Signal(syscall.SIGTERM))
	if status := m.wait(endTimeout + patience); status != exitNotStored {
		t.Errorf("exit status %d, want %d", status, exitNotStored)
	}
	if said := m.stderr.String(); !strings.Contains(said, "error: 1 file could not be stored") {
		t.Errorf("it said %q", said)
	}
	if s.has("unclosed") {
		t.Error("what could not be stored is there")
	}
}

// waitFor waits until the server was asked for an operation that often.
func (s *server) waitFor(operation string, times int) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var counts map[string]int
		s.control("GET", "/stats", &counts)
		if counts[operation] >= times {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the server was asked %v", counts)
		}
	}
}

func TestUnmountingEndsTheRunner(t *testing.T) {
	_, m := whole(t)
	m.write("file", "x")
	must(t, unix.Unmount(m.dir, 0))
	if status := m.wait(patience); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// On a root that has nothing but the program, the cache and /dev/null, and is read-only.
func TestItNeedsNothingButItsDescriptors(t *testing.T) {
	s := startServer(t)
	root := t.TempDir()
	for dir := root; dir != os.TempDir(); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	program, err := os.ReadFile(runnerProgram())
	must(t, err)
	must(t, os.WriteFile(filepath.Join(root, "program"), program, 0o755))
	must(t, os.Mkdir(filepath.Join(root, "cache"), 0o700))
	must(t, os.Chown(filepath.Join(root, "cache"), runnerUID, runnerUID))
	must(t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	null := filepath.Join(root, "dev", "null")
	must(t, os.WriteFile(null, nil, 0o644))
	cache := filepath.Join(root, "cache")
	for _, bind := range [][2]string{{root, root}, {cache, cache}, {"/dev/null", null}} {
		must(t, unix.Mount(bind[0], bind[1], "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(bind[1], unix.MNT_DETACH) })
	}
	must(t, unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))

	m := prepare(t, s, startEndpoint(t, s.Credentials), "--cache-dir", "/cache")
	m.command.Path, m.command.Dir = "/program", "/"
	m.command.SysProcAttr.Chroot = root
	m.begin()
	m.write("file", "x")
	m.wantContent("file", "x")
	status, err := os.ReadFile("/proc/" + strconv.Itoa(m.command.Process.Pid) + "/status")
	must(t, err)
	for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "Uid:\t10001\t10001\t10001\t10001"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("its status has no %q", line)
		}
	}
}

func TestItStopsWhereItCannotServe(t *testing.T) {
	s := startServer(t)
	secure := startServer(t, "--tls")
	elsewhere := startServer(t, "--region", "eu-north-1")
	whole := startEndpoint(t, s.Credentials)
	var revoked credentials
	s.control("POST", "/keys", &revoked)
	s.control("DELETE", "/keys/"+revoked.AccessKeyID, nil)
	refusing := startEndpoint(t, s.Credentials)
	refusing.refuse(404)
	for _, c := range []struct {
		name     string
		server   *server
		endpoint *endpoint
		args     []string
		status   int
		words    string
	}{
		{"a missing bucket", s, whole, []string{"--bucket", "another-bucket"}, exitBucketWrong, "has no bucket another-bucket"},
		{"another region", elsewhere, startEndpoint(t, elsewhere.Credentials), []string{"--region", "us-east-1"}, exitBucketWrong, "is in region eu-north-1, not in us-east-1"},
		{"an expired session", s, startEndpoint(t, s.session(-time.Minute)), nil, exitCredentialRefused, "expired"},
		{"a revoked key", s, startEndpoint(t, revoked), nil, exitCredentialRefused, "InvalidAccessKeyId"},
		{"a wrong key", s, startEndpoint(t, credentials{AccessKeyID: s.Credentials.AccessKeyID, SecretAccessKey: "wrong"}), nil, exitCredentialRefused, "SignatureDoesNotMatch"},
		{"no Secret", s, refusing, nil, exitCredentialRefused, "the Secret is not there"},
		{"nobody there", s, whole, []string{"--endpoint-url", "http://127.0.0.1:9"}, exitFailed, "connection refused"},
		{"an unknown authority", secure, startEndpoint(t, secure.Credentials), nil, exitFailed, "certificate"},
		{"no such cache", s, whole, []string{"--cache-dir", "/proc/nothing"}, exitFailed, "cannot be written"},
		{"no region", s, whole, []string{"--region", ""}, exitUsage, "--region is missing"},
		{"a prefix that leaves", s, whole, []string{"--prefix", "a/../b"}, exitBucketWrong, "prefix"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := launch(t, c.server, c.endpoint, c.args...)
			if status := m.wait(patience); status != c.status {
				t.Errorf("exit status %d, want %d", status, c.status)
			}
			lines := strings.Split(strings.TrimSpace(m.stderr.String()), "\n")
			last := lines[len(lines)-1]
			if !strings.HasPrefix(last, "error: ") || !strings.Contains(last, c.words) {
				t.Errorf("it said %q, want %q in it", last, c.words)
			}
			for _, secret := range []string{c.endpoint.have.SecretAccessKey, c.endpoint.have.SessionToken, endpointToken} {
				if secret != "" && secret != "wrong" && strings.Contains(m.stderr.String(), secret) {
					t.Error("it said a secret")
				}
			}
			if _, err := os.ReadDir(m.dir); err == nil {
				t.Error("the mount answers")
			}
		})
	}
}

func TestAPrivateAuthority(t *testing.T) {
	s := startServer(t, "--tls")
	authority := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(authority, []byte(s.CA), 0o644))
	for dir := filepath.Dir(authority); dir != "/tmp"; dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	m := start(t, s, startEndpoint(t, s.Credentials), "--ca-file", authority)
	content := pattern(9 << 20)
	must(t, os.WriteFile(m.path("file"), content, 0o644))
	if !bytes.Equal(s.object("file"), content) {
		t.Error("the object is not what was written")
	}
}

func TestABucketThatGoesIsNoEmptyFolder(t *testing.T) {
	s := startServer(t)
	s.put("dir/file", []byte("x"))
	m := start(t, s, startEndpoint(t, s.Credentials))
	must(t, os.Rename(s.dir, s.dir+"-gone"))
	if entries, err := os.ReadDir(m.path("dir")); err == nil {
		t.Errorf("got %v", entries)
	} else if !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestFilesThatWereStoredBeforeTheTimeWasUpAreNotCountedAsLost(t *testing.T) {
	for _, test := range []struct {
		results []syscall.Errno
		timeUp  bool
		says    string
	}{
		{results: []syscall.Errno{0, 0, 0}},
		{results: []syscall.Errno{0, syscall.EIO, 0}, says: "1 file could not be stored"},
		{results: []syscall.Errno{0, syscall.EIO}, timeUp: true, says: "2 files could not be stored in 20s"},
		{timeUp: true, says: "3 files could not be stored in 20s"},
	} {
		results, deadline := make(chan syscall.Errno), make(chan time.Time)
		go func() {
			for _, errno := range test.results {
				results <- errno
			}
			if test.timeUp {
				close(deadline)
			}
		}()
		says := ""
		if err := allStored(3, results, deadline); err != nil {
			says = err.Error()
		}
		if says != test.says {
			t.Errorf("%v, time up: %t: %q, want %q", test.results, test.timeUp, says, test.says)
		}
	}
}
