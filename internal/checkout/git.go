package checkout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/bug"
)

// run is one run of git, confined.
type run struct {
	spec   spec
	answer *answerer // nil: no question is answered
	signer *signer   // nil: no ssh key
	out    io.Writer
}

// tail keeps the end of an output: git says last why it gave up.
type tail struct {
	kept []byte
}

const maxTail = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if excess := len(t.kept) - maxTail; excess > 0 {
		t.kept = append(t.kept[:0], t.kept[excess:]...)
	}
	return len(p), nil
}

// do runs git to its end, or to the end of ctx, and returns what it printed on
// standard error. When it returns, no process of git is left.
func (r *run) do(ctx context.Context) (stderr string, err error) {
	message, err := json.Marshal(r.spec)
	if err != nil {
		return "", err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer write.Close()
	var words tail
	// The program itself, also when its file has been replaced since it started.
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{confinedName}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = r.out, &words
	cmd.ExtraFiles = []*os.File{read} // specFD
	if r.answer != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, r.answer.child) // askFD
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:       true,
		Pdeathsig:    syscall.SIGKILL,
		Unshareflags: unix.CLONE_NEWNS, // and, by Go, every mount made private
		// The kernel ends every process of a pid namespace with its first one: a kill
		// reaches git's children whatever they did to their process group.
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
	}
	// An output that somebody keeps open must not hold the job.
	cmd.WaitDelay = 10 * time.Second

	finished := make(chan error, 1)
	go func() {
		// The parent's end is that of the thread that started the child. This one lives
		// until the child has ended; a thread of the pool may end before.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		finished <- bug.Catch(func() error {
			err := cmd.Start()
			read.Close()
			if err != nil {
				return fmt.Errorf("start git: %w", err)
			}
			if r.signer != nil {
				r.signer.started(cmd.Process.Pid)
			}
			// A child that ended before it read is explained by Wait.
			_, _ = write.Write(message)
			return cmd.Wait()
		})
	}()
	err = <-finished
	return string(words.kept), err
}

// git runs one command of git in the job's repository. Its standard output goes to
// out, which may be nil.
func (j *job) git(ctx context.Context, out io.Writer, args ...string) error {
	return j.start(ctx, out, false, args...)
}

// gitRemote runs one command that talks to the server.
func (j *job) gitRemote(ctx context.Context, out io.Writer, args ...string) error {
	return j.start(ctx, out, true, args...)
}

func (j *job) start(ctx context.Context, out io.Writer, remote bool, args ...string) error {
	limits := j.store.config.Limits
	r := run{out: out, spec: spec{
		Dir:  j.dir("work"),
		Argv: append([]string{j.store.config.Git}, args...),
		Env:  environment(j.dir("home"), j.dir("gitconfig"), j.dir("work")),
		UID:  j.store.config.User, GID: j.store.config.Group,
		Hide: j.store.config.Hide,
		Read: []string{j.path}, Write: []string{j.dir("work")},
		FileBytes: uint64(limits.Bytes), DataBytes: uint64(limits.Memory),
	}}
	if remote {
		r.spec.Env[slices.Index(r.spec.Env, noProtocols)] = remoteProtocols
	}
	if remote && j.credential != nil {
		if err := j.lend(&r); err != nil {
			return storage("prepare the credential", err)
		}
		defer r.close()
	}
	stderr, err := r.do(ctx)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return j.explain(remote, stderr, err)
}

// lend gives a run of git the use of the job's credential.
func (j *job) lend(r *run) (err error) {
	if j.remote.transport == overSSH {
		r.signer, err = serveKey(j.path, r.spec.UID, r.spec.GID, j.credential, &j.used)
		return err
	}
	r.answer, err = answer(j.remote, j.credential, &j.used)
	r.spec.WithAnswer = true
	return err
}

func (r *run) close() {
	if r.answer != nil {
		r.answer.close()
	}
	if r.signer != nil {
		r.signer.close()
	}
}

func (j *job) explain(remote bool, stderr string, err error) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case !ok:
		return &Error{Class: Failed, Message: "git could not be started on this node", Detail: err.Error(), Err: err, Node: true}
	case exit.ExitCode() == confineFailed || strings.HasPrefix(stderr, confinedName+":"):
		return &Error{Class: Failed, Message: "git could not be confined on this node", Detail: lastWords(stderr, ""), Err: err, Node: true}
	}
	// The node's paths are nobody's business.
	stderr = strings.ReplaceAll(stderr, j.path+"/", "")
	// It may be so no longer: git removes what it could not write, and others make way.
	if saysFull(stderr) && (j.short.Load() || j.store.full()) {
		return &Error{Class: DiskFull, Message: messageDiskFull, Err: err}
	}
	e := classify(stderr, !remote, j.credential.secrets(), err)
	switch {
	case e.Class == AuthRefused && j.credential == nil && j.remote.transport == overHTTPS:
		e.Message = "the server asks for a credential, or has no such repository: name a Secret if it is private"
	case e.Class == TooLarge && e.Message == "":
		e.Message = j.store.config.Limits.tooManyBytes()
	}
	return e
}
