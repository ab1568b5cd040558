package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/checkout/checkouttest"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
	"github.com/datalayer/node-mounts/test/gitserver"
)

// gitNode is a node that serves git, and a server with one repository.
type gitNode struct {
	*agenttest.Node
	server *gitserver.HTTPS
	repo   *gitserver.Repository
	commit string
	limits checkout.Limits
}

func newGitNode(t testing.TB, server *gitserver.HTTPS) *gitNode {
	t.Helper()
	root := t.TempDir()
	n := &gitNode{Node: agenttest.NewNode(t), server: server, repo: gitserver.NewRepository(t, root, "team/tutorial.git"), limits: checkouttest.Limits()}
	n.commit = n.repo.Files("main", map[string]string{"README.md": "read me\n", "run.sh*": "#!/bin/sh\necho ran\n"})
	server.Start(t, root)
	n.Policy.Serves[grant.KindGit] = true
	n.Checkouts = func(ctx context.Context) (delivery.Checkouts, error) {
		s, err := checkout.Open(ctx, checkout.Config{
			Root: filepath.Join(n.Root, "checkouts"), Boot: n.BootID, User: 65534, Group: 65534,
			Owner: checkout.Owner{UID: userID, GID: groupID}, Limits: n.limits, CA: server.CA(),
			Network: checkout.Policy{Allow: []netip.AddrPort{server.Address()}},
			Log:     slog.New(slog.NewTextHandler(testLog{t}, nil)),
		})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	n.Restart()
	return n
}

type testLog struct{ t testing.TB }

func (w testLog) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// repository is a grant of the node's repository. It says rw: nobody may write.
func (n *gitNode) repository(target string) grant.Mount {
	return grant.Mount{
		Kind: grant.KindGit, Source: n.server.URL(n.repo.Name), Revision: n.commit, Target: target,
		Mode: grant.ReadWrite, AllowExec: true,
	}
}

func (n *gitNode) answered(p *agenttest.Pod, does func(st *grant.Status) bool) *grant.Status {
	n.T.Helper()
	return p.Answered(does)
}

func (n *gitNode) ready(p *agenttest.Pod) *grant.Status {
	n.T.Helper()
	return n.answered(p, func(st *grant.Status) bool { return st.State == grant.StateReady })
}

func failedWith(target string, code string) func(st *grant.Status) bool {
	return func(st *grant.Status) bool { return st.Failed[target] == grant.Code("NODE_MOUNT_GATEWAY_"+code) }
}

// checkouts are the keys of those on the node's disk.
func (n *gitNode) checkouts() []string {
	n.T.Helper()
	found, err := os.ReadDir(filepath.Join(n.Root, "checkouts", "ready"))
	must(n.T, err)
	var keys []string
	for _, f := range found {
		keys = append(keys, f.Name())
	}
	return keys
}

func (n *gitNode) eventually(what string, holds func() bool) {
	n.T.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	late := time.After(time.Minute)
	for !holds() {
		select {
		case <-ticker.C:
		case <-late:
			n.T.Fatalf("%s: not within a minute", what)
		}
	}
}

// stall holds the answers of a server back until it is let go.
type stall struct {
	came, release chan struct{}
	once          sync.Once
}

func newStall() *stall { return &stall{came: make(chan struct{}, 16), release: make(chan struct{})} }

func (s *stall) hold(r *http.Request) {
	s.came <- struct{}{}
	select {
	case <-s.release:
	case <-r.Context().Done():
	}
}

func (s *stall) let() { s.once.Do(func() { close(s.release) }) }

func TestARepositoryAppearsInARunningPodReadOnlyWhateverTheGrantSays(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{})
	p := n.RunningPod("pod")
	p.Grant(n.repository("code"), home("h/ada", "ada"))
	n.ready(p)
	user := p.Ctr.AsUser(userID, groupID)
	if b, err := user.ReadFile(in + "code/README.md"); err != nil || string(b) != "read me\n" {
		t.Errorf("reading as the sandbox's user: %q, %v", b, err)
	}
	wants(t, "writing as the sandbox's user", user.WriteFile(in+"code/README.md", []byte("x"), 0o644), unix.EROFS)
	wants(t, "writing as root", p.Ctr.WriteFile(in+"code/new", nil, 0o644), unix.EROFS)
	for _, m := range seenBy(t, p.Ctr)["code"] {
		if got := m.Flags.String(); got != "ro,nosuid,nodev" {
			t.Errorf("flags %s", got)
		}
	}
	p.Grant(home("h/ada", "ada"))
	p.MustAnswer(grant.StateReady, []string{"ada"}, nil)
	if _, err := p.Ctr.ReadFile(in + "code/README.md"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the revocation: %v", err)
	}
}

