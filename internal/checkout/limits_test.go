package checkout_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/checkout/checkouttest"
	"github.com/datalayer/node-mounts/test/gitserver"
	"golang.org/x/sys/unix"
)

func noise(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func TestARepositoryThatIsTooLargeIsRefused(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	incompressible := repo.Files("noise", map[string]string{"noise": noise(4 << 20)})
	inflating := repo.Files("zeros", map[string]string{"zeros": strings.Repeat("\x00", 8<<20)})
	many := map[string]string{}
	for i := range 300 {
		many[fmt.Sprintf("d/%d", i)] = "x"
	}
	files := repo.Files("many", many)
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Bytes, c.Limits.Inodes = 1<<20, 200 })
	for name, sha := range map[string]string{"noise": incompressible, "zeros": inflating, "many files": files} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			t.Log(w.failure(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.TooLarge))
		})
	}
}

// Ten levels of ten folders each, all the same: twenty objects, ten thousand million
// files.
func TestATreeThatUnfoldsToThousandsOfMillionsOfFilesIsRefusedBeforeItIsWritten(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	mode, id := "100644", repo.Blob("boom")
	for range 10 {
		var entries []gitserver.Entry
		for i := range 10 {
			entries = append(entries, gitserver.Entry{Mode: mode, Name: fmt.Sprint(i), ID: id})
		}
		mode, id = "40000", repo.RawTree(entries...)
	}
	sha := repo.Commit("main", id)
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	began := time.Now()
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.TooLarge)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v to see", took)
	}
}

// Only what git has to have in memory is bounded by the memory that it may take.
func TestAFileLargerThanTheMemoryOfGitIsFetched(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	content := noise(1 << 20)
	sha := repo.Files("main", map[string]string{"big": strings.Repeat(content, 192)})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Memory = 128 << 20 })
	c := w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha})
	if info, err := os.Stat(filepath.Join(c.Path, "big")); err != nil || info.Size() != 192<<20 {
		t.Errorf("%v, %v", info, err)
	}
}

// Few files, each beneath a thousand folders that no other file is in.
func TestATreeThatUnfoldsToMillionsOfFoldersIsRefusedBeforeItIsWritten(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	e := gitserver.Entry{Mode: "100644", Name: "f", ID: repo.Blob("x")}
	for range 1000 {
		e = gitserver.Entry{Mode: "40000", Name: "d", ID: repo.RawTree(e)}
	}
	var top []gitserver.Entry
	for i := range 3000 {
		top = append(top, gitserver.Entry{Mode: "40000", Name: fmt.Sprintf("%04d", i), ID: e.ID})
	}
	sha := repo.Commit("main", repo.RawTree(top...))
	server := w.https(&gitserver.HTTPS{})
	// Written, they would be too many after minutes.
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Timeout = time.Minute })
	w.fails(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.TooLarge)
}

func TestCheckoutsThatNobodyUsesGoInTheOrderOfTheirLastUse(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	server := w.https(&gitserver.HTTPS{})
	var shas []string
	for i := range 4 {
		shas = append(shas, repo.Files(fmt.Sprint("b", i), map[string]string{"f": noise(256 << 10)}))
	}
	// Each is about 0.5 MiB: the file, and the pack that has it again.
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Budget = 1200 << 10 })
	var got []*checkout.Checkout
	for i, sha := range shas {
		got = append(got, w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: fmt.Sprint(i)}))
	}
	for _, i := range []int{2, 1, 0} {
		w.clock.advance(time.Minute)
		w.store.Release(fmt.Sprint(i))
	}
	// 3 is in use. 2 went out of use first, then 1, then 0: two of them fit.
	if freed := w.store.Collect(t.Context()); freed < 256<<10 {
		t.Errorf("freed %d bytes", freed)
	}
	for i, want := range []bool{true, true, false, true} {
		if _, err := os.Stat(got[i].Path); (err == nil) != want {
			t.Errorf("checkout %d: %v, expected to be there: %t", i, err, want)
		}
	}
	if again := w.store.Collect(t.Context()); again != 0 {
		t.Errorf("freed %d more bytes", again)
	}
	// The order outlives the agent, and so do the uses that it is told.
	w.store.Close()
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Budget = 600 << 10 })
	missing := w.store.Recover(map[string]string{"3": got[3].Key, "2": got[2].Key})
	if len(missing) != 1 || missing[0] != "2" {
		t.Errorf("missing: %v", missing)
	}
	w.store.Collect(t.Context())
	for i, want := range []bool{true, false, false, true} {
		if _, err := os.Stat(got[i].Path); (err == nil) != want {
			t.Errorf("after a restart, checkout %d: %v, expected to be there: %t", i, err, want)
		}
	}
	w.nothingLeft()
}

