package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/keeper"
)

func TestAChildHasWhatItWasGivenAndNothingElse(t *testing.T) {
	// What the keeper has must not reach the child: a variable, groups, and a
	// descriptor that execve does not close.
	t.Setenv("KEEPERS_OWN", "canary")
	groups, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{4242}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setgroups(groups) }()
	open, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(open)
	w := newWorld(t)
	for _, n := range []int{0, 1, 2, 15} {
		t.Run(fmt.Sprintf("%d more files", n), func(t *testing.T) {
			w := *w
			w.t = t
			want := map[int]string{0: "", 1: "", 2: "", 3: ""}
			k := w.start(func(s *keeper.Start) {
				s.Args = append(s.Args, "", "not\xffUTF-8", "ünï\n<&>")
				s.Env = []string{"A=1", "B=x\xfe\"\n", "A=2"}
				for i := range n {
					path := filepath.Join(shortDir(t), "file")
					if err := os.WriteFile(path, []byte(strconv.Itoa(i)), 0o600); err != nil {
						t.Fatal(err)
					}
					f, err := os.Open(path)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { f.Close() })
					s.Files = append(s.Files, f)
					want[4+i] = strconv.Itoa(i)
				}
			}, "look")
			got := hear[saw](t, k)
			// JSON shows what is no UTF-8 as U+FFFD: compared is what JSON makes of it.
			if want := []string{"child", "look", "", "not\ufffdUTF-8", "ünï\n<&>"}; !slices.Equal(got.Args, want) {
				t.Errorf("arguments %q", got.Args)
			}
			if want := []string{"A=1", "B=x\ufffd\"\n", "A=2"}; !slices.Equal(got.Env, want) {
				t.Errorf("environment %q", got.Env)
			}
			if !maps.Equal(got.Files, want) {
				t.Errorf("descriptors %v, want %v", got.Files, want)
			}
			for name, want := range map[string]string{
				"Uid": "12345\t12345\t12345\t12345", "Gid": "12100\t12100\t12100\t12100", "Groups": "", "NoNewPrivs": "1",
				"CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapBnd": zero, "CapAmb": zero,
			} {
				if got.Status[name] != want {
					t.Errorf("%s is %q, want %q", name, got.Status[name], want)
				}
			}
			// Core files of 0 bytes would still be handed to a program that core_pattern names.
			if !got.Session || got.Dir != "/" || got.Core != 1 || got.Umask != 0o022 || got.OOM != "1000" {
				t.Errorf("session of its own %v, in %s, core files of %d bytes, umask %#o, oom_score_adj %s", got.Session, got.Dir, got.Core, got.Umask, got.OOM)
			}
			if exit := w.waitFor(k); exit.Code != 0 || exit.Words != "" {
				t.Errorf("it ended with %+v", exit)
			}
		})
	}
}

const zero = "0000000000000000"

func TestAnExitIsThereWhenThePidfdSaysSo(t *testing.T) {
	w := newWorld(t)
	for range 20 {
		k := w.start(nil, "exit", "3", "first line\nthe endpoint is gone\n")
		exit := w.waitFor(k)
		if exit.Code != 3 || exit.Signal != 0 || exit.Memory || exit.Words != "first line\nthe endpoint is gone\n" || time.Since(exit.At) > time.Hour {
			t.Fatalf("exit %+v", exit)
		}
		if !strings.Contains(exit.String(), "3") {
			t.Errorf("%v does not say 3", exit)
		}
	}
	eventually(t, "the words are in the log", func() bool {
		return strings.Contains(w.log.String(), ": the endpoint is gone\n") && strings.Contains(w.log.String(), "\npod/target ")
	})
}

