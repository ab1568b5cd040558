package keeper_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/keeper/keepertest"
)

func TestAChildThatDoesNotStopIsKilledAfterItsGrace(t *testing.T) {
	w := newWorld(t)
	k := w.start(nil, "stubborn")
	hear[int](t, k)
	if err := w.Stop(t.Context(), k.ID, 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	if polled(t, k.pidfd) {
		t.Error("it was killed before its grace was over")
	}
	// A shorter grace counts, a longer one does not.
	for _, grace := range []time.Duration{100 * time.Millisecond, time.Hour} {
		if err := w.Stop(t.Context(), k.ID, grace); err != nil {
			t.Fatal(err)
		}
	}
	if exit := w.waitFor(k); exit.Signal != unix.SIGKILL || exit.Code != -1 || exit.Memory {
		t.Errorf("exit %+v", exit)
	}
	k = w.start(nil, "stubborn")
	hear[int](t, k)
	if err := w.Stop(t.Context(), k.ID, -1); err != nil {
		t.Fatal(err)
	}
	if exit := w.waitFor(k); exit.Signal != unix.SIGKILL {
		t.Errorf("exit %+v", exit)
	}
}

func TestAChildThatUsesTooMuchMemoryIsEnded(t *testing.T) {
	w := newWorld(t)
	modest := w.start(func(s *keeper.Start) { s.Memory = 1 << 30 }, "eat", "1000")
	hear[int](t, modest)
	free := w.start(nil, "eat", "100000000")
	hear[int](t, free)
	k := w.start(func(s *keeper.Start) { s.Memory = 64 << 20 }, "eat", "100000000")
	exit := w.waitFor(k)
	if !exit.Memory || exit.Signal != unix.SIGKILL || !strings.Contains(exit.String(), "memory") {
		t.Errorf("exit %+v", exit)
	}
	if polled(t, modest.pidfd) || polled(t, free.pidfd) {
		t.Error("a child within its memory was ended")
	}
}

func TestHelpersEndWithTheirChild(t *testing.T) {
	w := newWorld(t)
	k := w.start(nil, "parent")
	hear[int](t, k) // the helper's
	if n := len(processesOf(ada)); n != 2 {
		t.Fatalf("%d processes", n)
	}
	if err := w.Stop(t.Context(), k.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if exit := w.waitFor(k); exit.Code != 0 || exit.Words != "goodbye" {
		t.Errorf("exit %+v", exit)
	}
	eventually(t, "the helper has ended", func() bool { return len(processesOf(ada)) == 0 })
}

func TestAHelperThatHoldsTheOutputDelaysNothing(t *testing.T) {
	w := newWorld(t)
	k := w.start(nil, "parent", "with a session of its own")
	pid := hear[int](t, k)
	defer func() { _ = unix.Kill(pid, unix.SIGKILL) }()
	if err := w.Stop(t.Context(), k.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if exit := w.waitFor(k); exit.Code != 0 || exit.Words != "goodbye" {
		t.Errorf("exit %+v", exit)
	}
}

func TestACacheIsTheChildsAloneAndGoesWithIt(t *testing.T) {
	w := newWorld(t)
	cached := func(name string, uid int) func(*keeper.Start) {
		return func(s *keeper.Start) { s.CacheName, s.UID = name, uid }
	}
	k := w.start(cached("one", ada), "cache", w.caches+"/one")
	if mode := hear[string](t, k); mode != "drwx------" {
		t.Errorf("its mode is %s", mode)
	}
	info, err := os.Stat(w.caches)
	if err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o733 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
	var st unix.Stat_t
	if err := unix.Stat(w.caches+"/one", &st); err != nil || st.Uid != ada || st.Gid != users {
		t.Errorf("it belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
	if _, err := w.tryStart(cached("one", ada), "exit", "0", ""); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("two share one cache: %v", err)
	}
	if err := w.Stop(t.Context(), k.ID, 0); err != nil {
		t.Fatal(err)
	}
	w.waitFor(k)
	eventually(t, "the cache is removed", func() bool { return len(names(t, w.caches)) == 0 })

	// What another user has put there is not touched, what the same has left is.
	for name, uid := range map[string]int{"squat": ada + 1, "mine": ada} {
		path := filepath.Join(w.caches, name)
		if err := errors.Join(os.MkdirAll(path+"/old", 0o755), os.Chown(path+"/old", uid, users), os.Chown(path, uid, users)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.tryStart(cached("squat", ada), "exit", "0", ""); err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("a cache of another user was taken: %v", err)
	}
	k = w.start(cached("mine", ada), "cache", w.caches+"/mine")
	hear[string](t, k)
	if got := names(t, w.caches+"/mine"); len(got) != 2 {
		t.Errorf("the cache has %v", got)
	}
	// A keeper that was killed leaves caches; the next one removes them and leaves what
	// is root's.
	if err := os.Mkdir(w.caches+"/lost+found", 0o700); err != nil {
		t.Fatal(err)
	}
	w.stop()
	path := w.caches + "/left"
	if err := errors.Join(os.MkdirAll(path+"/x/y", 0o700), os.Chown(path+"/x/y", ada, users), os.Chmod(path+"/x/y", 0),
		os.Chown(path+"/x", ada, users), os.Chown(path, ada, 0)); err != nil {
		t.Fatal(err)
	}
	w.serve(time.Minute)
	eventually(t, "leftovers are removed", func() bool {
		got := names(t, w.caches)
		return len(got) == 1 && got[0] == "lost+found"
	})
}

func TestTheEndOfTheKeeperIsTheEndOfItsChildren(t *testing.T) {
	w := newWorld(t)
	w.stop()
	// One that ends when it is told to has that long for it.
	w.serve(5 * time.Second)
	polite := w.start(func(s *keeper.Start) { s.CacheName = "c" }, "wait")
	hear[int](t, polite)
	stubborn := w.start(nil, "stubborn")
	hear[int](t, stubborn)
	w.stop()
	if !polled(t, polite.pidfd) || !polled(t, stubborn.pidfd) {
		t.Error("a child runs")
	}
	if found := processesOf(ada); len(found) != 0 {
		t.Errorf("processes are left: %v", found)
	}
	if got := names(t, w.caches); len(got) != 0 {
		t.Errorf("caches are left: %v", got)
	}
	for _, want := range []string{`"exit status 7"`, "does not end and is killed", `"signal 9 (killed)"`, ": stopped in order\n"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
	if got := strings.Count(w.log.String(), "is killed"); got != 1 {
		t.Errorf("%d children are said to be killed", got)
	}
}

func TestTheDeathOfTheKeeperIsTheEndOfItsChildren(t *testing.T) {
	k := keepertest.Start(t)
	w := &world{t: t, Client: k.Client()}
	var children []*kid
	for _, change := range []func(*keeper.Start){nil, func(s *keeper.Start) { s.CacheName = "c" }} {
		child := w.start(change, "stubborn")
		pid := hear[int](t, child)
		t.Cleanup(func() {
			if !polled(t, child.pidfd) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		})
		children = append(children, child)
	}
	for _, child := range children {
		if polled(t, child.pidfd) {
			t.Fatalf("%v has ended already", child.Child)
		}
	}
	k.Kill()
	for _, child := range children {
		waitReadable(t, child.pidfd)
	}
}

func TestAKeeperThatEndsAnswersAndStartsNothing(t *testing.T) {
	w := newWorld(t)
	k := w.start(nil, "stubborn")
	hear[int](t, k)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	eventually(t, "it ends", func() bool { return strings.Contains(w.log.String(), "the keeper ends") })
	if _, err := w.tryStart(nil, "exit", "0", ""); !errors.Is(err, keeper.ErrUnavailable) || !strings.Contains(err.Error(), "ending") {
		t.Errorf("a start: %v", err)
	}
	if _, all, err := w.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the list: %v, %v", all, err)
	}
	if err := w.Stop(t.Context(), k.ID, 0); err != nil {
		t.Error(err)
	}
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Error("it does not end with its last child")
	}
}

func TestNeitherThoseThatRunNorThoseThatHaveEndedGrowWithoutBound(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.most = 3
	w.serve(time.Minute)
	var ended []*kid
	for range 5 {
		k := w.start(nil, "exit", "0", "")
		w.waitFor(k)
		ended = append(ended, k)
	}
	for i, k := range ended {
		want := error(nil)
		if i < 2 {
			want = keeper.ErrUnknownChild
		}
		if _, err := w.Child(t.Context(), k.ID); !errors.Is(err, want) {
			t.Errorf("child %d of 5: %v, want %v", i, err, want)
		}
	}
	var running []*kid
	for range 3 {
		k := w.start(nil, "stubborn")
		hear[int](t, k)
		running = append(running, k)
	}
	if _, err := w.tryStart(nil, "exit", "0", ""); err == nil || !strings.Contains(err.Error(), "3 children run") {
		t.Errorf("a fourth: %v", err)
	}
	if err := w.Stop(t.Context(), running[0].ID, 0); err != nil {
		t.Fatal(err)
	}
	w.waitFor(running[0])
	w.waitFor(w.start(nil, "exit", "0", ""))
	if _, all, err := w.List(t.Context()); err != nil || len(all) != 5 {
		t.Errorf("%v, %v", all, err)
	}
	for _, k := range running[1:] {
		if err := w.Stop(t.Context(), k.ID, 0); err != nil {
			t.Fatal(err)
		}
	}
}
