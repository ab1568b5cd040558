package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper/keepertest"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// folderEnv makes the test binary, run by a keeper, a filesystem that shows this
// folder.
const folderEnv = "AGENT_TEST_FOLDER"

// silentName is a file in whose folder a filesystem starts and answers nothing.
const silentName = ".silent"

// runFolder serves a folder on descriptor 3, as a filesystem's process does.
func runFolder(dir string) error {
	switch filepath.Base(dir) {
	case "wrong":
		fmt.Fprintln(os.Stderr, "error: there is no such bucket")
		os.Exit(3)
	case "refused":
		fmt.Fprintln(os.Stderr, "error: the key was refused")
		os.Exit(4)
	}
	if _, err := os.Lstat(filepath.Join(dir, silentName)); err == nil {
		for {
			_, _ = unix.Poll(nil, -1)
		}
	}
	root, err := newShown(dir)
	if err != nil {
		return err
	}
	zero := time.Duration(0)
	server, err := fs.Mount("/dev/fd/3", root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero, MountOptions: fuse.MountOptions{DisableXAttrs: true},
	})
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	gone := make(chan struct{})
	go func() { server.Wait(); close(gone) }()
	select {
	case <-signals:
	case <-gone:
	}
	if _, err := os.Lstat(filepath.Join(dir, unstorableName)); err == nil {
		fmt.Fprintln(os.Stderr, "error: 2 files could not be stored")
		os.Exit(5)
	}
	return nil
}

// unstorableName is a file in whose folder a filesystem ends without having stored
// everything.
const unstorableName = ".unstorable"

// downName is a file in whose folder a filesystem answers, and its server does not.
const downName = ".down"

// shown is the root of a folder that is served.
type shown struct{ fs.LoopbackNode }

func newShown(dir string) (*shown, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	root := &shown{}
	root.RootData = &fs.LoopbackRoot{Path: dir, Dev: st.Dev, RootNode: root}
	return root, nil
}

// Statfs asks the server, as a filesystem's process is to.
func (s *shown) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	if _, err := os.Lstat(filepath.Join(s.RootData.Path, downName)); err == nil {
		return syscall.EHOSTUNREACH
	}
	return s.LoopbackNode.Statfs(ctx, out)
}

// folders runs the filesystems of the tests: a bucket is a folder beneath root.
type folders struct {
	root string
	// mu guards what follows: processes are started beside the passes.
	mu sync.Mutex
	// tell has what the runner was given, by token.
	tell map[string]func(error)
	ends int
}

func (f *folders) tells(token string, tell func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tell[token] = tell
}

func (f *folders) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ends++
}

// ended is how many processes have ended, or were never started.
func (f *folders) ended() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ends
}

func (f *folders) Prepare(_ context.Context, m plan.Mount, _ delivery.Credential, at delivery.Place, tell func(error)) (*delivery.Run, error) {
	if m.Source() == "unprepared" {
		return nil, &secret.RefusedError{Reason: "the Secret has no key"}
	}
	if at.Cache == "" {
		return nil, errors.New("there is no cache")
	}
	f.tells(m.Target(), tell)
	return &delivery.Run{
		Name: "test", Program: "/proc/self/exe", Args: []string{"folder"}, Env: []string{folderEnv + "=" + filepath.Join(f.root, m.Source())},
		Note: []byte(m.Target()), End: f.end,
	}, nil
}

func (f *folders) Resume(_ context.Context, note []byte, _ secret.Ref, _ delivery.Place, tell func(error)) (func(), error) {
	f.tells(string(note), tell)
	return f.end, nil
}

// userspaceNode is a node that serves buckets, with its keeper.
type userspaceNode struct {
	*agenttest.Node
	keeper  *keepertest.Process
	folders *folders
}

func newUserspaceNode(t testing.TB) *userspaceNode {
	t.Helper()
	root := t.TempDir()
	must(t, os.Chmod(filepath.Dir(root), 0o755))
	must(t, os.Chmod(root, 0o755))
	n := &userspaceNode{keeper: keepertest.Start(t), folders: &folders{root: root, tell: map[string]func(error){}}}
	n.Node = agenttest.NewNode(t)
	n.Policy.Serves[grant.KindCloudStorage] = true
	n.Keeper = n.keeper.Client()
	n.Runners = map[grant.Kind]delivery.Runner{grant.KindCloudStorage: n.folders}
	n.Restart()
	return n
}

// folder makes what a bucket shows.
func (n *userspaceNode) folder(name string, files ...string) {
	n.T.Helper()
	dir := filepath.Join(n.folders.root, name)
	must(n.T, os.Mkdir(dir, 0o755))
	must(n.T, os.Chmod(dir, 0o777))
	for _, f := range files {
		must(n.T, os.WriteFile(filepath.Join(dir, f), []byte(f+"\n"), 0o644))
	}
}

func bucketGrant(source, target string, mode grant.Mode) grant.Mount {
	return grant.Mount{Kind: grant.KindCloudStorage, Source: source, Target: target, Mode: mode, AllowExec: true}
}

// within waits for something that other processes bring about.
func within(t testing.TB, what string, holds func() bool) {
	t.Helper()
	withinTime(t, time.Minute, what, holds)
}

func withinTime(t testing.TB, bound time.Duration, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(bound)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// pause stops a process, and returns when none of its threads runs any more: the one
// that takes the signal tells the others, which answer until then.
func pause(t testing.TB, pid int) {
	t.Helper()
	must(t, unix.Kill(pid, unix.SIGSTOP))
	within(t, "every thread has stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid))
		must(t, err)
		return len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
			b, err := os.ReadFile(path)
			// The name comes before the state, and may hold anything.
			return err != nil || !bytes.HasPrefix(b[bytes.LastIndexByte(b, ')')+1:], []byte(" T"))
		})
	})
}

// calls is how many calls into the filesystem at a mount point have no answer yet.
func calls(t testing.TB, point string) int {
	t.Helper()
	ms := standing(t, point)
	if len(ms) != 1 {
		t.Fatalf("at %s stand %+v", point, ms)
	}
	dir := t.TempDir()
	must(t, unix.Mount("none", dir, "fusectl", 0, ""))
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	b, err := os.ReadFile(filepath.Join(dir, strconv.FormatUint(uint64(ms[0].Dev.Minor), 10), "waiting"))
	must(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(t, err)
	return n
}

// waits reads a folder whose filesystem does not answer, and returns when the call
// waits. What it ends with comes through the channel.
func waits(t testing.TB, point string, read func() error) <-chan error {
	t.Helper()
	before := calls(t, point)
	ended := make(chan error, 1)
	go func() { ended <- read() }()
	within(t, "a call waits", func() bool { return calls(t, point) > before })
	return ended
}

// neverEmpty reads a folder over and over until it is told to end. Each time there is
// an error, or what is in the folder.
func neverEmpty(t testing.TB, what string, read func() ([]string, error)) (end func()) {
	t.Helper()
	told, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if names, err := read(); err == nil && len(names) == 0 {
				t.Errorf("%s: an empty folder", what)
				return
			}
			select {
			case <-told:
				return
			default:
			}
		}
	}()
	end = sync.OnceFunc(func() {
		close(told)
		<-ended
	})
	t.Cleanup(end)
	return end
}

func namesIn(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