func TestAChildIsListedAdoptedAndForgotten(t *testing.T) {
	w := newWorld(t)
	note := []byte("note\x00\xff")
	k := w.start(func(s *keeper.Start) { s.Use, s.Note = "pod-a/data", note }, "wait")
	hear[int](t, k)
	info, all, err := w.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	c := all[0]
	if c.ID != k.ID || c.Use != "pod-a/data" || string(c.Note) != string(note) || c.UID != ada || c.Ended != nil || time.Since(c.Started) > time.Hour {
		t.Errorf("listed as %#v, note %q, ended %v", c, c.Note, c.Ended)
	}
	if info.Protocol != keeper.Protocol || info.Version != "v-test" || info.Instance == "" || info.CacheRoot != w.caches {
		t.Errorf("info %+v", info)
	}
	if again, err := w.Info(t.Context()); err != nil || again != info {
		t.Errorf("info %+v, %v", again, err)
	}
	adopted, err := w.Pidfd(t.Context(), k.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer adopted.Close()
	if polled(t, adopted) || polled(t, k.pidfd) {
		t.Error("a pidfd says that a running child has ended")
	}
	if _, ok := errors.AsType[*keeper.RemoteError](w.Forget(t.Context(), k.ID)); !ok {
		t.Error("a running child was forgotten")
	}
	if err := w.Stop(t.Context(), k.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, adopted)
	if exit := w.waitFor(k); exit.Code != 7 || exit.Words != "stopped in order\n" {
		t.Errorf("exit %+v", exit)
	}
	if _, err := w.Pidfd(t.Context(), k.ID); !errors.Is(err, keeper.ErrEnded) {
		t.Errorf("the pidfd of one that has ended: %v", err)
	}
	for range 2 {
		if err := errors.Join(w.Stop(t.Context(), k.ID, 0), w.Forget(t.Context(), k.ID)); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.Child(t.Context(), k.ID); !errors.Is(err, keeper.ErrUnknownChild) {
		t.Errorf("a forgotten child: %v", err)
	}
	if _, err := w.Pidfd(t.Context(), k.ID); !errors.Is(err, keeper.ErrUnknownChild) {
		t.Errorf("a forgotten child: %v", err)
	}
	if _, all, err := w.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestALongListComesInParts(t *testing.T) {
	w := newWorld(t)
	note := []byte(strings.Repeat("n", keeper.MaxNote))
	var ids []string
	for i := range 12 { // 12 notes are more than a packet
		k := w.start(func(s *keeper.Start) { s.Note = append([]byte{byte(i)}, note[1:]...) }, "exit", "0", strings.Repeat("\x01", 5000))
		ids = append(ids, k.ID)
		w.waitFor(k)
	}
	_, all, err := w.List(t.Context())
	if err != nil || len(all) != len(ids) {
		t.Fatalf("%d children, %v", len(all), err)
	}
	for i, c := range all {
		if c.ID != ids[i] || len(c.Note) != keeper.MaxNote || c.Note[0] != byte(i) || len(c.Ended.Words) != keeper.MaxWords {
			t.Errorf("child %d: %v, a note of %d, words of %d bytes", i, c, len(c.Note), len(c.Ended.Words))
		}
	}
}

func TestAChildThatCannotBeStartedIsAnErrorInWords(t *testing.T) {
	w := newWorld(t)
	file := func(name, text string, mode os.FileMode) *os.File {
		path := filepath.Join(w.dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	elf, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	busy := file("busy", string(elf), 0o755)
	writer, err := os.OpenFile(busy.Name(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	folder, err := os.Open(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	for name, c := range map[string]struct {
		change func(*keeper.Start)
		words  string
	}{
		"a text":             {func(s *keeper.Start) { s.Program = file("text", "hello", 0o755) }, "exec format error"},
		"root's alone":       {func(s *keeper.Start) { s.Program = file("private", string(elf), 0o700) }, "may not execute"},
		"no program":         {func(s *keeper.Start) { s.Program = file("data", string(elf), 0o644) }, "no regular file that can be executed"},
		"a folder":           {func(s *keeper.Start) { s.Program = folder }, "no regular file"},
		"open for writing":   {func(s *keeper.Start) { s.Program = busy }, "open for writing"},
		"a script":           {func(s *keeper.Start) { s.Program = file("script", "#!/bin/sh\n", 0o755) }, ""},
		"root":               {func(s *keeper.Start) { s.UID = 0 }, "never root"},
		"root's group":       {func(s *keeper.Start) { s.GID = 0 }, "never root"},
		"user -1":            {func(s *keeper.Start) { s.UID = -1 }, "never root"},
		"unsigned -1":        {func(s *keeper.Start) { s.UID = 1<<32 - 1 }, "never root"},
		"no name":            {func(s *keeper.Start) { s.Args = nil }, "Args[0]"},
		"too many files":     {func(s *keeper.Start) { s.Files = slices.Repeat(s.Files, 17) }, "17 files"},
		"a NUL":              {func(s *keeper.Start) { s.Env = []string{"A=\x00"} }, "NUL"},
		"two lines":          {func(s *keeper.Start) { s.Use = "a\nb" }, "one line"},
		"a long environment": {func(s *keeper.Start) { s.Env = []string{strings.Repeat("x", 50000)} }, "bytes"},
		"many arguments":     {func(s *keeper.Start) { s.Args = make([]string, 10000) }, "bytes"},
		"a long note":        {func(s *keeper.Start) { s.Note = make([]byte, keeper.MaxNote+1) }, "note"},
		"a path for a cache": {func(s *keeper.Start) { s.CacheName = "../x" }, "name of the cache"},
		"negative memory":    {func(s *keeper.Start) { s.Memory = -1 }, "memory"},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			k, err := w.tryStart(c.change, "exit", "0", "")
			if name == "a script" && err == nil {
				// execve took it; its interpreter found no file.
				if exit := w.waitFor(k); exit.Code == 0 {
					t.Errorf("exit %+v", exit)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want words with %q", err, c.words)
			}
		})
	}
	writer.Close()
	if exit := w.waitFor(w.start(func(s *keeper.Start) { s.Program = busy }, "exit", "0", "")); exit.Code != 0 {
		t.Errorf("exit %+v", exit)
	}
	if found := processesOf(ada); len(found) != 0 {
		t.Errorf("processes are left: %v", found)
	}
}

func TestTheLongestStartFitsAPacket(t *testing.T) {
	w := newWorld(t)
	k := w.start(func(s *keeper.Start) {
		s.Use = strings.Repeat("<", keeper.MaxUse)
		s.Note = make([]byte, keeper.MaxNote)
		s.Env = slices.Repeat([]string{""}, 5900)
		s.CacheName = strings.Repeat("c", 127)
	}, "exit", "5", "")
	if exit := w.waitFor(k); exit.Code != 5 {
		t.Errorf("exit %+v", exit)
	}
	k = w.start(func(s *keeper.Start) { s.Env = []string{strings.Repeat("\xff", 48000)} }, "exit", "5", "")
	if exit := w.waitFor(k); exit.Code != 5 {
		t.Errorf("exit %+v", exit)
	}
}

func TestTwoHundredStartsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	once := func(i int) {
		k, err := w.tryStart(func(s *keeper.Start) { s.CacheName = "c" + strconv.Itoa(i) }, "exit", "0", "x")
		if err != nil {
			t.Error(err)
			return
		}
		w.waitFor(k)
		k.pidfd.Close()
		if err := w.Forget(t.Context(), k.ID); err != nil {
			t.Error(err)
		}
		if i%4 == 0 {
			if _, err := w.tryStart(func(s *keeper.Start) {
				s.CacheName = "d" + strconv.Itoa(i)
				s.Program = s.Files[0]
			}, "exit"); err == nil {
				t.Error("a pipe was executed")
			}
		}
	}
	quiet := func() bool { return len(names(t, w.caches)) == 0 && len(processesOf(ada)) == 0 }
	open := func() int { return len(names(t, "/proc/self/fd")) }
	inner := func(t *testing.T, from, to int) {
		outer := w.t
		defer func() { w.t = outer }()
		w.t = t // what the test itself holds is closed with it
		for i := from; i < to; i++ {
			once(i)
		}
	}
	t.Run("a few", func(t *testing.T) { inner(t, 0, 3) })
	eventually(t, "quiet", quiet)
	before := open()
	t.Run("many", func(t *testing.T) { inner(t, 3, 203) })
	eventually(t, "no process and no cache is left", quiet)
	eventually(t, fmt.Sprintf("%d descriptors are open as before", before), func() bool { return open() <= before })
}

func TestNothingShowsEnvironmentOrNote(t *testing.T) {
	w := newWorld(t)
	const canary = "canary-in-the-mine"
	s := keeper.Start{Use: "u", Args: []string{roleChild, "wait"}, Env: []string{"TOKEN=" + canary}, Note: []byte(canary), UID: ada, GID: users, Program: program(t)}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	s.Files = []*os.File{write}
	_, c, pidfd, err := w.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	write.Close()
	refused := s
	refused.Program = pidfd
	_, _, _, refusal := w.Start(t.Context(), refused)
	if refusal == nil {
		t.Error("a pidfd was executed")
	}
	var all strings.Builder
	for _, log := range []*slog.Logger{slog.New(slog.NewJSONHandler(&all, nil)), slog.New(slog.NewTextHandler(&all, nil))} {
		log.Info("x", "s", s, "ps", &s, "c", c, "pc", &c, "error", refusal)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		_, _ = fmt.Fprintf(&all, strings.Repeat(verb, 4), s, &s, c, &c)
	}
	w.stop()
	all.WriteString(w.log.String())
	if text := all.String(); strings.Contains(text, canary) || strings.Contains(text, "Y2FuYXJ5") || !strings.Contains(text, "a child was started") {
		t.Errorf("it shows:\n%s", text)
	}
}

func TestAListenerIsHandedOverAndNotForwarded(t *testing.T) {
	w := newWorld(t)
	first, err := w.Listener(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := w.Listener(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	address := first.Addr().String()
	if second.Addr().String() != address || !strings.HasPrefix(address, "127.0.0.1:") {
		t.Errorf("%s and %s", address, second.Addr())
	}
	exchange := func(l net.Listener) {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 1 {
			t.Fatal(err)
		}
	}
	exchange(first)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// Nobody accepts: the connection waits for the next agent.
	waiting, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	s, err := second.Accept()
	if err != nil || s.RemoteAddr().String() != waiting.LocalAddr().String() {
		t.Fatalf("accepted %v, %v", s, err)
	}
	_ = s.Close()
	exchange(second)
}

func TestNobodyAnswers(t *testing.T) {
	w := newWorld(t)
	w.stop()
	if _, err := w.Info(t.Context()); !errors.Is(err, keeper.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	silent := &keeper.Client{Dial: func(context.Context) (net.Conn, error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { unix.Close(pair[1]) })
		f := os.NewFile(uintptr(pair[0]), "silent")
		defer f.Close()
		return net.FileConn(f)
	}, Timeout: 50 * time.Millisecond}
	if _, err := silent.Info(t.Context()); !errors.Is(err, keeper.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := silent.Info(ctx); !errors.Is(err, keeper.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
