// Package s3test runs test/s3server, a real S3 server whose sessions end after
// seconds, and builds the program that serves a bucket as a filesystem.
//
// Both have modules of their own, so both are built as programs: those that
// NODE_MOUNTS_S3SERVER and NODE_MOUNTS_S3 name are used where they are set.
package s3test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Build makes the two programs in dir, and returns their paths.
func Build(dir string) (server, program string, err error) {
	server, program = os.Getenv("NODE_MOUNTS_S3SERVER"), os.Getenv("NODE_MOUNTS_S3")
	var group sync.WaitGroup
	var errs [2]error
	for i, b := range []struct {
		path   *string
		module string
	}{{&server, "test/s3server"}, {&program, "runners/s3"}} {
		if *b.path != "" {
			continue
		}
		*b.path = filepath.Join(dir, filepath.Base(b.module))
		group.Go(func() {
			build := exec.Command("go", "build", "-C", filepath.Join(root(), b.module), "-trimpath", "-ldflags", "-s -w", "-o", *b.path, ".")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("build %s: %w\n%s", b.module, err, out)
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return "", "", err
		}
	}
	return server, program, nil
}

func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../..")
}

// Credentials are what a Secret of a bucket holds.
type Credentials struct {
	AccessKeyID     string `json:"access-key-id"`
	SecretAccessKey string `json:"secret-access-key"`
	SessionToken    string `json:"session-token,omitempty"`
	Expiration      string `json:"expiration,omitempty"`
}

// Data is the Secret's.
func (c Credentials) Data() map[string][]byte {
	data := map[string][]byte{"access-key-id": []byte(c.AccessKeyID), "secret-access-key": []byte(c.SecretAccessKey)}
	if c.SessionToken != "" {
		data["session-token"] = []byte(c.SessionToken)
	}
	if c.Expiration != "" {
		data["expiration"] = []byte(c.Expiration)
	}
	return data
}

// Server is a running server.
type Server struct {
	Endpoint string
	Control  string
	Region   string
	CA       string
	// Credentials never expire.
	Credentials Credentials
	// Dir has a folder for each bucket, and in it a file for each object.
	Dir string

	t testing.TB
}

// Start runs the server's program until the test ends, with the buckets that are
// named, empty.
func Start(t testing.TB, program string, args []string, buckets ...string) *Server {
	t.Helper()
	s := &Server{t: t, Dir: t.TempDir()}
	for _, b := range buckets {
		if err := os.Mkdir(filepath.Join(s.Dir, b), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, append([]string{"--dir", s.Dir}, args...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err != nil {
		t.Fatalf("the S3 server did not start: %v", err)
	}
	return s
}

// Put makes an object.
func (s *Server) Put(bucket, key string, content []byte) {
	s.t.Helper()
	at := filepath.Join(s.Dir, bucket, key)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(at, content, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// Session makes credentials that end after ttl.
func (s *Server) Session(ttl time.Duration) Credentials {
	s.t.Helper()
	var c Credentials
	s.ask(http.MethodPost, "/sessions?ttl="+url.QueryEscape(ttl.String()), &c)
	return c
}

// Key makes credentials that never end.
func (s *Server) Key() Credentials {
	s.t.Helper()
	var c Credentials
	s.ask(http.MethodPost, "/keys", &c)
	return c
}

// Fault makes the server fail in a way, until Mend.
func (s *Server) Fault(kind string) {
	s.t.Helper()
	s.ask(http.MethodPost, "/fault?kind="+kind, nil)
}

// Mend ends a fault.
func (s *Server) Mend() {
	s.t.Helper()
	s.ask(http.MethodDelete, "/fault", nil)
}

// Stats is how many requests of each kind the server has had: "get", "list", "put" and
// more.
func (s *Server) Stats() map[string]int {
	s.t.Helper()
	counts := map[string]int{}
	s.ask(http.MethodGet, "/stats", &counts)
	return counts
}

func (s *Server) ask(method, path string, answer any) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.Control+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(body, answer)
	}
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
}
