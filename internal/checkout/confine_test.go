package checkout_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/checkout"
)

// probeName is a name under which this program is a git that tries its limits.
const probeName = "git-probe"

// newProbe is that git.
func newProbe(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(shortDir(t), probeName)
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	return program
}

// tried is what the probe found.
type tried struct {
	Limits map[string]unix.Rlimit
	Raised []string // the limits that it could raise again
	File   int64    // how large a file became
	Write  string   // why it became no larger
	Memory string   // why there was no more memory
	Files  int      // how many files could be open
	Open   string   // why not more
	OOM    string   // oom_score_adj
	Seen   int      // processes
}

// resources are the limits of a process of git.
func resources() map[string]int {
	return map[string]int{"core": unix.RLIMIT_CORE, "file": unix.RLIMIT_FSIZE, "data": unix.RLIMIT_DATA, "files": unix.RLIMIT_NOFILE}
}

func probe(args []string) int {
	if args[0] == "version" {
		fmt.Println("git version 2.99.0")
		return 0
	}
	out := tried{Limits: map[string]unix.Rlimit{}}
	for name, resource := range resources() {
		var limit unix.Rlimit
		if err := unix.Prlimit(0, resource, nil, &limit); err != nil {
			return 10
		}
		out.Limits[name] = limit
		more := unix.Rlimit{Cur: limit.Max + 1, Max: limit.Max + 1}
		if unix.Prlimit(0, resource, &more, nil) == nil {
			out.Raised = append(out.Raised, name)
		}
	}
	if data, err := unix.Mmap(-1, 0, memory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		out.Memory = nameOf(err)
	} else {
		_ = unix.Munmap(data)
	}
	file, err := os.Create("large")
	if err != nil {
		return 11
	}
	for block := make([]byte, 64<<10); err == nil && out.File <= 2*fileSize; {
		var n int
		n, err = file.Write(block)
		out.File += int64(n)
	}
	out.Write = nameOf(err)
	for err = nil; err == nil && out.Files < 5000; out.Files++ {
		_, err = unix.Open("/dev/null", unix.O_RDONLY, 0)
	}
	out.Open = nameOf(err)
	// Room for what follows.
	_ = file.Close()
	_ = unix.CloseRange(100, 10_000, 0)
	adjustment, _ := os.ReadFile("/proc/self/oom_score_adj")
	out.OOM = strings.TrimSpace(string(adjustment))
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	out.Seen = len(lines)
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return 12
	}
	return 0
}

func nameOf(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	return ""
}

const (
	fileSize = 3 << 20
	memory   = 200 << 20
)

// tries runs the probe as a job runs git.
func (w *world) tries() (out tried) {
	w.t.Helper()
	w.open(nil, func(c *checkout.Config) {
		c.Git, c.Limits.Bytes, c.Limits.Memory = newProbe(w.t), fileSize, memory
	})
	said := checkout.RunJobForTest(w.t, w.store, "try")
	if err := json.Unmarshal([]byte(said), &out); err != nil {
		w.t.Fatalf("%v: %s", err, said)
	}
	return out
}

func TestTheLimitsOfGitHold(t *testing.T) {
	got := newWorld(t).tries()
	// A core file of a process that knows a token must not be: 1 is what the kernel
	// takes for "none" also where a core goes to a program.
	want := map[string]unix.Rlimit{
		"core": {Cur: 1, Max: 1}, "file": {Cur: fileSize, Max: fileSize}, "data": {Cur: memory, Max: memory}, "files": {Cur: 1024, Max: 1024},
	}
	if !maps.Equal(got.Limits, want) || len(got.Raised) != 0 {
		t.Errorf("limits %v, expected %v; raised again: %v", got.Limits, want, got.Raised)
	}
	if got.File != fileSize || got.Write != "EFBIG" {
		t.Errorf("a file of %d bytes was written, and then %q", got.File, got.Write)
	}
	if got.Memory != "ENOMEM" {
		t.Errorf("memory beyond the limit: %q", got.Memory)
	}
	if got.Files < 900 || got.Files > 1024 || got.Open != "EMFILE" {
		t.Errorf("%d files were opened, and then %q", got.Files, got.Open)
	}
}

// The agent is what a node ends last. What it starts for tenants goes first.
func TestWhereMemoryIsShortGitGoesFirst(t *testing.T) {
	if got := newWorld(t).tries().OOM; got != "1000" {
		t.Errorf("oom_score_adj is %s", got)
	}
}

// The arguments of every process are readable for everybody, and the agent's /proc is
// the whole node's.
func TestGitSeesNoProcessButItsOwn(t *testing.T) {
	if n := newWorld(t).tries().Seen; n != 1 {
		t.Errorf("git sees %d processes, of %d here", n, len(processes()))
	}
}

func TestTheLogSaysWhereThereIsNoLandlock(t *testing.T) {
	w := newWorld(t)
	w.open(nil)
	if said := strings.Contains(w.log.String(), "Landlock"); said == hasLandlock() {
		t.Errorf("the kernel has it: %v, and the log says %q", hasLandlock(), w.log.String())
	}
}

func hasLandlock() bool {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0 && abi >= 2
}

// fencelessVariable holds the errno by which the kernel says that it has no Landlock.
const fencelessVariable = "NODE_MOUNTS_TEST_FENCELESS"

// A kernel before 5.13 does not know the call, and one that was started without
// Landlock refuses it. Here a filter answers in the kernel's place, and what holds with
// the fence is asked again without it.
func TestWithoutLandlockTheRestHolds(t *testing.T) {
	if os.Getenv(fencelessVariable) != "" {
		t.Fatal("the tests that run without Landlock run this one")
	}
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EOPNOTSUPP} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			again := []string{
				"TestAPrivateRepositoryOpensToItsCredentialAlone", "TestTheTokenIsNowhere", "TestGitSeesNothingOfTheAgent",
				"TestGitSeesNoProcessButItsOwn", "TestTheLimitsOfGitHold", "TestTheLogSaysWhereThereIsNoLandlock",
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run", "^("+strings.Join(again, "|")+")$")
			cmd.Env = append(os.Environ(), fencelessVariable+"="+strconv.Itoa(int(errno)))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
			for _, name := range again {
				if !strings.Contains(string(out), "--- PASS: "+name+" ") {
					t.Errorf("%s did not pass", name)
				}
			}
		})
	}
}

// refuseLandlock has the first call of Landlock fail, for this process and all that it
// starts.
func refuseLandlock(errno string) error {
	number, err := strconv.ParseUint(errno, 10, 16)
	if err != nil {
		return err
	}
	const load, equal, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	program := []unix.SockFilter{
		{Code: load, K: 0}, // the number of the call
		{Code: equal, K: unix.SYS_LANDLOCK_CREATE_RULESET, Jf: 1},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(number)},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if failed != 0 {
		return fmt.Errorf("seccomp: %w", failed)
	}
	if hasLandlock() {
		return errors.New("the filter refuses nothing")
	}
	return nil
}
