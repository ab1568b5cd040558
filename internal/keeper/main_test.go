package keeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/keeper/keepertest"
	"github.com/datalayer/node-mounts/test/textlog"
)

// patience is how long a test waits for what takes milliseconds.
const patience = time.Minute

func TestMain(m *testing.M) {
	if len(os.Args[0]) > 0 && os.Args[0] != roleChild {
		if os.Args[0] == keeper.ConfinedName {
			// A heap that is collected at any moment: what nothing refers to is gone.
			go func() {
				for {
					runtime.GC()
				}
			}()
		}
		if code, ours := keeper.Main(os.Args); ours {
			os.Exit(code)
		}
		keepertest.Main()
		if path := os.Getenv(strangerVariable); path != "" {
			os.Exit(stranger(path))
		}
		os.Exit(m.Run())
	}
	os.Exit(child(os.Args[1:]))
}

// roleChild is the name under which this program is a child of the keeper.
const roleChild = "child"

// saw is what a child finds out about itself.
type saw struct {
	Args, Env []string
	Files     map[int]string // the descriptors that are open, and what is read from 4 on
	Status    map[string]string
	Session   bool
	Dir       string
	Core      uint64
	Umask     int
	OOM       string
}

// child does what its arguments say. Descriptor 3 is where it tells of itself.
func child(args []string) int {
	tell := func(v any) {
		b, err := json.Marshal(v)
		if err == nil {
			_, err = unix.Write(3, append(b, '\n'))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(90)
		}
	}
	signals := make(chan os.Signal, 1)
	switch args[0] {
	case "look":
		tell(look())
	case "exit":
		fmt.Fprint(os.Stdout, args[2])
		code, _ := strconv.Atoi(args[1])
		return code
	case "wait":
		signal.Notify(signals, unix.SIGTERM)
		tell(unix.Getpid())
		<-signals
		fmt.Fprintln(os.Stderr, "stopped in order")
		return 7
	case "stubborn":
		signal.Notify(signals, unix.SIGTERM)
		tell(unix.Getpid())
		for {
			<-signals
		}
	case "eat":
		n, _ := strconv.Atoi(args[1])
		b := make([]byte, n)
		for i := range b {
			b[i] = 1
		}
		signal.Notify(signals, unix.SIGTERM)
		tell(unix.Getpid())
		<-signals
		runtime.KeepAlive(b)
	case "talk":
		for range 20000 {
			fmt.Println(strings.Repeat("talk ", 100))
		}
		fmt.Print("the last word")
	case "parent":
		// A helper that has a session of its own when asked to, and holds the output.
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{roleChild, "stubborn"}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.ExtraFiles = []*os.File{os.NewFile(3, "tell")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: len(args) > 1}
		if err := cmd.Start(); err != nil {
			fmt.Println(err)
			return 91
		}
		signal.Notify(signals, unix.SIGTERM)
		<-signals
		fmt.Print("goodbye")
	case "cache":
		dir := args[1]
		info, err := os.Stat(dir)
		if err == nil {
			err = errors.Join(os.MkdirAll(dir+"/a/b", 0o700), os.WriteFile(dir+"/a/b/f", []byte("x"), 0o400),
				os.Symlink("/etc", dir+"/link"), os.Chmod(dir+"/a/b", 0), os.Chmod(dir+"/a", 0))
		}
		if err != nil {
			fmt.Println(err)
			return 92
		}
		signal.Notify(signals, unix.SIGTERM)
		tell(info.Mode().String())
		<-signals
	}
	return 0
}

func look() saw {
	environ, _ := os.ReadFile("/proc/self/environ") // os.Environ leaves out what is there twice
	s := saw{Args: os.Args, Env: strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00"), Files: map[int]string{}, Status: map[string]string{}}
	var dirs [512]bool
	for fd := range dirs {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			s.Files[fd] = ""
			if fd > 3 {
				b, _ := io.ReadAll(os.NewFile(uintptr(fd), "given"))
				s.Files[fd] = string(b)
			}
		}
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.SplitSeq(string(status), "\n") {
		name, value, _ := strings.Cut(line, ":")
		s.Status[name] = strings.TrimSpace(value)
	}
	sid, _ := unix.Getsid(0)
	s.Session = sid == os.Getpid()
	s.Dir, _ = os.Getwd()
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_CORE, &limit)
	s.Core = limit.Max
	s.Umask = unix.Umask(0)
	oom, _ := os.ReadFile("/proc/self/oom_score_adj")
	s.OOM = strings.TrimSpace(string(oom))
	return s
}

