package procs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// waiting starts WaitEnded for uidA.
func waiting(ctx context.Context, f *Finder) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f.WaitEnded(ctx, uidA) }()
	return done
}

func mustStillWait(t *testing.T, after string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("it returned %v after %s", err, after)
	case <-time.After(quiet):
	}
}

func TestThePodHasEndedWithItsLastProcessAndNotBefore(t *testing.T) {
	tr := newTree(t)
	first, second, other := start(t, nil), start(t, nil), start(t, nil)
	tr.link(first.Process, systemd(uidA, id1))
	tr.link(second.Process, systemd(uidA, id2))
	tr.link(other.Process, systemd(uidB, id1))
	done := waiting(t.Context(), tr.finder())
	mustStillWait(t, "its start", done)
	first.end()
	mustStillWait(t, "the end of one of two", done)

	hook := start(t, nil) // a preStop hook, started while we wait
	tr.link(hook.Process, systemd(uidA, id1))
	second.end()
	mustStillWait(t, "the end of the two it began with", done)

	hook.end()
	check(t, within20s(t, "the end of the last", done))
	if has, err := tr.finder().Has(uidB); !has || err != nil {
		t.Errorf("the other Pod's process: %v, %v", has, err)
	}
}

func TestAProcessNobodyHasWaitedForHasEnded(t *testing.T) {
	tr := newTree(t)
	c := start(t, nil)
	tr.link(c.Process, systemd(uidA, id1))
	done := waiting(t.Context(), tr.finder())
	mustStillWait(t, "its start", done)
	check(t, c.cmd.Process.Kill()) // and not waited for: it stays a zombie
	check(t, within20s(t, "the end of a process", done))
}

func TestAProcessWhoseFirstThreadHasExitedHasNotEnded(t *testing.T) {
	tr := newTree(t)
	c := start(t, nil, "exit-first-thread")
	tr.link(c.Process, systemd(uidA, id1))
	done := waiting(t.Context(), tr.finder())
	mustStillWait(t, "the end of its first thread", done)
	c.end()
	check(t, within20s(t, "the end of the others", done))
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	tr := newTree(t)
	c := start(t, nil)
	tr.link(c.Process, systemd(uidA, id1))
	ctx, cancel := context.WithCancel(t.Context())
	done := waiting(ctx, tr.finder())
	mustStillWait(t, "its start", done)
	cancel()
	if err := within20s(t, "a cancelled wait", done); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAPodWithoutProcessesHasEnded(t *testing.T) {
	check(t, within20s(t, "a pod without processes", waiting(t.Context(), newTree(t).finder())))
}

func TestAReusedPidIsNotWaitedFor(t *testing.T) {
	c := start(t, nil)
	old := c.Process
	old.Start--
	done := make(chan error, 1)
	go func() { done <- New("/proc").waitOne(t.Context(), old) }()
	check(t, within20s(t, "the end of the process before", done))
}

func TestWhileItCannotBeToldThePodHasNotEnded(t *testing.T) {
	tr := newTree(t)
	unreadable := filepath.Join(tr.dir, "1", "cgroup")
	check(t, os.MkdirAll(unreadable, 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	done := waiting(ctx, tr.finder())
	mustStillWait(t, "scans that could not read everything", done)
	cancel()
	if err := within20s(t, "a cancelled wait", done); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrCannotTell) {
		t.Errorf("got %v", err)
	}

	done = waiting(t.Context(), tr.finder())
	tr.remove(1)
	check(t, within20s(t, "a pod without processes", done))
}

func TestWaitingHoldsNoDescriptorAfterwards(t *testing.T) {
	tr := newTree(t)
	c := start(t, nil)
	tr.link(c.Process, systemd(uidA, id1))
	before := openFiles(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := waiting(ctx, tr.finder())
	mustStillWait(t, "its start", done)
	cancel()
	if err := within20s(t, "a cancelled wait", done); err == nil {
		t.Error("it ended")
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(all)
}
