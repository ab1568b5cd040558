package checkout

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
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

// fetch asks for the commit itself. Servers of the old protocol give none that is
// not the end of a branch unless they are told to; from those the branches and tags
// are fetched, deeper and deeper, until the commit is among what came.
func (j *job) fetch(ctx context.Context) error {
	err := j.ask(ctx, func(url string) []string { return fetchArguments("--depth=1", url, j.revision) })
	refused, ok := errors.AsType[*Error](err)
	if !ok || refused.Class != NotFound || !strings.Contains(refused.Detail, "unadvertised object") {
		return err
	}
	for _, depth := range []string{"--depth=50", "--depth=1000", "--unshallow"} {
		if err := j.gitRemote(ctx, nil, fetchArguments(depth, j.url,
			"+refs/heads/*:refs/fetched/heads/*", "+refs/tags/*:refs/fetched/tags/*")...); err != nil {
			return err
		}
		if j.git(ctx, nil, "-C", "tree", "cat-file", "-e", j.revision+"^{commit}") == nil {
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

func fetchArguments(depth, url string, wants ...string) []string {
	// Progress is a sign of life where a server thinks for long before it sends.
	return append([]string{
		"-C", "tree", "fetch", depth, "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head",
		"--no-auto-maintenance", "--progress", "--", url,
	}, wants...)
}

// prove asks the server whether it shows the repository to this credential.
func (j *job) prove(ctx context.Context) error {
	j.enter(PhaseProving)
	return j.ask(ctx, func(url string) []string { return []string{"ls-remote", "--quiet", "--", url, "HEAD"} })
}

// ask is the first question to the server. Some redirect an address without ".git"
// to the one with it, and a redirect is not followed: that one is tried here, on
// the host that was checked.
func (j *job) ask(ctx context.Context, arguments func(url string) []string) error {
	j.url = j.remote.url
	err := j.gitRemote(ctx, nil, arguments(j.url)...)
	if ClassOf(err) != Refused || strings.HasSuffix(strings.TrimSuffix(j.url, "/"), ".git") {
		return err
	}
	suffixed := strings.TrimSuffix(j.url, "/") + ".git"
	// For the questions after this one. The key of the checkout stays that of the
	// address that was asked for.
	j.url = suffixed
	return j.gitRemote(ctx, nil, arguments(suffixed)...)
}

// measureTree adds up what the checkout will take before a byte of it is written: a
// few kilobytes of objects can describe thousands of millions of files.
func (j *job) measureTree(ctx context.Context) error {
	limits := j.store.config.Limits
	meter := treeMeter{limits: limits}
	fetched, err := measure(j.dir("work"))
	if err != nil {
		return storage("measure the checkout", err)
	}
	meter.bytes, meter.files = fetched.Bytes, fetched.Inodes
	// The first process of a pid namespace is not killed by SIGPIPE, and git goes on
	// after a failed write: nothing else would end the listing.
	ctx, meter.stop = context.WithCancel(ctx)
	defer meter.stop()
	err = j.git(ctx, &meter, "-C", "tree", "ls-tree", "-r", "-l", "-z", "--full-tree", j.revision)
	if meter.exceeded {
		return fail(TooLarge, messageTooLarge)
	}
	return err
}

// treeMeter reads `ls-tree -r -l -z`: "mode type id size<TAB>path<NUL>".
type treeMeter struct {
	limits       Limits
	bytes, files int64
	exceeded     bool
	stop         context.CancelFunc
	rest         []byte
}

var errExceeded = errors.New("a limit is exceeded")

func (t *treeMeter) Write(p []byte) (int, error) {
	t.rest = append(t.rest, p...)
	for {
		line, rest, found := bytes.Cut(t.rest, []byte{0})
		if !found {
			t.rest = bytes.Clone(t.rest)
			return len(p), nil
		}
		t.rest = rest
		t.files++
		head, _, _ := bytes.Cut(line, []byte{'\t'})
		if fields := bytes.Fields(head); len(fields) == 4 {
			// "-" for what has no size.
			if size, err := strconv.ParseInt(string(fields[3]), 10, 64); err == nil {
				t.bytes += size
			}
		}
		if t.files > t.limits.Inodes || t.bytes > t.limits.Bytes {
			t.exceeded = true
			t.stop()
			return 0, errExceeded
		}
	}
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
			// A tree that changes while it is walked is measured again soon.
			if used, err := measure(j.dir("work")); err == nil {
				j.bytes.Store(used.Bytes)
				if used.Bytes > j.store.config.Limits.Bytes || used.Inodes > j.store.config.Limits.Inodes {
					cancel(fail(TooLarge, messageTooLarge))
				}
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
