package keeper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/privilege"
)

// confinedName is the name under which this program becomes a child: it starts as
// itself, gives up everything in an order that Go's SysProcAttr does not offer, and
// then executes the child's program.
const confinedName = "node-mounts-keeper-child"

// The descriptors that it starts with, beside standard input and output. It uses
// them by number: an *os.File that nothing refers to is closed.
const (
	linkFD    = 3 // a socket to the keeper: the spec comes, how it went goes
	programFD = 4 // what is executed
	filesFD   = 5 // and the following: the child's 3, 4, …
)

// spec is what the confined process is told. It may hold secrets: it travels over
// linkFD alone.
type spec struct {
	UID, GID  int
	Cache     string // to be made; "" none
	Remove    string // to be removed, and then nothing is executed
	Args, Env [][]byte
	Files     int
}

// executing is what the confined process says last before it becomes the program. The
// link is closed by execve; what comes after it is why that failed.
const executing = "+"

// confineFailed is the exit status of a process that did not become the program.
const confineFailed = 199

// Main runs this process as a child to be, if it was started as one, and says whether
// it was. A program with a Server calls it before anything else, and exits with code.
func Main(args []string) (code int, ours bool) {
	if len(args) == 0 || args[0] != confinedName {
		return 0, false
	}
	// What follows is done to this thread; execve ends the others, and the process is
	// what this thread is then.
	runtime.LockOSThread()
	link := linkFD
	if err := confine(&link); err != nil {
		// A keeper that has gone needs no answer.
		_ = unix.Send(link, []byte(err.Error()), unix.MSG_NOSIGNAL)
		return confineFailed, true
	}
	return 0, true
}

// confine returns only from a failure, and from a removal. It may move the link.
func confine(link *int) error {
	s, err := readSpec()
	if err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	first := filesFD + s.Files
	if s.Remove != "" {
		first = linkFD
	}
	if err := closeOnExec(first); err != nil {
		return err
	}
	if err := s.becomeNobody(); err != nil {
		return err
	}
	if s.Remove != "" {
		return remove(s.Remove)
	}
	if s.Cache != "" {
		if err := makeCache(s.Cache, s.UID); err != nil {
			return err
		}
	}
	program, err := s.arrange(link)
	if err != nil {
		return fmt.Errorf("arrange the descriptors: %w", err)
	}
	if err := unix.Send(*link, []byte(executing), unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("tell the keeper: %w", err)
	}
	// Go's Exec gives back the limit of descriptors that Go has raised.
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", program), asStrings(s.Args), asStrings(s.Env))
	return fmt.Errorf("execute the program: %w", explain(err))
}

// readSpec reads one line.
func readSpec() (*spec, error) {
	var all []byte
	part := make([]byte, 32<<10)
	for !bytes.HasSuffix(all, []byte("\n")) {
		n, err := unix.Read(linkFD, part)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, errors.New("the keeper has gone")
		}
		all = append(all, part[:n]...)
	}
	s := new(spec)
	return s, json.Unmarshal(all, s)
}

// closeOnExec marks every descriptor from first on. Go's own are; one that the keeper
// was started with need not be.
func closeOnExec(first int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// becomeNobody leaves the process what its program is to have, without a way back.
func (s *spec) becomeNobody() error {
	unix.Umask(0o022)
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// 0 would still let the node's core_pattern hand a core, with a session in it, to a
	// program. 1 is too small for any core, and to the kernel means that none is made.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("set the limit of core files: %w", err)
	}
	// The keeper is among the last that a node short of memory ends: all its mounts would
	// go with it. A child is among the first, before Pods. Raising it needs no capability.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return fmt.Errorf("be ended first where memory is short: %w", err)
	}
	if err := privilege.Drop(s.UID, s.GID); err != nil {
		return err
	}
	return privilege.EndWithParent(linkFD)
}

// arrange moves the child's files to where it expects them, and link and program out
// of their way, to numbers that execve closes.
func (s *spec) arrange(link *int) (program int, err error) {
	beyond := filesFD + s.Files
	moved, err := unix.FcntlInt(linkFD, unix.F_DUPFD_CLOEXEC, beyond)
	if err != nil {
		return 0, err
	}
	*link = moved
	if program, err = unix.FcntlInt(programFD, unix.F_DUPFD_CLOEXEC, beyond); err != nil {
		return 0, err
	}
	const first = 3 // the child's
	for i := range s.Files {
		if err := unix.Dup3(filesFD+i, first+i, 0); err != nil {
			return 0, err
		}
	}
	for fd := first + s.Files; fd < beyond; fd++ {
		if err := unix.Close(fd); err != nil {
			return 0, err
		}
	}
	return program, nil
}

// explain adds what to do to an error of execve.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.ETXTBSY):
		return fmt.Errorf("%w: somebody has it open for writing", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the child's user may not execute it, or its filesystem is mounted noexec", err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: its dynamic linker is not in the keeper's image", err)
	}
	return err
}

// makeCache makes the child's folder, as the child's user.
func makeCache(path string, uid int) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("make the cache: %w", err)
		}
		if int(st.Uid) != uid {
			return fmt.Errorf("make the cache: %s belongs to user %d: choose another name", filepath.Base(path), st.Uid)
		}
		if err := remove(path); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	if err != nil {
		return fmt.Errorf("make the cache: %w", err)
	}
	return nil
}

// remove removes a folder that a child has left, as the child's user. The folder that
// it lies in cannot be opened by that user, as os.RemoveAll would.
func remove(path string) error {
	err := removeInside(path)
	if errors.Is(err, unix.EACCES) {
		// A folder without its owner's permissions. Only its owner runs here: what a link
		// could lead to, the child could have changed itself.
		_ = filepath.WalkDir(path, func(p string, d os.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(p, 0o700)
			}
			return nil
		})
		err = removeInside(path)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func removeInside(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return err
}

func asStrings(list [][]byte) []string {
	all := make([]string, len(list))
	for i, b := range list {
		all[i] = string(b)
	}
	return all
}
