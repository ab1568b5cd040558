package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is the runner where runVariable is set, and the tests in a mount
// namespace of their own where insideVariable is set: the S3 server's program.
const (
	runVariable    = "NODE_MOUNTS_S3_TEST_RUN"
	insideVariable = "NODE_MOUNTS_S3_TEST_SERVER"
	// Where this is set, the runner forgets what it knows of a folder within seconds.
	forgetsVariable = "NODE_MOUNTS_S3_TEST_FORGETS"
)

func TestMain(m *testing.M) {
	if os.Getenv(runVariable) != "" {
		if os.Getenv(forgetsVariable) != "" {
			dirCacheTime = time.Second
		}
		main()
		return
	}
	if os.Getenv(insideVariable) != "" {
		os.Exit(m.Run())
	}
	os.Exit(reexecute())
}

// reexecute builds the S3 server and runs the tests in their own mount namespace.
func reexecute() int {
	dir, err := os.MkdirTemp("", "node-mounts-s3-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server := filepath.Join(dir, "s3server")
	build := exec.Command("go", "build", "-C", "../../test/s3server", "-trimpath", "-o", server, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building test/s3server: %v\n%s", err, out)
		return 1
	}
	inner := exec.Command("/proc/self/exe", os.Args[1:]...)
	inner.Args[0] = os.Args[0]
	inner.Env = append(os.Environ(), insideVariable+"="+server)
	inner.Stdout, inner.Stderr = os.Stdout, os.Stderr
	// Unshareflags also makes every mount private.
	inner.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := inner.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type credentials struct {
	AccessKeyID     string `json:"access-key-id"`
	SecretAccessKey string `json:"secret-access-key"`
	SessionToken    string `json:"session-token"`
	Expiration      string `json:"expiration"`
}

// server is a running S3 server, with one empty bucket.
type server struct {
	Endpoint    string
	Control     string
	Region      string
	CA          string
	Credentials credentials
	dir         string // of the bucket
	t           testing.TB
}

const bucketName = "bucket-of-tests"

func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	root := t.TempDir()
	s := &server{t: t, dir: filepath.Join(root, bucketName)}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(os.Getenv(insideVariable), append([]string{"--dir", root}, args...)...)
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
	t.Cleanup(func() { stdin.Close(); _ = command.Wait() })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, s); err != nil {
		t.Fatal(err)
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

func (s *server) session(ttl time.Duration) credentials {
	s.t.Helper()
	var made credentials
	s.control("POST", "/sessions?ttl="+ttl.String(), &made)
	return made
}

func (s *server) fault(kind string) {
	s.t.Helper()
	s.control("POST", "/fault?kind="+kind, nil)
}

func (s *server) whole() {
	s.t.Helper()
	s.control("DELETE", "/fault", nil)
}

func (s *server) put(key string, content []byte) {
	s.t.Helper()
	name := filepath.Join(s.dir, key)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// object is what the server holds under a key.
func (s *server) object(key string) []byte {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(s.dir, key))
	if err != nil {
		s.t.Fatal(err)
	}
	return content
}

func (s *server) has(key string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, key))
	return err == nil
}

// endpoint is the Secret and whoever serves it.
type endpoint struct {
	mu     sync.Mutex
	have   credentials
	status int           // of every answer, where it is not 0
	silent chan struct{} // no answer before it is closed, where it is not nil
	given  int           // answers with what it has
	url    string
}

const endpointToken = "the-token-of-this-mount"

func startEndpoint(t testing.TB, have credentials) *endpoint {
	t.Helper()
	e := &endpoint{have: have}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.url = "http://" + l.Addr().String() + "/credentials"
	server := &http.Server{Handler: e}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	have, status, silent := e.have, e.status, e.silent
	e.mu.Unlock()
	if silent != nil {
		<-silent
	}
	switch {
	case r.Header.Get("Authorization") != endpointToken || r.URL.Path != "/credentials":
		w.WriteHeader(http.StatusForbidden)
	case status != 0:
		w.WriteHeader(status)
		fmt.Fprintln(w, `{"code":"SecretRefused","message":"the Secret is not there"}`)
	default:
		answer := map[string]string{"AccessKeyId": have.AccessKeyID, "SecretAccessKey": have.SecretAccessKey}
		if have.Expiration != "" {
			answer["Token"], answer["Expiration"] = have.SessionToken, have.Expiration
		}
		e.mu.Lock()
		if e.have == have {
			e.given++
		}
		e.mu.Unlock()
		_ = json.NewEncoder(w).Encode(answer)
	}
}

func (e *endpoint) set(have credentials) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.have, e.status, e.given = have, 0, 0
}

// answers are how often somebody was given what was set last.
func (e *endpoint) answers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.given
}

func (e *endpoint) refuse(status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status = status
}

func (e *endpoint) silence(until chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silent = until
}

// mount is a runner and its mount.
type mount struct {
	dir     string
	command *exec.Cmd
	stderr  *bytes.Buffer
	ended   chan struct{} // closed when the runner has ended
	t       testing.TB
}

const (
	runnerUID = 10001
	owner     = 1000
	group     = 100
)

// newMount makes a FUSE mount as the agent does, and returns its descriptor.
func newMount(t testing.TB, dir string) *os.File {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	context, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(context)
	for _, option := range [][2]string{
		{"source", "s3"}, {"fd", fmt.Sprint(device.Fd())}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"},
	} {
		if err := unix.FsconfigSetString(context, option[0], option[1]); err != nil {
			t.Fatal(option, err)
		}
	}
	for _, flag := range []string{"allow_other", "default_permissions"} {
		if err := unix.FsconfigSetFlag(context, flag); err != nil {
			t.Fatal(flag, err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		t.Fatal(err)
	}
	root, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return device
}

// cacheDir is a folder that the runner may write to.
func cacheDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "node-mounts-s3-cache-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, runnerUID, runnerUID); err != nil {
		t.Fatal(err)
	}
	return dir
}

