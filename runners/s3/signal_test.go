package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A program that hears of a child, or of a window's size, goes on reading its file and
// moving its folder.
func TestASignalThatMeansNothingInterruptsNothing(t *testing.T) {
	s := startServer(t)
	content := pattern(32 << 20)
	s.put("large", content)
	m := start(t, s, startEndpoint(t, s.Credentials))
	must(t, os.MkdirAll(m.path("folders"), 0o755))
	for i := range 20 {
		must(t, os.Mkdir(m.path(fmt.Sprintf("folders/%d", i)), 0o755))
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := os.Getpid(), unix.Gettid()
	stop := make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = unix.Tgkill(pid, tid, unix.SIGURG) // Go's own, which it takes for nothing
			case <-stop:
				return
			}
		}
	})
	defer func() { close(stop); signals.Wait() }()

	// The calls themselves: package os repeats those that were interrupted.
	fd, err := unix.Open(m.path("large"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer func() { _ = unix.Close(fd) }()
	buffer := make([]byte, 1<<20)
	for off := 0; off < len(content); {
		n, err := unix.Pread(fd, buffer, int64(off))
		if err != nil || n == 0 {
			t.Fatalf("reading at %d: %d bytes, %v", off, n, err)
		}
		off += n
	}
	for range 200 {
		var room unix.Statfs_t
		if err := unix.Statfs(m.dir, &room); err != nil {
			t.Fatalf("statfs: %v", err)
		}
	}
	for i := range 5 {
		if err := unix.Rename(m.path(map[bool]string{true: "folders", false: "moved"}[i%2 == 0]), m.path(map[bool]string{true: "moved", false: "folders"}[i%2 == 0])); err != nil {
			t.Fatalf("rename %d: %v", i, err)
		}
	}
}

func TestAQuestionGoesOnForAWhileAfterASignal(t *testing.T) {
	answered := make(chan struct{})
	h := &health{report: &reporter{}, ask: func(context.Context) error { <-answered; return nil }}
	ctx, signal := context.WithCancel(t.Context())
	signal()
	result := make(chan syscall.Errno, 1)
	go func() { result <- h.errno(ctx) }()
	// It is given up in the end: whoever is killed does not wait for the server.
	if errno := <-result; errno != syscall.EINTR {
		t.Errorf("without an answer: %v", errno)
	}
	go func() { result <- h.errno(ctx) }()
	close(answered)
	if errno := <-result; errno != 0 {
		t.Errorf("with an answer after the signal: %v", errno)
	}
}
