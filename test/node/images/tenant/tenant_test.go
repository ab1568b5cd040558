package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets a test start this binary as the program itself.
func TestMain(m *testing.M) {
	if os.Getenv("TENANT_IN_TEST") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// running is a command in a goroutine.
type running struct {
	stop chan os.Signal
	out  *bufio.Reader
	done chan error
}

func start(args ...string) *running {
	r, w := io.Pipe()
	c := &running{stop: make(chan os.Signal, 1), out: bufio.NewReader(r), done: make(chan error, 1)}
	go func() {
		err := run(args, c.stop, w)
		_ = w.Close()
		c.done <- err
	}()
	return c
}

// begun waits until the command says that it has begun.
func (c *running) begun(t *testing.T) {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("got %q (%v), want ready", line, err)
	}
}

// end waits for the command and returns what else it printed.
func (c *running) end(t *testing.T) (string, error) {
	t.Helper()
	rest, err := io.ReadAll(c.out)
	if err != nil {
		t.Fatal(err)
	}
	return string(rest), <-c.done
}

func contentOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAppendLoopWritesALineEachTurnAndReportsWhenItIsStopped(t *testing.T) {
	dir := t.TempDir()
	file, record := filepath.Join(dir, "log"), filepath.Join(dir, "record")
	c := start("append-loop", "-every", "1ms", "-record", record, file)
	c.begun(t)
	c.stop <- syscall.SIGTERM
	text, err := c.end(t)
	if err != nil {
		t.Fatal(err)
	}
	var seen outcome
	if err := json.Unmarshal([]byte(text), &seen); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	lines := strings.Count(contentOf(t, file), "\n")
	if seen.Done < 1 || seen.Done != lines || seen.Error != "" || seen.SlowestMs <= 0 || seen.File != file {
		t.Errorf("the outcome is %+v for %d lines", seen, lines)
	}
	if got := contentOf(t, record); got != text {
		t.Errorf("recorded is %q, printed %q", got, text)
	}
}

func TestLoopsThroughADescriptorGoOnWithoutTheName(t *testing.T) {
	for _, name := range []string{"append-through", "read-through", "list-loop"} {
		dir := t.TempDir()
		target := filepath.Join(dir, "target")
		if name == "list-loop" {
			if err := os.Mkdir(target, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Chdir(dir) // and back again at the end
		} else if err := os.WriteFile(target, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		c := start(name, "-every", "1ms", "-record", filepath.Join(dir, "record"), target)
		c.begun(t)
		if err := os.Rename(target, target+".elsewhere"); err != nil {
			t.Fatal(err)
		}
		c.stop <- syscall.SIGTERM
		text, err := c.end(t)
		var seen outcome
		if err != nil || json.Unmarshal([]byte(text), &seen) != nil || seen.Done < 1 || seen.Error != "" {
			t.Errorf("%s ended with %q, %v", name, text, err)
		}
		if _, err := os.Stat(target); err == nil {
			t.Errorf("%s opened the name again", name)
		}
	}
}

func TestAReaderOfAnEmptyFileSeesAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"read-through", "-record", file + ".record", file}, nil, io.Discard); !errors.Is(err, io.EOF) {
		t.Errorf("it ended with %v", err)
	}
}

func TestLoopsEndAtTheFirstErrorAndRecordIt(t *testing.T) {
	for _, name := range []string{"append-loop", "read-loop"} {
		dir := t.TempDir()
		folder, record := filepath.Join(dir, "folder"), filepath.Join(dir, "record")
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "f"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		c := start(name, "-every", "1ms", "-record", record, filepath.Join(folder, "f"))
		c.begun(t)
		if err := os.Rename(folder, folder+".gone"); err != nil {
			t.Fatal(err)
		}
		_, err := c.end(t)
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s ended with %v", name, err)
		}
		var seen outcome
		if err := json.Unmarshal([]byte(contentOf(t, record)), &seen); err != nil {
			t.Fatal(err)
		}
		if seen.Done < 1 || !strings.Contains(seen.Error, "no such file") {
			t.Errorf("%s recorded %+v", name, seen)
		}
		if _, err := time.Parse(time.RFC3339Nano, seen.At); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestALoopThatCannotBeginIsNeverReady(t *testing.T) {
	c := start("read-loop", filepath.Join(t.TempDir(), "nothing"))
	if text, err := c.end(t); err == nil || strings.Contains(text, "ready") {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestWriteOnTermWritesNothingBeforeItAndGoesOnForItsTime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notes")
	c := start("write-on-term", "-for", "1s", file, "saved")
	c.begun(t)
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there before the signal: %v", err)
	}
	began := time.Now()
	c.stop <- syscall.SIGTERM
	if _, err := c.end(t); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("it ended after %s", took)
	}
	if text := contentOf(t, file); strings.ReplaceAll(text, "saved\n", "") != "" || strings.Count(text, "\n") < 2 {
		t.Errorf("it wrote %q", text)
	}
}