// launch starts a runner.
func launch(t testing.TB, s *server, e *endpoint, args ...string) *mount {
	t.Helper()
	m := prepare(t, s, e, args...)
	m.begin()
	return m
}

// prepare makes a mount and the command of a runner as the keeper starts it: another
// user, no capability, and nothing in the environment that it may use but two variables.
func prepare(t testing.TB, s *server, e *endpoint, args ...string) *mount {
	t.Helper()
	m := &mount{t: t, dir: filepath.Join(t.TempDir(), "mnt"), stderr: &bytes.Buffer{}, ended: make(chan struct{})}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	device := newMount(t, m.dir)
	all := []string{"--fuse-fd", "3", "--region", s.Region, "--endpoint-url", s.Endpoint, "--path-style", "--uid", fmt.Sprint(owner), "--gid", fmt.Sprint(group), "--memory", fmt.Sprint(512 << 20)}
	for name, value := range map[string]string{"--bucket": bucketName, "--cache-dir": cacheDir(t)} {
		if !strings.Contains(strings.Join(args, " "), name+" ") {
			all = append(all, name, value)
		}
	}
	m.command = exec.Command(runnerProgram(), append(all, args...)...)
	m.command.Env = []string{
		runVariable + "=1", "AWS_CONTAINER_CREDENTIALS_FULL_URI=" + e.url, "AWS_CONTAINER_AUTHORIZATION_TOKEN=" + endpointToken,
		// What must not be looked at.
		"AWS_ACCESS_KEY_ID=AKIAWRONG", "AWS_SECRET_ACCESS_KEY=wrong", "AWS_CA_BUNDLE=/nothing", "AWS_REGION=eu-nowhere-1",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/nothing", "HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "ALL_PROXY=http://127.0.0.1:9",
		"RCLONE_BWLIMIT=1B", "RCLONE_S3_ENDPOINT=http://127.0.0.1:9", "RCLONE_S3_ACCESS_KEY_ID=AKIAWRONG", "RCLONE_S3_SECRET_ACCESS_KEY=wrong", "RCLONE_LOG_LEVEL=DEBUG",
	}
	m.command.ExtraFiles = []*os.File{device}
	m.command.Stderr = m.stderr
	m.command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: runnerUID, Gid: runnerUID}, Pdeathsig: syscall.SIGKILL}
	return m
}

func (m *mount) begin() {
	m.t.Helper()
	if err := m.command.Start(); err != nil {
		m.t.Fatal(err)
	}
	// Kept open, it would block the readers of a dead runner's mount instead of
	// failing them.
	m.command.ExtraFiles[0].Close()
	go func() { _ = m.command.Wait(); close(m.ended) }()
	m.t.Cleanup(func() {
		_ = m.command.Process.Kill()
		<-m.ended
		if m.t.Failed() {
			m.t.Logf("the runner said:\n%s", m.stderr)
		}
	})
}

// runnerProgram is what is run: this binary, or the one that NODE_MOUNTS_S3 names.
func runnerProgram() string {
	if program := os.Getenv("NODE_MOUNTS_S3"); program != "" {
		return program
	}
	return "/proc/self/exe"
}

// start waits until the mount answers.
func start(t testing.TB, s *server, e *endpoint, args ...string) *mount {
	t.Helper()
	m := launch(t, s, e, args...)
	if _, err := os.ReadDir(m.dir); err != nil {
		<-m.ended
		t.Fatalf("%v\n%s", err, m.stderr)
	}
	return m
}

func (m *mount) path(name string) string { return filepath.Join(m.dir, name) }

// alone has nobody start a process in the tests meanwhile: when that executes its program
// it closes its copies of all descriptors, which stores what was written to them.
func alone(do func()) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	do()
}

func (m *mount) write(name, content string) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mount) wantContent(name, want string) {
	m.t.Helper()
	got, err := os.ReadFile(m.path(name))
	if err != nil || string(got) != want {
		m.t.Errorf("%s: got %.80q, %v; want %.80q", name, got, err, want)
	}
}

func (m *mount) names(dir string) string {
	m.t.Helper()
	entries, err := os.ReadDir(m.path(dir))
	if err != nil {
		m.t.Errorf("%s: %v", dir, err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return strings.Join(names, " ")
}

// wait returns the runner's exit status.
func (m *mount) wait(limit time.Duration) int {
	m.t.Helper()
	select {
	case <-m.ended:
		return m.command.ProcessState.ExitCode()
	case <-time.After(limit):
		m.t.Fatalf("the runner still runs after %s", limit)
		return -1
	}
}

var errHangs = errors.New("it hangs")

// within fails the test where do takes longer, and waits no longer for it: the end of the
// runner, which comes with that of the test, ends every call.
func within(t testing.TB, limit time.Duration, what string, do func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- do() }()
	select {
	case err := <-result:
		return err
	case <-time.After(limit):
		t.Errorf("%s takes more than %s", what, limit)
		return errHangs
	}
}

func pattern(size int) []byte {
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(i>>16) ^ byte(i>>8) ^ byte(i)
	}
	return content
}

func readAt(f *os.File, want []byte, off int64) error {
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, off); err != nil && err != io.EOF {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("wrong content at %d", off)
	}
	return nil
}
