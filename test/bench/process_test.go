package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/simnode"
)

// process is a program that serves Pods: the agent, or what it is compared with.
type process struct {
	b     *testing.B
	cmd   *exec.Cmd
	begun chan struct{} // it said so
	done  chan struct{} // it has ended

	mu   sync.Mutex
	last bytes.Buffer // what it has said
}

// build compiles a program as it is shipped: this binary, with everything that tests
// need in it, would be larger in memory and slower to start.
func build(b *testing.B, program string) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), filepath.Base(program))
	out, err := exec.Command("go", "build", "-o", path, "github.com/datalayer/node-mounts/"+program).CombinedOutput()
	if err != nil {
		b.Fatalf("building %s: %v\n%s", program, err, out)
	}
	return path
}

// startAgent starts the agent of a node. Its cap of mounts is raised: the
// benchmark has other mounts and Pods beside those it measures.
func startAgent(b *testing.B, path string, n *simnode.Node, config string, more ...string) *process {
	b.Helper()
	args := []string{
		"--node-id", nodeName, "--shared-root", n.Claim, "--root", n.Root, "--kubelet-dir", n.Kubelet,
		"--namespace", namespace, "--kubeconfig", config, "--health-port", "0", "--max-mounts-per-node", "4096",
	}
	return startProcess(b, exec.Command(path, append(args, more...)...), "watching the node's pods")
}

// startBare starts the responder that mounts nothing.
func startBare(b *testing.B, config string) *process {
	b.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+config)
	return startProcess(b, cmd, watching)
}

// startProcess starts cmd and waits until it says on standard error that it has
// begun.
func startProcess(b *testing.B, cmd *exec.Cmd, begun string) *process {
	b.Helper()
	p := &process{b: b, cmd: cmd, begun: make(chan struct{}), done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go p.run(begun, started)
	must(b, <-started)
	b.Cleanup(p.end)
	select {
	case <-p.begun:
	case <-p.done:
		b.Fatalf("%s ended:\n%s", cmd.Path, p.said())
	case <-time.After(patience):
		b.Fatalf("%s does not begin:\n%s", cmd.Path, p.said())
	}
	return p
}

// logHeld bounds what is kept of a process's log, in bytes: its begin tells more
// than its end.
const logHeld = 64 << 10

// run starts the process and follows it to its end. It keeps its thread: the death
// signal of a child is that of the thread which started it.
func (p *process) run(begun string, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pipe, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	started <- err
	if err != nil {
		return
	}
	defer close(p.done)
	waiting := true
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if waiting && strings.Contains(lines.Text(), begun) {
			waiting = false
			close(p.begun)
		}
		// The agent tells of every grant; only what went wrong is worth keeping.
		if strings.Contains(lines.Text(), `"level":"INFO"`) {
			continue
		}
		p.mu.Lock()
		if p.last.Len() < logHeld {
			p.last.WriteString(lines.Text() + "\n")
		}
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // how it ended is of no interest: end kills it
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.String()
}

// end kills it. What it mounted stays.
func (p *process) end() {
	_ = p.cmd.Process.Kill() // it may have been ended before
	<-p.done
	if text := p.said(); p.b.Failed() && text != "" {
		p.b.Logf("%s said:\n%s", p.cmd.Path, text)
	}
}

// memory is what the process has in memory, in bytes: now, and at most so far.
func (p *process) memory() (now, peak int64) {
	p.b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(p.b, err)
	value := func(name string) int64 {
		_, after, ok := strings.Cut(string(text), "\n"+name+":")
		number, _, kb := strings.Cut(strings.TrimLeft(after, " \t"), " kB")
		n, err := strconv.ParseInt(number, 10, 64)
		if !ok || !kb || err != nil {
			p.b.Fatalf("no %s in:\n%s", name, text)
		}
		return n << 10
	}
	return value("VmRSS"), value("VmHWM")
}

// cpu is the processor time that the process has used, to 10 ms.
func (p *process) cpu() time.Duration {
	p.b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	must(p.b, err)
	// Fields 14 and 15 of proc_pid_stat(5), counted behind the name. The unit is
	// USER_HZ, which is 100 on every architecture that Go runs Linux on.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		must(p.b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// kill ends it as a crash does.
func (p *process) kill() {
	p.b.Helper()
	must(p.b, p.cmd.Process.Signal(syscall.SIGKILL))
	<-p.done
}
