package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// machine is the lab's handle on the machine's first process.
type machine struct {
	cmd   *exec.Cmd
	input io.Closer
	in    *json.Encoder
	out   *json.Decoder
	turn  chan struct{} // holds one: the right to give an order
	ended chan struct{}
}

// startMachine starts a machine and waits until its first process takes orders.
func startMachine(ctx context.Context, spec machineSpec, log string) (*machine, error) {
	cmd := exec.Command(self)
	cmd.Args = []string{"machine"}
	cmd.Env = append(os.Environ(), roleEnv+"="+roleMachine)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		// A Ctrl-C is for the tests, which end the machine.
		Setsid: true,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd.Stderr = file
	m := &machine{cmd: cmd, input: in, in: json.NewEncoder(in), out: json.NewDecoder(out), turn: make(chan struct{}, 1), ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal comes when the thread that forked ends. This one ends with
		// the machine, because it is never unlocked.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
			close(m.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting the machine: %w", err)
	}
	m.turn <- struct{}{}
	// The specification is the first line, and the first report answers it.
	if _, err := m.tell(ctx, spec); err != nil {
		m.kill()
		text, _ := os.ReadFile(log)
		return nil, fmt.Errorf("starting the machine: %w: %s", err, lastLine(text))
	}
	return m, nil
}

// tell sends one line and waits for its report. Where the context ends first, the
// turn passes on with the report: an answer is never taken for another's.
func (m *machine) tell(ctx context.Context, line any) (report, error) {
	select {
	case <-m.turn:
	case <-ctx.Done():
		return report{}, ctx.Err()
	}
	var r report
	done := make(chan error, 1)
	go func() {
		err := m.in.Encode(line)
		if err == nil {
			err = m.out.Decode(&r)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			err = errors.New("the machine has ended")
		}
		done <- err
		m.turn <- struct{}{}
	}()
	select {
	case err := <-done:
		if err == nil && r.Error != "" {
			err = errors.New(r.Error)
		}
		return r, err
	case <-ctx.Done():
		return report{}, ctx.Err()
	}
}

func (m *machine) pid() int { return m.cmd.Process.Pid }

// kill ends the first process, and so all of them: the kernel reports its end
// when no other is left in its pid namespace.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill() // it may have ended
	<-m.ended
}

// Run runs a program in the machine and returns what it writes on standard
// output. The error says what it wrote on standard error.
func (n *Node) Run(ctx context.Context, argv ...string) ([]byte, error) {
	return n.RunWith(ctx, nil, argv...)
}

// RunWith is Run with a standard input.
func (n *Node) RunWith(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
	// The program is no child of nsenter's parent, and must not outlive it.
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{
		"--target", strconv.Itoa(n.machine.pid()), "--mount", "--pid", "--ipc", "--cgroup", "--",
		"setpriv", "--pdeathsig", "KILL", "--",
	}, argv...)...)
	cmd.Env = []string{"PATH=" + machinePath(), "HOME=/root", "LANG=C.UTF-8"}
	cmd.Stdin = stdin
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), errors.Join(err, ctx.Err()), strings.TrimSpace(problems.String()))
	}
	return out.Bytes(), nil
}

// importImages gives containerd the images.
func (n *Node) importImages(ctx context.Context) error {
	for _, name := range n.o.Images {
		if err := n.Import(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Import gives containerd an OCI archive, a file of the lab.
func (n *Node) Import(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := n.RunWith(ctx, f, "ctr", "-n", "k8s.io", "images", "import", "-"); err != nil {
		return fmt.Errorf("importing %s: %w", archive, err)
	}
	names, err := n.Run(ctx, "ctr", "-n", "k8s.io", "images", "ls", "-q")
	if err != nil {
		return err
	}
	// containerd 1.6 shows kubelet only images with this label, which its own pull sets.
	for _, name := range strings.Fields(string(names)) {
		if _, err := n.Run(ctx, "ctr", "-n", "k8s.io", "images", "label", name, "io.cri-containerd.image=managed"); err != nil {
			return err
		}
	}
	return nil
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