// world is a keeper in this process, and its client.
type world struct {
	*keeper.Client
	t      *testing.T
	dir    string
	socket string
	caches string
	log    *textlog.Log
	most   int    // children; 0: as many as a keeper allows
	stop   func() // ends the keeper and waits for it
}

// shortDir is a folder that every user can walk, with a path that fits an address.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := shortDir(t)
	w := &world{t: t, dir: dir, socket: dir + "/s/keeper.sock", caches: dir + "/caches", log: &textlog.Log{}}
	if err := os.Mkdir(w.caches, 0o777); err != nil {
		t.Fatal(err)
	}
	w.serve(20 * time.Second)
	return w
}

// serve starts the world's keeper.
func (w *world) serve(grace time.Duration) {
	w.t.Helper()
	l, err := keeper.Listen(w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	output := keeper.NewOutput(w.log)
	server := keeper.Server{
		Version: "v-test", CacheRoot: w.caches, Grace: grace, MaxChildren: w.most,
		Log: slog.New(slog.NewJSONHandler(output, &slog.HandlerOptions{Level: slog.LevelDebug})), Output: output,
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Error(err)
			}
		case <-time.After(patience):
			w.t.Error("the keeper does not end")
		}
		output.Close(patience)
	})
	w.t.Cleanup(func() {
		w.stop()
		if w.t.Failed() {
			w.t.Logf("the keeper's log:\n%.20000s", w.log)
		}
	})
	w.Client = &keeper.Client{Dial: keeper.DialSocket(w.socket), Timeout: patience}
}

// program is this program, as a descriptor.
func program(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// kid is a child and what it tells.
type kid struct {
	keeper.Child
	pidfd *os.File
	tells *json.Decoder
}

// ada is who children are here.
const ada, users = 12345, 12100

// start starts a child that does what args say.
func (w *world) start(change func(*keeper.Start), args ...string) *kid {
	w.t.Helper()
	k, err := w.tryStart(change, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) tryStart(change func(*keeper.Start), args ...string) (*kid, error) {
	w.t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { read.Close() })
	defer write.Close()
	s := keeper.Start{
		Use: "pod/target", Args: append([]string{roleChild}, args...), UID: ada, GID: users,
		Program: program(w.t), Files: []*os.File{write},
	}
	if change != nil {
		change(&s)
	}
	_, c, pidfd, err := w.Start(w.t.Context(), s)
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(func() { pidfd.Close() })
	return &kid{c, pidfd, json.NewDecoder(read)}, nil
}

// hear reads what the child tells next.
func hear[T any](t *testing.T, k *kid) (v T) {
	t.Helper()
	if err := k.tells.Decode(&v); err != nil {
		t.Fatalf("the child tells nothing: %v", err)
	}
	return v
}

// waitFor waits for the end of a child by its pidfd, and returns its exit.
func (w *world) waitFor(k *kid) keeper.Exit {
	w.t.Helper()
	waitReadable(w.t, k.pidfd)
	c, err := w.Child(w.t.Context(), k.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	if c.Ended == nil {
		w.t.Fatalf("the pidfd says that %v has ended, the keeper does not", c)
	}
	return *c.Ended
}

func waitReadable(t *testing.T, f *os.File) {
	t.Helper()
	if err := f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatalf("nobody can wait for the pidfd: %v", err)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Read(func(fd uintptr) bool { return polls(int(fd)) }); err != nil {
		t.Fatalf("the child does not end: %v", err)
	}
}

// polls tells whether a descriptor polls readable.
func polls(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 1
		}
	}
}

func polled(t *testing.T, f *os.File) (is bool) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { is = polls(int(fd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// eventually waits for a condition that another process brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	late := time.After(patience)
	for !holds() {
		select {
		case <-ticker.C:
		case <-late:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// processesOf are the processes of a user, and zombies that are left to this process.
func processesOf(uid int) (found []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		status, err := os.ReadFile(dir + "/status")
		foreign := strings.Contains(string(status), "\nState:\tZ") && !strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid()))
		if err == nil && !foreign && strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", uid)) {
			cmdline, _ := os.ReadFile(dir + "/cmdline")
			found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	slices.Sort(all)
	return all
}
