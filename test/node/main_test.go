package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These tests make machines without Kubernetes in them: they need root and
// nothing that has to be built or fetched. All run in the lab.
func TestMain(m *testing.M) {
	os.Exit(Main(func() error { return nil }, m.Run))
}

// runGroup makes the cgroups of this run, which go with the test.
func runGroup(t *testing.T) {
	t.Helper()
	groups, err := hierarchies()
	must(t, err)
	for _, h := range groups {
		must(t, h.makeGroup(RunName()))
	}
	t.Cleanup(func() { must(t, removeRun(RunName())) })
}

// testMachine is a machine on an empty disk; its logs are in the second folder.
func testMachine(t *testing.T, change func(*machineSpec)) (m *machine, logs string) {
	t.Helper()
	runGroup(t)
	logs = t.TempDir()
	spec := machineSpec{Run: RunName(), Disk: t.TempDir(), BootID: bootID(), Folders: map[string]string{logDir: logs}}
	if change != nil {
		change(&spec)
	}
	m, err := startMachine(t.Context(), spec, filepath.Join(logs, "machine.log"))
	must(t, err)
	t.Cleanup(m.kill)
	return m, logs
}

func (m *machine) run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := (&Node{machine: m}).Run(t.Context(), argv...)
	must(t, err)
	return string(out)
}

// start starts a shell with the script, as a component.
func (m *machine) start(t *testing.T, name, script string) int {
	t.Helper()
	r, err := m.tell(t.Context(), order{Do: "start", Name: name, Args: []string{"/bin/sh", "-c", script}, Log: logDir + "/" + name + ".log"})
	must(t, err)
	return r.PID
}

func waitFor(t *testing.T, what string, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, Until(ctx, what, func(context.Context) error { return done() }))
}

func contains(file, text string) func() error {
	return func() error {
		b, err := os.ReadFile(file)
		if err == nil && !strings.Contains(string(b), text) {
			err = fmt.Errorf("%s holds %q", file, b)
		}
		return err
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// helper runs this binary again as if it were started anew, with one test of it.
func helper(t *testing.T, test string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(self, "-test.run=^"+test+"$", "-test.v")
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, roleEnv+"=") && !strings.HasPrefix(e, runEnv+"=") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}
