package privilege_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/privilege"
)

// droppedEnv makes the test binary drop its privileges and say what it has then.
const droppedEnv = "PRIVILEGE_TEST_DROPPED"

func TestMain(m *testing.M) {
	if os.Getenv(droppedEnv) != "" {
		runtime.LockOSThread()
		if err := privilege.Drop(2000, 3000); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		status, err := os.ReadFile("/proc/thread-self/status")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Print(string(status))
		if err := unix.Setresuid(0, 0, 0); err == nil {
			fmt.Println("it became root again")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestNothingIsLeft(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), droppedEnv+"=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, line := range []string{
		"Uid:\t2000\t2000\t2000\t2000", "Gid:\t3000\t3000\t3000\t3000", "Groups:\t \n", "NoNewPrivs:\t1",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
	} {
		if !strings.Contains(string(out), line) {
			t.Errorf("not %q:\n%s", line, out)
		}
	}
	if strings.Contains(string(out), "root again") {
		t.Error("it became root again")
	}
}

func TestNobodyBecomesRoot(t *testing.T) {
	for _, who := range [][2]int{{0, 1}, {1, 0}, {-1, 1}} {
		if err := privilege.Drop(who[0], who[1]); err == nil {
			t.Errorf("%v was taken", who)
		}
	}
}

func TestWhoseParentHasGoneIsTold(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { _ = unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0) }()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if err := privilege.EndWithParent(int(read.Fd())); err != nil {
		t.Errorf("while it is there: %v", err)
	}
	write.Close()
	if err := privilege.EndWithParent(int(read.Fd())); !errors.Is(err, privilege.ErrAlone) {
		t.Errorf("when it has gone: %v", err)
	}
}
