package lockfile

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// pathEnv makes the test binary a process that takes this file and is killed.
const pathEnv = "LOCKFILE_TEST_TAKE"

func TestMain(m *testing.M) {
	if path := os.Getenv(pathEnv); path != "" {
		f, err := Take(path)
		if err == nil {
			defer Release(f) // or it is garbage, and collected with its lock
		}
		fmt.Println(err)
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneProcessHasTheFileAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), pathEnv+"="+path)
	out, err := cmd.StdoutPipe()
	must(t, err)
	_, err = cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	says, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || says != "<nil>\n" {
		t.Errorf("it says %q, %v", says, err)
	}
	if _, err := Take(path); !errors.Is(err, ErrTaken) {
		t.Errorf("while it runs: %v", err)
	}
	if pid := holder(path); pid != cmd.Process.Pid {
		t.Errorf("process %d holds it, want %d", pid, cmd.Process.Pid)
	}
	if some, all := isKilled(cmd.Process.Pid); some || all {
		t.Errorf("it runs: %t, %t", some, all)
	}
	must(t, cmd.Process.Kill())
	f, err := Take(path) // it may take a moment to end
	must(t, err)
	_ = cmd.Wait() // it was killed
	if _, err := Take(path); !errors.Is(err, ErrTaken) {
		t.Errorf("while this process has it: %v", err)
	}
	Release(f)
	f, err = Take(path)
	must(t, err)
	Release(f)
}

// What a hanging call does to a process shows in test/system. Here the other process is
// one that runs, whose file is taken from it.
func TestAFileThatIsReplacedKeepsItsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	old, err := Take(path)
	must(t, err)
	defer Release(old)
	_, err = old.WriteString("a word")
	must(t, err)
	f, err := replace(path)
	must(t, err)
	defer Release(f)
	if content, err := os.ReadFile(path); err != nil || string(content) != "a word" {
		t.Errorf("it has %q, %v", content, err)
	}
	if _, err := Take(path); !errors.Is(err, ErrTaken) {
		t.Errorf("the file in its place: %v", err)
	}
}

func TestWhichThreadsEnd(t *testing.T) {
	const running = "Name:\tnode-mounts\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n"
	for status, want := range map[string]bool{
		running: false,
		"State:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n": true,
		"State:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n": true,
		"State:\tZ (zombie)\n": true,
		"":                     false,
		"SigPnd:\tnothing\n":   false,
	} {
		if got := ends(status); got != want {
			t.Errorf("%q: %t", status, got)
		}
	}
	own, err := os.ReadFile("/proc/self/status")
	if err != nil || ends(string(own)) {
		t.Errorf("this process ends (%v):\n%s", err, own)
	}
	if some, all := isKilled(-1); some || all {
		t.Error("nobody was killed")
	}
	dead := exec.Command("/proc/self/exe", "-test.run", "^$")
	must(t, dead.Start())
	for {
		// A zombie until it is waited for.
		if _, all := isKilled(dead.Process.Pid); all {
			break
		}
	}
	must(t, dead.Wait())
}