func TestStatTellsOwnerModeAndTheMountsFlags(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "l")
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "m")
	c := start("stat", file, "/proc", link, missing)
	text, err := c.end(t)
	if err != nil {
		t.Fatal(err)
	}
	var all []facts
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 4 {
		t.Fatalf("%v in %q", err, text)
	}
	if f := all[0]; f.Path != file || f.Type != "file" || f.Mode != "0640" || f.UID != uint32(os.Getuid()) || f.FS == "" || f.Error != "" {
		t.Errorf("the file: %+v", f)
	}
	if p := all[1]; p.Type != "dir" || p.FS != "0x9fa0" || !reflect.DeepEqual(p.Flags, procFlags(t)) {
		t.Errorf("/proc: %+v", p)
	}
	if l := all[2]; l.Type != "link" || l.Error != "" {
		t.Errorf("the link: %+v", l)
	}
	if m := all[3]; m.Path != missing || !strings.Contains(m.Error, "no such file") {
		t.Errorf("the missing one: %+v", m)
	}
}

// procFlags reads the flags of /proc from where the kernel lists them as words.
func procFlags(t *testing.T) []string {
	t.Helper()
	flags := []string{}
	for _, line := range strings.Split(contentOf(t, "/proc/self/mounts"), "\n") {
		if fields := strings.Fields(line); len(fields) > 3 && fields[1] == "/proc" {
			flags = []string{}
			for _, option := range strings.Split(fields[3], ",") {
				switch option {
				case "ro", "nosuid", "nodev", "noexec":
					flags = append(flags, option)
				}
			}
		}
	}
	return flags
}

func TestAWrongCommandLineIsSaidToBeOne(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"dance"},
		{"wait", "more"},
		{"hold-open"},
		{"list-loop", "a", "b"},
		{"stat"},
		{"crash-after", "soon"},
		{"listen"},
		{"write-on-term", "f"},
		{"write-on-term", "-for", "x", "f", "t"},
		{"append-loop"},
		{"read-loop", "-every", "0", "f"},
	} {
		var wrong usageError
		if err := run(args, nil, io.Discard); !errors.As(err, &wrong) {
			t.Errorf("%v: got %v", args, err)
		}
	}
}

// process starts the program itself and waits until it has begun.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TENANT_IN_TEST=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%v: got %q (%v), want ready", args, line, err)
	}
	return cmd
}

func TestHoldersHoldUntilTheyAreStopped(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, link, to string }{
		{"hold-open " + file, "fd/*", file},
		{"list-loop " + dir, "cwd", dir},
		{"wait", "exe", ""},
	} {
		cmd := process(t, strings.Fields(c.args)...)
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/%s", cmd.Process.Pid, c.link))
		if err != nil {
			t.Fatal(err)
		}
		held := c.to == ""
		for _, link := range links {
			to, err := os.Readlink(link)
			held = held || err == nil && to == c.to
		}
		if !held {
			t.Errorf("%s holds nothing: %v", c.args, links)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

func TestACrashIsAKill(t *testing.T) {
	var exit *exec.ExitError
	err := process(t, "crash-after", "1ms").Wait()
	if !errors.As(err, &exit) {
		t.Fatalf("it ended with %v", err)
	}
	if status := exit.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
}