func TestACheckoutThatNobodyUsesIsCollectedAndOneInUseIsNot(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{})
	n.limits.Budget = 0
	n.Restart()
	p, q := n.RunningPod("one"), n.RunningPod("two")
	p.Grant(n.repository("code"))
	n.ready(p)
	q.Grant(n.repository("code"))
	n.ready(q)
	p.Grant()
	p.MustAnswer(grant.StateReady, nil, nil)
	n.Restart() // also an agent that has only the journal
	must(t, n.Agent.Sweep(t.Context()))
	q.Pass()
	if b, err := q.Ctr.ReadFile(in + "code/README.md"); err != nil || string(b) != "read me\n" || len(n.checkouts()) != 1 {
		t.Errorf("the one in use: %q, %v, %v", b, err, n.checkouts())
	}
	q.Annotate(nil)
	q.Pass()
	must(t, n.Agent.Sweep(t.Context()))
	n.eventually("the checkout is collected", func() bool { return len(n.checkouts()) == 0 })
	if got := n.server.Count("objects"); got == 0 {
		t.Error("this test's server was not asked")
	}
}

func TestACheckoutWhoseMountSomebodyElseTookAwayIsCollectedToo(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{})
	n.limits.Budget = 0
	n.Restart()
	p := n.RunningPod("pod")
	p.Grant(n.repository("code"))
	n.ready(p)
	must(t, unix.Unmount(treeOf(n.Node, p), unix.MNT_DETACH))
	n.API.Delete(p.UID)
	must(t, n.Agent.Sweep(t.Context()))
	p.Pass()
	must(t, n.Agent.Sweep(t.Context()))
	n.eventually("the checkout is collected", func() bool { return len(n.checkouts()) == 0 })
}

func TestARestartedAgentKeepsTheMountAndFetchesNothing(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{})
	p := n.RunningPod("pod")
	p.Grant(n.repository("code"))
	n.ready(p)
	before, asked := standing(t, filepath.Join(treeOf(n.Node, p), "code")), n.server.Count("refs")
	n.Restart()
	p.MustAnswer(grant.StateReady, []string{"code"}, nil)
	after := standing(t, filepath.Join(treeOf(n.Node, p), "code"))
	if len(before) != 1 || len(after) != 1 || before[0].ID != after[0].ID || n.server.Count("refs") != asked {
		t.Errorf("before %v, after %v; asked %d and %d times", before, after, asked, n.server.Count("refs"))
	}
}

func TestTenPodsThatAskAtOnceCostOneClone(t *testing.T) {
	t.Parallel()
	held := newStall()
	n := newGitNode(t, &gitserver.HTTPS{Hold: held.hold})
	defer held.let()
	var pods []*agenttest.Pod
	for i := range 10 {
		p := n.RunningPod(fmt.Sprintf("pod-%d", i))
		p.Grant(n.repository("code"))
		p.Pass()
		pods = append(pods, p)
	}
	<-held.came
	held.let()
	for _, p := range pods {
		n.ready(p)
	}
	// A clone is two requests of this kind: what there is, and the objects.
	clones := n.server.Count("refs")
	if keys := n.checkouts(); clones != 1 || len(keys) != 1 {
		t.Errorf("%d clones, checkouts %v", clones, keys)
	}
}

func TestFoldersAreThereWhileAClonesServerStalls(t *testing.T) {
	t.Parallel()
	held := newStall()
	n := newGitNode(t, &gitserver.HTTPS{Hold: held.hold})
	defer held.let()
	p, other := n.RunningPod("pod"), n.RunningPod("other")
	p.Grant(n.repository("code"), home("h/ada", "ada"))
	p.Pass()
	<-held.came
	user := p.Ctr.AsUser(userID, groupID)
	must(t, user.WriteFile(in+"ada/notes", []byte("x"), 0o644))
	if _, err := p.Ctr.ReadDir(in + "code"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder is shown for what is not there: %v", err)
	}
	other.Grant(home("h/bob", "bob"))
	other.MustAnswer(grant.StateReady, []string{"bob"}, nil)
	if p.Status() != nil {
		t.Errorf("answered at once: %+v", p.Status())
	}
	m := n.fetching(p, "code")
	if m.Progress.Phase != checkout.PhaseFetching || m.Source != n.server.URL(n.repo.Name) {
		t.Errorf("/gateway shows %+v, %+v", m, m.Progress)
	}
	// Who waits for the home does not wait for the server.
	st := n.answered(p, func(*grant.Status) bool { return true })
	if st.State != grant.StateDegraded || len(st.Mounted) != 1 || !failedWith("code", "NOT_READY")(st) {
		t.Errorf("the answer is %+v", st)
	}
	if got := n.Metric("failed_total"); got != 0 {
		t.Errorf("%v failures are counted while a clone is under way", got)
	}
	held.let()
	n.ready(p)
	if _, err := p.Ctr.ReadFile(in + "code/README.md"); err != nil {
		t.Error(err)
	}
}

