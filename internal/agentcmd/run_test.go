package agentcmd

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/datalayer/node-mounts/internal/advice"
)

// stuckEnv makes the test binary a command that does not end in order.
const stuckEnv = "AGENTCMD_TEST_STUCK"

func TestMain(m *testing.M) {
	if os.Getenv(stuckEnv) != "" {
		stuck()
	}
	os.Exit(m.Run())
}

// stuck is a command that does not end with its context.
func stuck() {
	ctx, stop := untilSignal()
	defer stop()
	fmt.Println("started")
	<-ctx.Done()
	fmt.Println("stopping")
	select {}
}

func TestASecondSignalEndsTheProcessAtOnce(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), stuckEnv+"=1")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says := bufio.NewScanner(stdout)
	for _, step := range []struct {
		line   string
		signal os.Signal
	}{{"started", syscall.SIGTERM}, {"stopping", syscall.SIGINT}} {
		if !says.Scan() || says.Text() != step.line {
			t.Errorf("it says %q, want %q", says.Text(), step.line)
		}
		if err := cmd.Process.Signal(step.signal); err != nil {
			t.Fatal(err)
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != advice.StatusError {
		t.Errorf("it ended with %v", err)
	}
}

// listener holds a port and returns it.
func listener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{"kubeconfig": `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: ` + server + `}}]
users: [{name: test, user: {}}]
`})
	return filepath.Join(dir, "kubeconfig")
}
