package checkout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/privilege"
)

// confinedName is the name under which this program becomes git: the child starts
// as itself, gives up everything in an order that Go's SysProcAttr does not offer,
// and then executes git.
const confinedName = "node-mounts-confined"

// The descriptors of the confined process.
const (
	specFD    = 3 // the spec, and then a pipe that hangs up when the agent has gone
	askFD     = 4 // where the credential helper asks; only with a credential
	programFD = 5 // this program, to be executed as the credential helper
)

// spec is what the confined process is told. It holds no secret.
type spec struct {
	Dir        string
	Argv       []string // Argv[0] is a path
	Env        []string
	UID, GID   int
	Hide       []string // folders to be covered
	Read       []string // Landlock: what may be read and executed beside the system's folders
	Write      []string // Landlock: where may be written
	FileBytes  uint64   // RLIMIT_FSIZE
	DataBytes  uint64   // RLIMIT_DATA, of each process
	WithAnswer bool     // askFD is open
}

// Main runs this process in one of the two parts that a program with a Store plays
// for itself, and says whether it was one: the confined process, and git's credential helper.
// A program that opens a Store calls it before anything else, and exits with code.
func Main(args []string) (code int, ours bool) {
	switch {
	case len(args) == 0:
		return 0, false
	case args[0] == confinedName:
		err := confine()
		fmt.Fprintf(os.Stderr, "%s: %v\n", confinedName, err)
		return confineFailed, true
	case args[0] == helperPath():
		if err := credentialHelper(args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "credential helper: %v\n", err)
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// confineFailed is the exit status of a process that did not become git. git itself
// has none above 129.
const confineFailed = 199

// confine does not return when it succeeds.
func confine() error {
	// What follows is done to this thread alone; execve ends the others, and the
	// process is what this thread is then.
	runtime.LockOSThread()
	pipe := os.NewFile(specFD, "spec")
	defer runtime.KeepAlive(pipe) // a file that is collected closes its descriptor
	var s spec
	if err := json.NewDecoder(pipe).Decode(&s); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	for _, dir := range s.Hide {
		if err := cover(dir); err != nil {
			return fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	if err := coverProcesses(); err != nil {
		return fmt.Errorf("cover the processes: %w", err)
	}
	keep := []int{}
	if s.WithAnswer {
		if err := keepProgram(); err != nil {
			return fmt.Errorf("keep the program: %w", err)
		}
		keep = append(keep, askFD, programFD)
	}
	if err := s.limit(); err != nil {
		return err
	}
	if err := s.landlock(); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if err := privilege.Drop(s.UID, s.GID); err != nil {
		return err
	}
	if err := os.Chdir(s.Dir); err != nil {
		return err
	}
	if err := privilege.EndWithParent(specFD); err != nil {
		return err
	}
	unix.CloseOnExec(specFD)
	for _, fd := range keep {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d: %w", fd, err)
		}
	}
	return fmt.Errorf("execute %s: %w", s.Argv[0], unix.Exec(s.Argv[0], s.Argv, s.Env))
}

// cover puts an empty filesystem over a folder, in this process's mount namespace.
func cover(dir string) error {
	// /var/run is a symbolic link on most systems.
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	on, err := beneath.OpenRoot(real)
	if err != nil {
		return err
	}
	defer on.Close()
	_, err = new(mnt.Kernel).NewTree(on)
	return err
}

// coverProcesses puts the processes of this pid namespace over those of the node: their
// arguments are everybody's to read, and of another clone, which the same user runs,
// the memory too.
func coverProcesses() error {
	table := new(mnt.Kernel)
	own, err := table.Mount(mnt.Filesystem{Type: "proc", Source: "proc"}, mnt.NoExec)
	if err != nil {
		return err
	}
	defer own.Close()
	on, err := beneath.OpenRoot("/proc")
	if err != nil {
		return err
	}
	defer on.Close()
	_, err = table.Attach(own, on)
	return err
}

// keepProgram opens this program at a descriptor that git's children inherit. Its
// path may not be one that an unprivileged user can walk, the descriptor is.
func keepProgram() error {
	fd, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Dup3(fd, programFD, unix.O_CLOEXEC)
}

func (s *spec) limit() error {
	unix.Umask(0o022)
	// A program that SIGXFSZ kills says nothing; one whose write fails says why. What is
	// ignored stays so across execve.
	signal.Ignore(unix.SIGXFSZ)
	for resource, value := range map[int]uint64{
		// 0 would still let the node's core_pattern hand a core, with a token in it, to a
		// program. 1 is too small for any core, and to the kernel means that none is made.
		unix.RLIMIT_CORE: 1, unix.RLIMIT_FSIZE: s.FileBytes, unix.RLIMIT_DATA: s.DataBytes, unix.RLIMIT_NOFILE: 1024,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("set limit %d: %w", resource, err)
		}
	}
	// The agent is among the last that a node short of memory ends. What it runs for
	// tenants is among the first, before their Pods.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return fmt.Errorf("be ended first where memory is short: %w", err)
	}
	return nil
}

func helperPath() string { return fmt.Sprintf("/proc/self/fd/%d", programFD) }

// With these protocols git speaks to a server, and with none to nobody: a repository
// may be one that git would fetch the rest of.
const (
	remoteProtocols = "GIT_ALLOW_PROTOCOL=https:ssh"
	noProtocols     = "GIT_ALLOW_PROTOCOL=none"
)

// environment is all that git and its children are told. LC_ALL=C keeps git's words
// the ones that errors.go knows.
func environment(home, config, temp string) []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"LC_ALL=C",
		"HOME=" + home,
		"XDG_CONFIG_HOME=" + home,
		"TMPDIR=" + temp,
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + config,
		noProtocols,
		"GIT_PROTOCOL_FROM_USER=0",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_CEILING_DIRECTORIES=" + filepath.Dir(home),
		"SSH_ASKPASS_REQUIRE=never",
	}
}

// quoteShell quotes for the shell that git hands core.sshCommand to.
func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