// fetching is what /gateway shows of a grant that is under way.
func (n *gitNode) fetching(p *agenttest.Pod, target string) nodeview.Mount {
	n.T.Helper()
	for _, v := range n.Agent.Views() {
		for _, m := range v.Mounts {
			if v.UID == p.UID && m.Target == target && m.State == nodeview.StateFetching && m.Progress != nil {
				return m
			}
		}
	}
	n.T.Fatalf("/gateway shows nothing that is fetched: %+v", n.Agent.Views())
	return nodeview.Mount{}
}

func TestACloneThatNobodyAsksForAnyMoreEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(n *gitNode, p *agenttest.Pod){
		"another set":   func(_ *gitNode, p *agenttest.Pod) { p.Grant(home("h/1", "h")); p.Pass() },
		"no set":        func(_ *gitNode, p *agenttest.Pod) { p.Annotate(nil); p.Pass() },
		"the Pod's end": func(n *gitNode, p *agenttest.Pod) { n.API.Delete(p.UID); p.Pass() },
		"the agent's":   func(n *gitNode, _ *agenttest.Pod) { n.StopAgent() },
		"other revision": func(n *gitNode, p *agenttest.Pod) {
			m := n.repository("code")
			m.Revision = strings.Repeat("a", 40)
			p.Grant(m)
			p.Pass()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held := newStall()
			ended := make(chan struct{})
			cut := sync.OnceFunc(func() { close(ended) })
			n := newGitNode(t, &gitserver.HTTPS{Hold: func(r *http.Request) {
				held.hold(r)
				if r.Context().Err() != nil {
					cut() // of the first, and of those that the test's end ends
				}
			}})
			defer held.let()
			p := n.RunningPod("pod")
			p.Grant(n.repository("code"))
			p.Pass()
			<-held.came
			end(n, p)
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the clone goes on")
			}
		})
	}
}

// gitSecrets are Secrets of one Pod, by name.
type gitSecrets struct {
	mu  sync.Mutex
	has map[string]map[string]string
}

func (s *gitSecrets) Current(_ context.Context, ref secret.Ref, _ ...string) (secret.Data, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := map[string][]byte{}
	for k, v := range s.has[ref.Name] {
		data[k] = []byte(v)
	}
	return secret.NewData(data), nil
}

// toldEvents are the events of a node, as text.
type toldEvents struct {
	mu   sync.Mutex
	text strings.Builder
}

func (e *toldEvents) Event(_ plan.Pod, _ bool, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = fmt.Fprintln(&e.text, reason, message)
}

func (e *toldEvents) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

func TestAPrivateRepositoryNeedsACredentialAndItIsShownNowhere(t *testing.T) {
	t.Parallel()
	const canary, wrong, wrongUser = "canary-7f3a91", "canary-wrong-02", "canary-user-03"
	heard := &listener{TB: t}
	n := newGitNode(heard, &gitserver.HTTPS{Username: "x-access-token", Password: canary})
	n.Secrets = &gitSecrets{has: map[string]map[string]string{
		"good": {"token": canary, "username": "x-access-token"}, "bad": {"password": wrong, "username": wrongUser}, "empty": {"other": "x"},
	}}
	events := &toldEvents{}
	n.Events = events
	n.Policy.Credentials = true
	n.Restart()
	p := n.RunningPod("pod")
	var texts []string
	for name, says := range map[string]string{"bad": "does not accept", "empty": "no token and no password", "": "name a Secret"} {
		p.Grant(withSecret(n.repository("code"), name))
		st := n.answered(p, failedWith("code", "SECRET_REFUSED"))
		if !strings.Contains(st.Messages["code"], says) || st.State != grant.StateFailed {
			t.Errorf("%s: %s, %q", name, st.State, st.Messages["code"])
		}
		texts = append(texts, st.Encode())
		absent(t, filepath.Join(treeOf(n.Node, p), "code"))
	}
	p.Grant(withSecret(n.repository("code"), "good"))
	texts = append(texts, n.ready(p).Encode())
	// Another Pod that only knows the address does not get it.
	q := n.RunningPod("other")
	q.Grant(n.repository("code"))
	n.answered(q, failedWith("code", "SECRET_REFUSED"))
	q.Annotate(nil)
	q.Pass()
	// Neither does one with a Secret that the server does not accept.
	q.Grant(withSecret(n.repository("code"), "bad"))
	st := n.answered(q, func(st *grant.Status) bool { return !failedWith("code", "NOT_READY")(st) })
	if !failedWith("code", "SECRET_REFUSED")(st) || len(st.Mounted) != 0 {
		t.Errorf("a wrong Secret is answered %+v", st)
	}
	absent(t, filepath.Join(treeOf(n.Node, q), "code"))

	views, err := json.Marshal(n.Agent.Views())
	must(t, err)
	families, err := n.Metrics.Gatherer().Gather()
	must(t, err)
	heard.mu.Lock()
	log := heard.log.String()
	heard.mu.Unlock()
	texts = append(texts, string(views), fmt.Sprint(families), log, events.String())
	must(t, filepath.WalkDir(n.Root, func(at string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, rerr := os.ReadFile(at)
			texts = append(texts, string(b))
			err = rerr
		}
		return err
	}))
	for _, text := range texts {
		if strings.Contains(text, canary) || strings.Contains(text, wrong) || strings.Contains(text, wrongUser) {
			t.Errorf("a credential is in %.300q", text)
		}
	}
	for _, reason := range []string{agent.ReasonFetching, agent.ReasonReady, agent.ReasonFailed} {
		if !strings.Contains(events.String(), reason+" ") {
			t.Errorf("no event %s: this test looks in the wrong places", reason)
		}
	}
	if !strings.Contains(log, "SECRET_REFUSED") || len(texts) < 12 {
		t.Errorf("this test looks in the wrong places: %d texts", len(texts))
	}
}

