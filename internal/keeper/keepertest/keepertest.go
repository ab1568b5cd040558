// Package keepertest runs a keeper for tests: a process of its own, which a test may
// kill and start again.
package keepertest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/keeper"
)

// folderEnv makes the test binary a keeper in this folder.
const folderEnv = "KEEPERTEST_FOLDER"

// Main runs the parts that a test binary plays for this package, and exits then. Call
// it first in TestMain.
func Main() {
	if code, ours := keeper.Main(os.Args); ours {
		os.Exit(code)
	}
	if dir := os.Getenv(folderEnv); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, "a keeper:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func serve(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := keeper.Listen(filepath.Join(dir, "socket", socketName))
	if err != nil {
		return err
	}
	output := keeper.NewOutput(os.Stderr)
	s := keeper.Server{
		Version: "test", Grace: 5 * time.Second, CacheRoot: filepath.Join(dir, "cache"), Output: output,
		Log: slog.New(slog.NewTextHandler(output, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	return s.Serve(ctx, l)
}

const socketName = "keeper.sock"

// Process is a running keeper.
type Process struct {
	t     testing.TB
	dir   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts a keeper. It ends with the test.
func Start(t testing.TB) *Process {
	t.Helper()
	dir, err := os.MkdirTemp("", "keeper")
	if err != nil {
		t.Fatal(err)
	}
	// Its children walk to their caches.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	k := &Process{t: t, dir: dir}
	k.Start()
	t.Cleanup(func() {
		k.Kill()
		_ = os.RemoveAll(dir)
	})
	return k
}

// Start starts it again.
func (k *Process) Start() {
	k.t.Helper()
	for _, name := range []string{"socket", "cache"} {
		if err := os.MkdirAll(filepath.Join(k.dir, name), 0o755); err != nil {
			k.t.Fatal(err)
		}
	}
	k.cmd = exec.Command("/proc/self/exe")
	k.cmd.Env = append(os.Environ(), folderEnv+"="+k.dir)
	k.cmd.Stderr = os.Stderr
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	started := make(chan error)
	k.ended = make(chan struct{})
	go func() {
		// The death signal is tied to the thread that forks (prctl(2)).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := k.cmd.Start()
		started <- err
		if err == nil {
			_, _ = io.Copy(io.Discard, out) // to the keeper's end
			_ = k.cmd.Wait()
		}
		close(k.ended)
	}()
	if err := <-started; err != nil {
		k.t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for {
		if _, err := k.Client().Info(k.t.Context()); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			k.t.Fatal("the keeper does not answer")
		}
	}
}

// Kill ends the keeper, and with it its children.
func (k *Process) Kill() {
	_ = k.cmd.Process.Kill()
	<-k.ended
}

// Socket is the path of its socket.
func (k *Process) Socket() string { return filepath.Join(k.dir, "socket", socketName) }

// Client asks it.
func (k *Process) Client() *keeper.Client {
	return &keeper.Client{Dial: keeper.DialSocket(k.Socket()), Timeout: 10 * time.Second}
}

// Children are those that run.
func (k *Process) Children() []keeper.Child {
	k.t.Helper()
	_, all, err := k.Client().List(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	var running []keeper.Child
	for _, c := range all {
		if c.Ended == nil {
			running = append(running, c)
		}
	}
	return running
}

// PID is that of the process that serves a mount: of the keeper's children the one
// that has the child's uid, which is its own, and does not remove a cache.
func (k *Process) PID(use string) int {
	k.t.Helper()
	uid := -1
	for _, c := range k.Children() {
		if c.Use == use {
			uid = c.UID
		}
	}
	found, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		k.t.Fatal(err)
	}
	for _, status := range found {
		b, err := os.ReadFile(status)
		if err != nil || !strings.Contains(string(b), fmt.Sprintf("\nPPid:\t%d\n", k.cmd.Process.Pid)) || !strings.Contains(string(b), fmt.Sprintf("\nUid:\t%d\t", uid)) {
			continue
		}
		dir := filepath.Dir(status)
		if args, err := os.ReadFile(filepath.Join(dir, "cmdline")); err != nil || strings.HasPrefix(string(args), "node-mounts-keeper") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			k.t.Fatal(err)
		}
		return pid
	}
	k.t.Fatalf("no process serves %s", use)
	return 0
}
