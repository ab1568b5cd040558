package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mainEnv makes the test binary the program.
const mainEnv = "NODE_MOUNTS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program is a process of node-mounts. Its temporary folders are in temp.
type program struct {
	*exec.Cmd
	temp string
	errs bytes.Buffer
}

func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{temp: t.TempDir()}
	p.Cmd = &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{"node-mounts"}, args...)}
	p.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+p.temp)
	p.Stderr = &p.errs
	return p
}

// left are the folders that the program has in temp.
func (p *program) left(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(p.temp, "*"))
	must(t, err)
	return left
}

// mustEnd waits for the program, and holds its end against what is wanted.
func (p *program) mustEnd(t *testing.T, status int, errs string) {
	t.Helper()
	var exit *exec.ExitError
	if err := p.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := p.ProcessState; got.ExitCode() != status || p.errs.String() != errs {
		t.Errorf("%v with %q, want %d with %q", got, p.errs.String(), status, errs)
	}
	if left := p.left(t); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// startHalfway starts a demo whose output stops in its first step, because the
// pipe is full, and waits until it has made its node.
func startHalfway(t *testing.T, p *program) (output *os.File) {
	t.Helper()
	output, in, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { output.Close() })
	const page = 4096
	size, err := unix.FcntlInt(in.Fd(), unix.F_SETPIPE_SZ, page)
	must(t, err)
	const room = 400 // for what is said before the first step has been shown
	_, err = in.Write(make([]byte, size-room))
	must(t, err)
	p.Stdout = in
	must(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	in.Close()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); len(p.left(t)) == 0; {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if must(t, err); info.Signo != 0 {
			_ = p.Wait()
			t.Fatalf("%v: %s", p.ProcessState, p.errs.String())
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("it makes no node")
		}
	}
	return output
}

func TestASignalEndsTheDemoWhichLeavesNothingBehind(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			p := newProgram(t, "demo")
			output := startHalfway(t, p)
			must(t, p.Process.Signal(signal))
			_, err := io.Copy(io.Discard, output)
			must(t, err)
			p.mustEnd(t, 1, "error: interrupted\n")
		})
	}
}

func TestAHangupThatIsIgnoredEndsNothing(t *testing.T) {
	p := newProgram(t, "demo")
	exe, err := os.Executable()
	must(t, err)
	p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$0" demo`, exe}
	output := startHalfway(t, p)
	must(t, p.Process.Signal(syscall.SIGHUP))
	shown, err := io.ReadAll(output)
	must(t, err)
	p.mustEnd(t, 0, "")
	if !strings.HasSuffix(string(shown), "Nothing is left behind.\n") {
		t.Errorf("it ends with %q", shown)
	}
}

func TestADemoThatNobodyReadsEndsQuietlyAndLeavesNothingBehind(t *testing.T) {
	p := newProgram(t, "demo")
	startHalfway(t, p).Close()
	p.mustEnd(t, 1, "")
	// The document is written at the end.
	p = newProgram(t, "demo", "-o", "json")
	output, in, err := os.Pipe()
	must(t, err)
	output.Close()
	p.Stdout = in
	must(t, p.Start())
	in.Close()
	p.mustEnd(t, 1, "")
}

func TestADemoThatCannotBeWrittenIsAnError(t *testing.T) {
	for _, form := range []string{"text", "json"} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		must(t, err)
		p := newProgram(t, "demo", "-o", form)
		p.Stdout = full
		must(t, p.Start())
		full.Close()
		p.mustEnd(t, 1, "error: cannot write what the demo shows: write /dev/stdout: no space left on device\n")
	}
}

func TestADemoThatCannotStartSaysWhyOnce(t *testing.T) {
	p := newProgram(t, "demo")
	p.Env = append(p.Env, "TMPDIR=/nowhere")
	must(t, p.Start())
	p.mustEnd(t, 1, "error: making a node: stat /nowhere: no such file or directory\n")

	// Built under a strict umask, nobody but root could run it.
	must(t, os.Chmod("/proc/self/exe", 0o755))
	p = newProgram(t, "demo")
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	must(t, p.Start())
	p.mustEnd(t, 1, "error: a mount namespace needs root's CAP_SYS_ADMIN: unshare: operation not permitted\n"+
		"hint: run it as root, in a container with --privileged\n")
}
