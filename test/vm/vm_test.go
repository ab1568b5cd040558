package vm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/test/vm"
)

// kernelsEnv is the folder that test/vm/kernels has filled.
const kernelsEnv = "NODE_MOUNTS_KERNELS"

func TestMain(m *testing.M) {
	vm.Init()
	if len(os.Args) == 2 && os.Args[1] == "tell" {
		tell()
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// tell runs in the machine.
func tell() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		fmt.Println(err)
	}
	fmt.Println("kernel", unix.ByteSliceToString(u.Release[:]))
	text, err := os.ReadFile("/srv/deep/note")
	fmt.Println("note", string(text), err)
	filesystems, err := os.ReadFile("/proc/filesystems")
	fmt.Println("fuse", strings.Contains(string(filesystems), "fuse"), err)
}

func kernels(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(kernelsEnv)
	if dir == "" {
		t.Fatalf("%s is not set: run `make e2e`", kernelsEnv)
	}
	return dir
}

func TestACommandRunsOnAnotherKernelAndItsExitStatusComesBack(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	if err := os.MkdirAll(filepath.Join(tree, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "deep", "note"), []byte("carried"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	got, err := vm.Machine{
		Kernel: filepath.Join(kernels(t), "5.10"), Modules: []string{"fuse"},
		Files:   map[string]string{"/bin/tell": self, "/srv": tree},
		Command: []string{"/bin/tell", "tell"},
	}.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got.Exit != 3 {
		t.Errorf("exit status %d, want 3\n%s", got.Exit, got.Output)
	}
	for _, want := range []string{"kernel 5.10.", "note carried <nil>", "fuse true <nil>"} {
		if !strings.Contains(got.Output, want) {
			t.Errorf("the output has no %q:\n%s", want, got.Output)
		}
	}
}

func TestAMachineThatDoesNotBootIsAnErrorWithItsConsole(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := vm.Machine{
		Kernel: filepath.Join(kernels(t), "5.10"), Command: []string{"/bin/none"}, MemoryMiB: 16,
	}.Run(ctx)
	if err == nil {
		t.Fatal("a machine without room for its kernel ran a command")
	}
	if _, err := (vm.Machine{Kernel: t.TempDir(), Command: []string{"x"}}).Run(ctx); err == nil {
		t.Error("a machine without a kernel ran")
	}
	if _, err := (vm.Machine{Kernel: filepath.Join(kernels(t), "5.10"), Modules: []string{"none"}, Command: []string{"x"}}).Run(ctx); err == nil || !strings.Contains(err.Error(), "no module none") {
		t.Errorf("a module that is not there: %v", err)
	}
}
