package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// The test binary is the server where this is set.
const serveVariable = "S3SERVER_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

type server struct {
	ready
	t     *testing.T
	dir   string
	stdin io.Closer
	wait  func() error
}

func start(t *testing.T, args ...string) *server {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "data", "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "folder", "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(os.Args[0], append([]string{"--dir", dir}, args...)...)
	command.Env = append(os.Environ(), serveVariable+"=1")
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir, stdin: stdin, wait: command.Wait}
	t.Cleanup(func() { stdin.Close() })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &s.ready); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return s
}

func (s *server) control(method, path string, answer any) {
	s.t.Helper()
	request, err := http.NewRequest(method, s.Control+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		s.t.Fatalf("%s %s: %s", method, path, response.Status)
	}
	if answer != nil {
		if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
			s.t.Fatal(err)
		}
	}
}

// client asks once, and waits for an answer to begin as long as there is a test.
func (s *server) client(c credentials) *s3.Client { return s.hasty(c, 0) }

// hasty is client for a server that does not answer: it waits so long.
func (s *server) hasty(c credentials, wait time.Duration) *s3.Client {
	transport := &http.Transport{ResponseHeaderTimeout: wait}
	if s.CA != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(s.CA))
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return s3.New(s3.Options{
		BaseEndpoint: &s.Endpoint, Region: s.Region, UsePathStyle: true, HTTPClient: &http.Client{Transport: transport},
		RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken}, nil
		}),
	})
}

func get(t *testing.T, c *s3.Client, bucket, key string) (string, error) {
	out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return "", err
	}
	defer out.Body.Close()
	content, err := io.ReadAll(out.Body)
	return string(content), err
}

func put(t *testing.T, c *s3.Client, bucket, key, content string) error {
	_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader([]byte(content))})
	return err
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Errorf("got %v, want code %s", err, code)
	}
}

func TestFilesOfTheFolderAreObjects(t *testing.T) {
	for _, args := range [][]string{nil, {"--tls"}} {
		s := start(t, args...)
		c := s.client(s.Credentials)
		if content, err := get(t, c, "data", "folder/file"); err != nil || content != "content" {
			t.Errorf("%v: got %q, %v", args, content, err)
		}
		if err := put(t, c, "data", "new/it's 100% \"é\"", "written"); err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(filepath.Join(s.dir, "data", "new", "it's 100% \"é\"")); err != nil || string(content) != "written" {
			t.Errorf("%v: got %q, %v", args, content, err)
		}
	}
}

func TestASessionEndsWhenItSays(t *testing.T) {
	s := start(t)
	var made credentials
	s.control("POST", "/sessions?ttl=2s", &made)
	ends, err := time.Parse(time.RFC3339, made.Expiration)
	if err != nil || made.SessionToken == "" {
		t.Fatalf("a session without token or expiration: %v", err)
	}
	c := s.client(made)
	for {
		asked := time.Now()
		_, err := get(t, c, "data", "folder/file")
		if err == nil && asked.Before(ends.Add(time.Second)) {
			continue
		}
		wantCode(t, err, "ExpiredToken")
		if time.Now().Before(ends) {
			t.Error("refused before its end")
		}
		break
	}
	made.SessionToken = ""
	_, err = get(t, s.client(made), "data", "folder/file")
	wantCode(t, err, "InvalidToken")
}

func TestKeysAreScopedAndRevoked(t *testing.T) {
	s := start(t)
	if err := os.Mkdir(filepath.Join(s.dir, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	var key credentials
	s.control("POST", "/keys?bucket=data&mode=ro", &key)
	if key.SessionToken != "" || key.Expiration != "" {
		t.Error("a permanent key has a token or an end")
	}
	c := s.client(key)
	if _, err := get(t, c, "data", "folder/file"); err != nil {
		t.Error(err)
	}
	wantCode(t, put(t, c, "data", "file", "x"), "AccessDenied")
	_, err := get(t, c, "other", "file")
	wantCode(t, err, "AccessDenied")
	s.control("DELETE", "/keys/"+key.AccessKeyID, nil)
	_, err = get(t, c, "data", "folder/file")
	wantCode(t, err, "InvalidAccessKeyId")
	var counts map[string]int
	s.control("GET", "/stats", &counts)
	if counts["get"] != 3 || counts["put"] != 1 || counts["refused"] != 3 {
		t.Errorf("got %v", counts)
	}
}

func TestFaultsBeginAndEnd(t *testing.T) {
	s := start(t)
	c, hasty := s.client(s.Credentials), s.hasty(s.Credentials, time.Second)
	for _, kind := range []string{"unavailable", "hang", "stall", "refuse"} {
		s.control("POST", "/fault?kind="+kind, nil)
		if _, err := get(t, hasty, "data", "folder/file"); err == nil {
			t.Errorf("%s: an answer", kind)
		}
		s.control("DELETE", "/fault", nil)
		if _, err := get(t, c, "data", "folder/file"); err != nil {
			t.Errorf("%s has ended: %v", kind, err)
		}
	}
	s.control("POST", "/fault?kind=unavailable&operation=put&times=1", nil)
	if _, err := get(t, c, "data", "folder/file"); err != nil {
		t.Errorf("a fault of put: %v", err)
	}
	wantCode(t, put(t, c, "data", "file", "x"), "SlowDown")
	if err := put(t, c, "data", "file", "x"); err != nil {
		t.Errorf("a fault of one time: %v", err)
	}
}

func TestItEndsWithItsInput(t *testing.T) {
	s := start(t)
	s.stdin.Close()
	ended := make(chan error, 1)
	go func() { ended <- s.wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it still runs")
	}
}
