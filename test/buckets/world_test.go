// Package buckets tests the kind cloud-storage as a whole: an agent on the kernel, a
// keeper, the program that serves a bucket, and an S3 server whose sessions end.
package buckets

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/bucket"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper/keepertest"
	"github.com/datalayer/node-mounts/internal/secret"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/test/s3test"
	"github.com/datalayer/node-mounts/test/textlog"
)

// soak makes the tests that wait for sessions to end and for processes to be killed
// do so more often.
var soak = os.Getenv("NODE_MOUNTS_SOAK") != ""

func often(few, many int) int {
	if soak {
		return many
	}
	return few
}

// The programs, built once for all tests.
var serverProgram, filesystemProgram string

func TestMain(m *testing.M) {
	keepertest.Main()
	simnode.Main()
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "buckets")
	if err == nil {
		// The keeper's children execute what lies there.
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		serverProgram, filesystemProgram, err = s3test.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

const (
	// bucketName is the bucket of every test, and in is where grants appear in a
	// container.
	bucketName = "team-data"
	in         = simnode.DefaultMountPath + "/"

	userID, groupID = 1000, 100
)

// secrets are the Secrets of the test's API.
type secrets struct {
	mu  sync.Mutex
	has map[string]secret.Stored
	err error
}

func (s *secrets) Secret(_ context.Context, namespace, name string) (secret.Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return secret.Stored{}, s.err
	}
	got, ok := s.has[namespace+"/"+name]
	if !ok {
		return got, secret.ErrNotFound
	}
	return got, nil
}

// put writes a Secret that a Pod owns.
func (s *secrets) put(p *agenttest.Pod, name string, data map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has[namespaceOf(p)+"/"+name] = secret.Stored{
		Owners: []secret.Owner{{APIVersion: "v1", Kind: "Pod", UID: p.UID}}, Data: secret.NewData(data),
	}
}

func (s *secrets) drop(p *agenttest.Pod, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.has, namespaceOf(p)+"/"+name)
}

func namespaceOf(p *agenttest.Pod) string {
	pod, _ := p.N.API.Pod(p.UID)
	return pod.Namespace
}

// world is a node that serves buckets.
type world struct {
	*agenttest.Node
	t       testing.TB
	s3      *s3test.Server
	keeper  *keepertest.Process
	secrets *secrets
	// set changes the bucket settings of the next agent.
	set func(*bucket.Settings)
	log *textlog.Log
	end context.CancelFunc // of the running agent's credentials
}

// newWorld starts everything. args are the S3 server's.
func newWorld(t testing.TB, args ...string) *world {
	t.Helper()
	w := &world{
		t: t, s3: s3test.Start(t, serverProgram, args, bucketName), keeper: keepertest.Start(t),
		secrets: &secrets{has: map[string]secret.Stored{}}, log: &textlog.Log{}, set: func(*bucket.Settings) {}, end: func() {},
	}
	t.Cleanup(func() { w.end() })
	w.Node = agenttest.NewNode(t)
	w.Policy.Serves[grant.KindCloudStorage], w.Policy.Credentials = true, true
	w.restart()
	return w
}

// restart replaces the agent, as a rollout does.
func (w *world) restart() {
	w.t.Helper()
	w.StopAgent()
	w.end()
	client := w.keeper.Client()
	reader := &secret.Reader{Source: w.secrets}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(w.log, os.Stderr), &slog.HandlerOptions{Level: slog.LevelInfo}))
	settings := bucket.Settings{
		Program: filesystemProgram, Region: w.s3.Region, EndpointURL: w.s3.Endpoint, PathStyle: true, CA: []byte(w.s3.CA),
		Owner: beneath.Owner{UID: userID, GID: groupID}, CacheSize: 256 << 20, Memory: 512 << 20,
	}
	w.set(&settings)
	var life context.Context
	life, w.end = context.WithCancel(context.Background())
	w.Secrets, w.Keeper = reader, client
	w.Runners = map[grant.Kind]delivery.Runner{grant.KindCloudStorage: &bucket.Runner{
		Settings: settings, Credentials: &awscreds.Server{Secrets: reader, Clock: clock.RealClock{}, Log: log, Lifetime: settings.Lifetime()},
		Listener: client.Listener, Log: log, Life: life,
	}}
	w.Restart()
}

// pod is a running Pod.
func (w *world) pod(name string) (*agenttest.Pod, *simnode.Container) {
	w.t.Helper()
	p := w.RunningPod(name)
	return p, p.Start(simnode.ContainerOptions{}).AsUser(userID, groupID)
}

// bucketGrant is a grant with a Secret called session.
func bucketGrant(source string, mode grant.Mode) grant.Mount {
	return grant.Mount{Kind: grant.KindCloudStorage, Source: source, Target: "data", Mode: mode, AllowExec: true, Secret: "session"}
}

// granted is a running Pod with one bucket, ready.
func (w *world) granted(name, source string, mode grant.Mode, c s3test.Credentials) (*agenttest.Pod, *simnode.Container) {
	w.t.Helper()
	p, container := w.pod(name)
	w.secrets.put(p, "session", c.Data())
	p.Grant(bucketGrant(source, mode))
	p.Answered(isReady)
	return p, container
}

// grantedForAWhile is granted with a session that has just begun, however long it took.
func (w *world) grantedForAWhile(name, source string, mode grant.Mode) (*agenttest.Pod, *simnode.Container) {
	w.t.Helper()
	p, container := w.pod(name)
	end := w.renewing(p)
	defer end()
	p.Grant(bucketGrant(source, mode))
	p.Answered(isReady)
	return p, container
}

// renewing has the Pod's session renewed, from now on until it is told to end.
func (w *world) renewing(p *agenttest.Pod) (end func()) {
	w.t.Helper()
	put := func() { w.secrets.put(p, "session", w.s3.Session(sessionLength).Data()) }
	put()
	told, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(sessionLength / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				put()
			case <-told:
				return
			}
		}
	}()
	end = sync.OnceFunc(func() { close(told); <-ended })
	w.t.Cleanup(end)
	return end
}

func isReady(st *grant.Status) bool { return st.State == grant.StateReady }

func failedWith(code string) func(st *grant.Status) bool {
	return func(st *grant.Status) bool { return st.Failed["data"] == grant.Code("NODE_MOUNT_GATEWAY_"+code) }
}

// within waits for something that other processes bring about.
func (w *world) within(bound time.Duration, what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(bound)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			w.t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
