package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/operator"
)

// at is a path in the sandbox's gateway folder.
func at(name string) string { return path.Join(simnode.DefaultMountPath, name) }

// story goes through the steps. An error is the demo's own; what the product
// does wrong is a check that failed.
func (n *node) story(ctx context.Context, text *printer, doc *Document) error {
	if err := n.dataset(); err != nil {
		return err
	}
	for i, s := range []struct {
		title string
		run   func(context.Context, *Step) error
	}{
		{"Grant a home folder (rw, made on first use) and a dataset (ro, noexec)", n.granted},
		{"Change the set: the home folder becomes read-only, the dataset goes", n.changed},
		{"Grant one good folder and three bad ones", n.refused},
		{"Revoke everything", n.revoked},
		{"Delete the Pod", n.deleted},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		text.title(i+1, s.title)
		if text.err != nil {
			return text.err
		}
		step := Step{Title: s.title, Checks: []Check{}}
		err := s.run(ctx, &step)
		doc.Steps = append(doc.Steps, step)
		if err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(s.title), err)
		}
		text.step(step)
	}
	return nil
}

func (n *node) granted(ctx context.Context, s *Step) error {
	if _, err := n.grant(ctx, s, "ada", home, data); err != nil {
		return err
	}
	s.add("the answer", s.Answer, s.Answer == "ready")
	if err := n.list(s); err != nil {
		return err
	}
	text := []byte("hello from the sandbox\n")
	s.try("writing ada/notes.txt", n.sandbox.WriteFile(at("ada/notes.txt"), text, 0o644), nil)
	b, err := os.ReadFile(filepath.Join(n.sim.Claim, home.Source, "notes.txt"))
	s.add("the same bytes on the shared claim", fmt.Sprintf("%q", b), err == nil && string(b) == string(text))
	_, err = n.sandbox.ReadFile(at("mnist/README"))
	s.try("reading mnist/README", err, nil)
	s.try("writing mnist/README", n.sandbox.WriteFile(at("mnist/README"), text, 0o644), unix.EROFS)
	_, _, err = n.sandbox.Exec(at("mnist/tool"))
	s.try("running mnist/tool", err, unix.EACCES)
	s.try("making a folder beside them", n.sandbox.Mkdir(at("mine"), 0o755), unix.EROFS, unix.EACCES)
	return nil
}

func (n *node) changed(ctx context.Context, s *Step) error {
	readOnly := home
	readOnly.Mode = grant.ReadOnly
	if _, err := n.grant(ctx, s, "", readOnly); err != nil {
		return err
	}
	if err := n.list(s); err != nil {
		return err
	}
	b, err := n.sandbox.ReadFile(at("ada/notes.txt"))
	s.add("reading ada/notes.txt", strings.TrimSpace(string(b)), err == nil && len(b) > 0)
	s.try("writing ada/notes.txt", n.sandbox.WriteFile(at("ada/notes.txt"), nil, 0o644), unix.EROFS)
	_, err = n.sandbox.Stat(at("mnist"))
	s.try("looking for mnist", err, unix.ENOENT)
	return nil
}

func (n *node) refused(ctx context.Context, s *Step) error {
	if err := os.Symlink("/etc", filepath.Join(n.sim.Claim, escape.Source)); err != nil {
		return err
	}
	bucket := grant.Mount{Kind: grant.KindCloudStorage, Source: "my-bucket", Target: "bucket", Mode: grant.ReadOnly, Secret: "s3-session"}
	st, err := n.grant(ctx, s, "", home, escape, missing, bucket)
	if err != nil {
		return err
	}
	s.add("the good one is mounted", strings.Join(st.Mounted, " "), slices.Equal(st.Mounted, []string{"ada"}))
	for _, want := range []struct {
		target string
		code   grant.Code
	}{
		{"escape", grant.CodeInvalidSource}, {"none", grant.CodeMountFailed}, {"bucket", grant.CodeProcessUnsupported},
	} {
		s.add(want.target, fmt.Sprintf("%s: %s", st.Failed[want.target], st.Messages[want.target]), st.Failed[want.target] == want.code)
	}
	return n.list(s)
}

