package checkout

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/bug"
)

// The phases of a clone, in their order.
const (
	PhaseWaiting    = "waiting"
	PhaseResolving  = "resolving"
	PhaseProving    = "proving" // that a credential opens a checkout that is there
	PhaseFetching   = "fetching"
	PhaseMeasuring  = "measuring"
	PhaseWriting    = "writing"
	PhasePublishing = "publishing"
)

// clone brings the revision into work/tree.
func (j *job) clone(ctx context.Context) error {
	ctx, stop := j.watch(ctx)
	defer stop()
	if err := j.store.admit(ctx, j); err != nil {
		return err
	}
	j.enter(PhaseFetching)
	if err := j.fetch(ctx); err != nil {
		return err
	}
	j.enter(PhaseMeasuring)
	if err := j.measureTree(ctx); err != nil {
		return err
	}
	j.enter(PhaseWriting)
	return j.git(ctx, nil, "-C", "tree", "checkout", "--quiet", "--detach", "--force", "--no-recurse-submodules", j.revision, "--")
}

// fetch asks for the commit itself. Some servers give none that is not the end of a
// branch unless they are told to; from those the branches and tags are fetched, deeper
// and deeper, until the commit is among what came. options narrow what comes with the
// commit.
func (j *job) fetch(ctx context.Context, options ...string) error {
	err := j.ask(ctx, func(url string) []string { return fetchArguments("--depth=1", options, url, j.revision) })
	refused, ok := errors.AsType[*Error](err)
	if !ok || refused.Class != NotFound || !j.givesTipsAlone(refused) {
		return err
	}
	for _, depth := range []string{"--depth=50", "--depth=1000", "--unshallow"} {
		if err := j.gitRemote(ctx, nil, fetchArguments(depth, options, j.url,
			"+refs/heads/*:refs/fetched/heads/*", "+refs/tags/*:refs/fetched/tags/*")...); err != nil {
			return err
		}
		if j.hasCommit(ctx) == nil {
			return nil
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		// Without this file the whole history is here.
		if _, err := os.Lstat(j.dir("work/tree/.git/shallow")); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return fail(NotFound, "the server gives no branch or tag that has this commit")
}

// givesTipsAlone tells a server that refuses a commit by its id from one that does not
// have it. Of the old protocol it is git here that says so, unless the server gives
// hidden tips: then, over ssh, the server's refusal is the same as for a commit that is
// nowhere (over https it looks further). JGit's, such as Gerrit's, refuses so in every
// protocol.
func (j *job) givesTipsAlone(refused *Error) bool {
	return strings.Contains(refused.Detail, "unadvertised object") ||
		strings.Contains(refused.Detail, refusedWant) ||
		j.remote.transport == overSSH && strings.Contains(refused.Detail, "not our ref")
}

func (j *job) hasCommit(ctx context.Context) error {
	return j.git(ctx, nil, "-C", "tree", "cat-file", "-e", j.revision+"^{commit}")
}

func fetchArguments(depth string, options []string, url string, wants ...string) []string {
	arguments := []string{"-C", "tree", "fetch", depth}
	arguments = append(arguments, options...)
	// Progress is a sign of life where a server thinks for long before it sends.
	arguments = append(arguments, "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance", "--progress", "--", url)
	return append(arguments, wants...)
}

// prove has the server give this commit to this credential. That it names its branches
// to it proves nothing: some name them to anybody, and some give each branch to others.
// A server that knows filters sends the commit alone, another one all of it again.
func (j *job) prove(ctx context.Context) error {
	ctx, stop := j.watch(ctx)
	defer stop()
	j.enter(PhaseProving)
	if err := j.fetch(ctx, "--filter=tree:0"); err != nil {
		return err
	}
	if err := j.hasCommit(ctx); err != nil {
		return cmp.Or(context.Cause(ctx), error(fail(NotFound, "the server does not give the commit to this credential")))
	}
	return nil
}

// ask is the first question to the server. Some redirect an address without ".git"
// to the one with it, and a redirect is not followed: that one is tried here, on
// the host that was checked.
func (j *job) ask(ctx context.Context, arguments func(url string) []string) error {
	j.url = j.remote.url
	err := j.askAnyAddress(ctx, arguments)
	if ClassOf(err) != Refused || strings.HasSuffix(strings.TrimSuffix(j.url, "/"), ".git") {
		return err
	}
	// For the questions after this one. The key of the checkout stays that of the
	// address that was asked for.
	j.url = strings.TrimSuffix(j.url, "/") + ".git"
	return j.gitRemote(ctx, nil, arguments(j.url)...)
}

// askAnyAddress asks at the first address that answers, and leaves it pinned. curl does
// so by itself, ssh is told one address.
func (j *job) askAnyAddress(ctx context.Context, arguments func(url string) []string) error {
	err := j.gitRemote(ctx, nil, arguments(j.url)...)
	if j.remote.transport != overSSH {
		return err
	}
	for _, next := range j.addresses[1:] {
		// A server that has asked for the key is the server.
		if ClassOf(err) != Unreachable || j.used.Load() || ctx.Err() != nil {
			return err
		}
		if err := os.WriteFile(j.dir("ssh_config"), []byte(j.sshConfig(next)), 0o644); err != nil {
			return storage("prepare the checkout", err)
		}
		err = j.gitRemote(ctx, nil, arguments(j.url)...)
	}
	return err
}

// measureTree adds up what the checkout will take before a byte of it is written: a
// few kilobytes of objects can describe thousands of millions of files.
func (j *job) measureTree(ctx context.Context) error {
	meter := treeMeter{limits: j.store.config.Limits}
	fetched, err := measure(j.dir("work"))
	if err != nil {
		return storage("measure the checkout", err)
	}
	meter.usage = fetched
	// The first process of a pid namespace is not killed by SIGPIPE, and git goes on
	// after a failed write: nothing else would end the listing.
	ctx, meter.stop = context.WithCancel(ctx)
	defer meter.stop()
	err = j.git(ctx, &meter, "-C", "tree", "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", j.revision)
	return cmp.Or(meter.refusal, err)
}

// treeMeter reads `ls-tree -r -t -l -z`, which has the folders too: "mode type id size<TAB>path<NUL>".
type treeMeter struct {
	usage

	limits  Limits
	refusal error // why the tree is not written out
	stop    context.CancelFunc
	line    []byte // what has come of one
}

// maxTreeLine is more than what stands before a path takes, and the longest path that
// a program can name.
const maxTreeLine = 128 + unix.PathMax

func (t *treeMeter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte{0})
		if len(t.line)+len(part) > maxTreeLine {
			return 0, t.refuse(fail(Invalid, messageLongPath))
		}
		t.line = append(t.line, part...)
		if !ended {
			break
		}
		if err := t.add(t.line); err != nil {
			return 0, t.refuse(err)
		}
		t.line, p = t.line[:0], rest
	}
	return n, nil
}