func TestWhatKeepsARepositoryFromBeingFetchedIsSaid(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{})
	p := n.RunningPod("pod")
	commit, private := n.repository("commit"), n.repository("private")
	commit.Revision = strings.Repeat("b", 40)
	private.Source = "https://10.255.255.1.nip.invalid/x.git"
	metadata := n.repository("metadata")
	metadata.Source = "https://169.254.169.254/x.git"
	p.Grant(commit, private, metadata, n.repository("good"))
	st := n.answered(p, func(st *grant.Status) bool {
		return len(st.Mounted) == 1 && len(st.Failed) == 3 && !failedWith("private", "NOT_READY")(st)
	})
	for target, want := range map[string][2]string{
		"commit": {"MOUNT_FAILED", "does not have this commit"}, "metadata": {"INVALID_SOURCE", "does not fetch from"},
		"private": {"MOUNT_FAILED", "cannot be resolved"},
	} {
		if !failedWith(target, want[0])(st) || !strings.Contains(st.Messages[target], want[1]) {
			t.Errorf("%s: %s %q", target, st.Failed[target], st.Messages[target])
		}
		absent(t, filepath.Join(treeOf(n.Node, p), target))
	}
}

func TestANodeWithoutGitServesEverythingElseAndGitOnceItIsThere(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{})
	open, fault := n.Checkouts, errors.New("git does not run on this node")
	var mu sync.Mutex
	n.Checkouts = func(ctx context.Context) (delivery.Checkouts, error) {
		mu.Lock()
		defer mu.Unlock()
		if fault != nil {
			return nil, fault
		}
		return open(ctx)
	}
	n.Restart()
	p := n.RunningPod("pod")
	p.Grant(n.repository("code"), home("h/ada", "ada"))
	st := p.MustAnswer(grant.StateDegraded, []string{"ada"}, codes("code", "MOUNT_FAILED"))
	if !strings.Contains(st.Messages["code"], fault.Error()) {
		t.Errorf("it says %q", st.Messages["code"])
	}
	mu.Lock()
	fault = nil
	mu.Unlock()
	must(t, n.Agent.Sweep(t.Context()))
	n.ready(p)
}

func TestACheckoutThatWasRemovedByHandIsMadeAnew(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{})
	p := n.RunningPod("pod")
	p.Grant(n.repository("code"))
	n.ready(p)
	must(t, os.RemoveAll(filepath.Join(n.Root, "checkouts", "ready", n.checkouts()[0])))
	must(t, n.Agent.Sweep(t.Context()))
	n.answered(p, func(*grant.Status) bool {
		_, err := p.Ctr.ReadFile(in + "code/README.md")
		return err == nil
	})
}

func TestAfterARebootTheAnswerDoesNotClaimWhatIsStillBeingFetched(t *testing.T) {
	t.Parallel()
	held := newStall()
	var rebooted atomic.Bool
	n := newGitNode(t, &gitserver.HTTPS{Hold: func(r *http.Request) {
		if rebooted.Load() {
			held.hold(r)
		}
	}})
	defer held.let()
	p := n.RunningPod("pod")
	p.Grant(n.repository("code"))
	n.ready(p)
	n.StopAgent()
	rebooted.Store(true)
	n.BootID = "boot-2"
	n.Restart()
	st := n.answered(p, func(st *grant.Status) bool { return st.State != grant.StateReady })
	if len(st.Mounted) != 0 || !failedWith("code", "NOT_READY")(st) {
		t.Errorf("the answer is %+v", st)
	}
	<-held.came
	held.let()
	n.ready(p)
	if b, err := p.Ctr.ReadFile(in + "code/README.md"); err != nil || string(b) != "read me\n" {
		t.Errorf("%q, %v", b, err)
	}
}