func (n *node) revoked(ctx context.Context, s *Step) error {
	if _, err := n.grant(ctx, s, ""); err != nil {
		return err
	}
	names, err := n.sandbox.ReadDir(simnode.DefaultMountPath)
	s.add("folders in the sandbox", fmt.Sprint(len(names)), err == nil && len(names) == 0)
	b, err := os.ReadFile(filepath.Join(n.sim.Claim, home.Source, "notes.txt"))
	s.add("ada/notes.txt on the claim", strings.TrimSpace(string(b)), err == nil && len(b) > 0)
	return nil
}

func (n *node) deleted(ctx context.Context, s *Step) error {
	began := time.Now()
	if err := n.sandbox.Stop(); err != nil {
		return err
	}
	if err := n.endPod(ctx); err != nil {
		return err
	}
	s.add("the volume is gone", "after "+time.Since(began).Round(100*time.Microsecond).String(), true)
	for { // the agent forgets the Pod in its own time
		entries, err := os.ReadDir(filepath.Join(n.sim.Root, "pods"))
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			s.add("the Pod's tree is gone", "nothing is mounted for it", true)
			return nil
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// answerTime is how long an answer may take.
const answerTime = 30 * time.Second

// grant writes the set and waits for the answer to it; and until the sandbox sees the
// folder named visible, when one is named.
func (n *node) grant(ctx context.Context, s *Step, visible string, mounts ...grant.Mount) (grant.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	// The first call into the sandbox starts a process: not part of the time.
	if _, err := n.sandbox.Stat(simnode.DefaultMountPath); err != nil {
		return grant.Status{}, err
	}
	seen := make(chan time.Duration, 1)
	began := time.Now()
	if visible != "" {
		go n.await(ctx, visible, began, seen)
	}
	asked, err := n.writer.Grant(ctx, operator.Pod{Namespace: namespace, Name: podName}, mounts...)
	if err != nil {
		return grant.Status{}, err
	}
	st, err := n.writer.Wait(ctx, asked)
	if err != nil {
		return st, err
	}
	s.Ready, s.Answer = time.Since(began).Microseconds(), string(st.State)
	if visible != "" {
		select {
		case d := <-seen:
			s.Visible = d.Microseconds()
		case <-ctx.Done():
			return st, ctx.Err()
		}
	}
	return st, nil
}

// await looks through the sandbox's root until the folder is there: in its mount
// namespace, without the pipe to its process, which would be most of the time.
func (n *node) await(ctx context.Context, name string, began time.Time, seen chan<- time.Duration) {
	inside := fmt.Sprintf("/proc/%d/root%s", n.sandbox.PID(), at(name))
	for ctx.Err() == nil {
		if _, err := os.Stat(inside); err == nil {
			seen <- time.Since(began)
			return
		}
		runtime.Gosched()
	}
}

// list shows the gateway folder as the sandbox sees it, with the mount options
// of its own mount table.
func (n *node) list(s *Step) error {
	names, err := n.sandbox.ReadDir(simnode.DefaultMountPath)
	if err != nil {
		return err
	}
	mounts, err := n.sandbox.Mounts()
	if err != nil {
		return err
	}
	for _, name := range names {
		st, err := n.sandbox.Stat(at(name))
		if err != nil {
			return err
		}
		e := Entry{Name: name, Mode: st.Mode.String(), UID: st.UID, GID: st.GID}
		for _, m := range mounts {
			if m.Point == at(name) {
				e.Flags = m.Flags.String()
			}
		}
		s.Listing = append(s.Listing, e)
	}
	return nil
}

func (s *Step) add(what, seen string, ok bool) {
	s.Checks = append(s.Checks, Check{What: what, Seen: seen, OK: ok})
}

// try records a call that must succeed (no want) or be refused with one of the
// errors wanted.
func (s *Step) try(what string, err error, want ...error) {
	want = slices.DeleteFunc(want, func(e error) bool { return e == nil })
	refusedRight := slices.ContainsFunc(want, func(e error) bool { return errors.Is(err, e) })
	switch errno := unix.Errno(0); {
	case err == nil:
		s.add(what, "done", len(want) == 0)
	case errors.As(err, &errno):
		s.add(what, "refused ("+errno.Error()+")", refusedRight)
	default:
		s.add(what, err.Error(), refusedRight)
	}
}