// refuse ends the listing.
func (t *treeMeter) refuse(why error) error {
	t.refusal = cmp.Or(t.refusal, why)
	t.stop()
	return t.refusal
}

const messageLongPath = "the repository has a path longer than 4095 bytes, or a name longer than 255, which Linux cannot have"

func (t *treeMeter) add(line []byte) error {
	t.Inodes++
	head, path, _ := bytes.Cut(line, []byte{'\t'})
	if len(path) >= unix.PathMax {
		return fail(Invalid, messageLongPath)
	}
	for name := range bytes.SplitSeq(path, []byte{'/'}) {
		if len(name) > unix.NAME_MAX {
			return fail(Invalid, messageLongPath)
		}
	}
	if fields := bytes.Fields(head); len(fields) == 4 {
		// "-" for what has no size.
		if size, err := strconv.ParseInt(string(fields[3]), 10, 64); err == nil {
			t.Bytes += size
		}
	}
	return t.limits.exceeded(t.usage)
}

// weigh measures the clone, and says why it may not go on.
func (j *job) weigh(ctx context.Context) error {
	used, err := measure(j.dir("work"))
	if err != nil {
		return nil //nolint:nilerr // a tree that changes while it is walked is measured again soon
	}
	j.bytes.Store(used.Bytes)
	if err := j.store.config.Limits.exceeded(used); err != nil {
		return err
	}
	return j.store.admit(ctx, j)
}

// watch ends the clone when its folder grows past a limit.
func (j *job) watch(ctx context.Context) (watched context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			began := time.Now()
			if err := bug.Guard(j.store.config.Log, func() error { return j.weigh(ctx) }); err != nil {
				cancel(err)
			}
			// Looking costs a tenth of the time at most.
			timer.Reset(max(200*time.Millisecond, 10*time.Since(began)))
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