func TestNothingIsCollectedBeforeTheUsesAreKnown(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"f": "x"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	c := w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha})
	w.store.Close()

	config := w.config()
	config.Limits.Budget = 0
	s, err := checkout.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Collect(t.Context()) != 0 {
		t.Error("a checkout was collected before Recover")
	}
	if missing := s.Recover(map[string]string{"pod/target": c.Key}); len(missing) != 0 {
		t.Errorf("missing: %v", missing)
	}
	if s.Collect(t.Context()) != 0 {
		t.Error("a checkout in use was collected")
	}
	s.Release("pod/target")
	if s.Collect(t.Context()) == 0 {
		t.Error("a checkout that nobody uses was kept against a budget of nothing")
	}
}

func TestACheckoutOfAnotherBootIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"f": "x"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha}
	w.mustGet(ask)
	w.store.Close()
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Boot = "the next boot" })
	if names := list(t, filepath.Join(w.root, "ready")); len(names) != 0 {
		t.Errorf("kept: %v", names)
	}
	w.mustGet(ask)
	w.store.Close()
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Boot = "the next boot" })
	if names := list(t, filepath.Join(w.root, "ready")); len(names) != 1 {
		t.Errorf("not kept in the same boot: %v", names)
	}
}

// After a reboot every checkout is outdated, and the agent serves nobody before the store
// is open: however many files there are, they go later.
func TestNobodyWaitsForTheRemovalOfWhatAnotherBootHasLeft(t *testing.T) {
	w := newWorld(t)
	w.open(nil)
	w.store.Close()
	at := filepath.Join(w.root, "ready", strings.Repeat("a", 32))
	for _, dir := range []string{filepath.Join(at, "tree"), filepath.Join(w.root, "jobs", "job-of-a-killed-agent")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(at, "checkout.json"), []byte(`{"boot":"before"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// Nothing is removed as long as its line is not in the log.
	held := make(chan struct{})
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		w.open(nil, func(c *checkout.Config) { c.Log = slog.New(holdsRemoval{c.Log.Handler(), held}) })
	}()
	select {
	case <-opened:
	case <-time.After(20 * time.Second):
		t.Error("Open waits for the removal")
	}
	if names := list(t, filepath.Join(w.root, "ready")); len(names) != 0 {
		t.Errorf("still to be found: %v", names)
	}
	close(held)
	<-opened
	eventually(t, "it has gone", func() bool { return len(list(t, filepath.Join(w.root, "jobs"))) == 0 })
}

// holdsRemoval holds who says that something is being removed, until it may go on.
type holdsRemoval struct {
	slog.Handler

	until chan struct{}
}

func (h holdsRemoval) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "removing an unfinished checkout") {
		<-h.until
	}
	return h.Handler.Handle(ctx, r)
}

// The store never deletes through a mount: what is under it is not the store's.
func TestAMountInACheckoutStopsItsRemoval(t *testing.T) {
	inNamespace(t, "mounted")
}

func TestAFullDiskIsSaidToBeFullAndLeavesNothing(t *testing.T) {
	inNamespace(t, "full")
}

const fullVariable = "NODE_MOUNTS_TEST_FULL"

// inNamespace runs fillDisk in a mount namespace of its own, with a server out here.
func inNamespace(t *testing.T, story string) {
	t.Helper()
	w := newWorld(t)
	repo := w.repository()
	small := repo.Files("small", map[string]string{"f": noise(700 << 10)})
	large := repo.Files("large", map[string]string{"f": noise(3 << 20)})
	server := w.https(&gitserver.HTTPS{})
	ca := filepath.Join(shortDir(t), "ca")
	if err := os.WriteFile(ca, server.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), fullVariable+"="+shortDir(t), "FULL_STORY="+story, "FULL_CA="+ca, "FULL_URL="+server.URL(repo.Name),
		"FULL_SMALL="+small, "FULL_LARGE="+large, "FULL_ADDRESS="+server.Address().String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// fillDisk runs on a tmpfs of 4 MiB.
func fillDisk(dir string) int {
	bad := func(format string, args ...any) int {
		fmt.Printf(format+"\n", args...)
		return 1
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=755"); err != nil {
		return bad("mount: %v", err)
	}
	ca, err := os.ReadFile(os.Getenv("FULL_CA"))
	if err != nil {
		return bad("%v", err)
	}
	c := checkout.Config{Root: dir + "/s", Boot: "b", User: nobody, Group: nobody, Owner: checkout.Owner{UID: ada, GID: users}, CA: ca, Limits: checkouttest.Limits()}
	loopback(mustAddress(os.Getenv("FULL_ADDRESS")))(&c)
	if os.Getenv("FULL_STORY") == "mounted" {
		c.Limits.Budget = 0
	}
	s, err := checkout.Open(context.Background(), c)
	if err != nil {
		return bad("open: %v", err)
	}
	defer s.Close()
	s.Recover(nil)
	get := func(which, use string) (*checkout.Checkout, error) {
		return s.Get(context.Background(), checkout.Request{URL: os.Getenv("FULL_URL"), Revision: os.Getenv("FULL_" + which), Use: use})
	}
	first, err := get("SMALL", "first")
	if err != nil {
		return bad("small: %v", err)
	}
	if os.Getenv("FULL_STORY") == "mounted" {
		return mountedStory(s, first, bad)
	}
	// In use: it stays, and the large one does not fit beside it, nor alone.
	if _, err := get("LARGE", "large"); checkout.ClassOf(err) != checkout.DiskFull {
		return bad("a full disk is called %s: %v", checkout.ClassOf(err), err)
	}
	if _, err := os.Stat(first.Path + "/f"); err != nil {
		return bad("a checkout in use went: %v", err)
	}
	if left, err := os.ReadDir(c.Root + "/jobs"); err != nil || len(left) != 0 {
		return bad("left: %v %v", left, err)
	}
	// Something else fills the disk; what nobody uses makes way.
	s.Release("first")
	if err := os.WriteFile(dir+"/filler", make([]byte, 1800<<10), 0o600); err != nil {
		return bad("%v", err)
	}
	if _, err := get("LARGE", "large"); checkout.ClassOf(err) != checkout.DiskFull {
		return bad("the second time it is called %s: %v", checkout.ClassOf(err), err)
	}
	if _, err := os.Stat(first.Path); err == nil {
		return bad("an unused checkout did not make way")
	}
	if _, err := get("SMALL", "second"); err != nil {
		return bad("small, again: %v", err)
	}
	return 0
}

func mountedStory(s *checkout.Store, c *checkout.Checkout, bad func(string, ...any) int) int {
	at := c.Path + "/sub"
	if err := os.Mkdir(at, 0o755); err != nil {
		return bad("%v", err)
	}
	outside, err := os.MkdirTemp("", "outside")
	if err != nil {
		return bad("%v", err)
	}
	defer func() { _ = os.RemoveAll(outside) }()
	if err := os.WriteFile(outside+"/home", []byte("precious"), 0o600); err != nil {
		return bad("%v", err)
	}
	if err := unix.Mount(outside, at, "", unix.MS_BIND, ""); err != nil {
		return bad("%v", err)
	}
	s.Release("first")
	s.Collect(context.Background())
	s.Close()
	if _, err := os.Stat(outside + "/home"); err != nil {
		return bad("a file beneath a mount is gone: %v", err)
	}
	return 0
}
