package system_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
)

// The other stories of the package run meanwhile.
const (
	churn       = time.Minute
	changeEvery = 200 * time.Millisecond
	// lastAnswer is how long the answer to the last set may take, or lastAnswerTrips
	// bare round trips where those are slow. The next sweep, which would bring it too, is
	// up to 30 s away.
	lastAnswer      = 2 * time.Second
	lastAnswerTrips = 100
)

// everChangingSet writes a new set five times a second. Three mounts are in all of
// them, and a process of the sandbox reads through them all the time.
func everChangingSet(t *testing.T, c *cluster) {
	n := c.node(t)
	p := n.run("sandbox")
	n.startAgent(agentOptions{})
	stay := []grant.Mount{home("home/users/ada", "ada"), home("home/users/bob", "bob"), dataset("datasets/cats", "cats")}
	p.grant(stay...)
	ids := p.ids()

	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reads := 0
	reading.Go(func() {
		for ; ctx.Err() == nil; reads++ {
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond): // not to take the processor from the others
			}
			m := stay[reads%len(stay)]
			got, err := p.ctr.ReadFile(in + m.Target + "/deep/er/three")
			if err != nil || string(got) != m.Source+" deep/er/three" {
				t.Errorf("read %d, of %s: %q, %v", reads, m.Target, got, err)
				return
			}
		}
	})
	ticker := time.NewTicker(changeEvery)
	defer ticker.Stop()
	var set []grant.Mount
	var last operator.Asked
	var wrote time.Time
	answers := 0 // that the agent had tried when the last change was written
	began, changes := time.Now(), 0
	for time.Since(began) < churn {
		<-ticker.C
		changes++
		comes := home("home/teams/red", fmt.Sprintf("comes%d", changes%3))
		comes.AllowExec = changes%2 == 0
		set = append([]grant.Mount{comes}, stay...)
		wrote = time.Now()
		last = p.ask(set...)
		answers = n.agent.calls()["Answer"]
		now := p.ids()
		for target, id := range ids {
			if now[target] != id {
				t.Fatalf("at change %d %s is mount %d, was %d", changes, target, now[target], id)
			}
		}
	}
	p.mustBeReady(p.answered(last), set)
	took, tried := time.Since(wrote), n.agent.calls()["Answer"]-answers
	bare := p.slowestRoundTrip()
	stop()
	reading.Wait()
	// In seconds where the machine has time, and else by what the API server takes for
	// the same patch and its event without any agent.
	if most := max(lastAnswer, lastAnswerTrips*bare); took > most {
		t.Errorf("the last set was answered after %v, at most %v may pass (a bare round trip took %v)", took, most, bare)
	}
	// The pass that was under way when the last set was written may try its answer,
	// and so may one that began with an old copy of the Pod: another one for each tenth
	// of a second that an event takes to come.
	if most := 3 + int(2*bare/changeEvery); tried > most {
		t.Errorf("the agent tried %d answers after the last change, at most %d are wanted (a bare round trip took %v)", tried, most, bare)
	}
	p.mustHave(set)
	now := p.ids()
	maps.DeleteFunc(now, func(target string, _ int) bool { _, stayed := ids[target]; return !stayed })
	if !maps.Equal(now, ids) {
		t.Errorf("the mounts that stay are %v, were %v", now, ids)
	}
	t.Logf("%d changes, %d reads, %d answers; the last set was answered after %v", changes, reads, n.agent.calls()["Answer"], took.Round(time.Millisecond))
	p.delete()
}

// slowestRoundTrip is how long a patch of the Pod takes until a watch has its event,
// at worst of ten.
func (p *pod) slowestRoundTrip() time.Duration {
	p.n.t.Helper()
	pods := p.n.c.admin.CoreV1().Pods(p.n.namespace)
	events, err := pods.Watch(p.n.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + p.name})
	must(p.n.t, err)
	defer events.Stop()
	end := time.After(patience)
	slowest := time.Duration(0)
	for i := range 10 {
		value := fmt.Sprint(i)
		began := time.Now()
		p.annotate(map[string]*string{"example.org/round-trip": &value})
		for seen := false; !seen; {
			select {
			case e := <-events.ResultChan():
				now, ok := e.Object.(*corev1.Pod)
				seen = ok && now.Annotations["example.org/round-trip"] == value
			case <-end:
				p.n.t.Fatal("a patch causes no event")
			}
		}
		slowest = max(slowest, time.Since(began))
	}
	return slowest
}

// podMadeAgain: while a grant hangs in the storage, its Pod is deleted by force and
// made again under its name. Its container still runs, so the grant is made and
// seen there; what there is to say of it is not for the new Pod.
func podMadeAgain(t *testing.T, c *cluster) {
	n := c.node(t)
	slow := newSlowStorage(t, filepath.Join(n.Claim, "slow"))
	old := n.run("sandbox")
	n.startAgent(agentOptions{})
	arrived := slow.hang()
	old.ask(dataset("slow/cats", "cats"))
	select {
	case <-arrived:
	case <-time.After(patience):
		t.Fatal("no request reaches the storage")
	}
	old.remove()
	again := n.create("sandbox")
	events, err := c.admin.CoreV1().Pods(n.namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + again.name})
	must(t, err)
	defer events.Stop()
	answers := n.agent.calls()["Answer"]
	slow.answer()
	eventually(t, "the agent to try to answer the old Pod", func() string {
		if now := n.agent.calls()["Answer"]; now == answers {
			return fmt.Sprintf("%d answers", now)
		}
		return ""
	})
	old.forgotten()
	must(t, old.ctr.Stop())
	old.tornDown()
	must(t, again.SetUpVolume(false))
	again.startContainer()
	mustStayUnanswered(t, c, events, 2*time.Second)

	set := []grant.Mount{home("home/users/ada", "cats")}
	again.grant(set...)
	again.delete()
	slow.unmount()
}

func mustStayUnanswered(t *testing.T, c *cluster, events watch.Interface, d time.Duration) {
	t.Helper()
	for end := time.After(d); ; {
		select {
		case e := <-events.ResultChan():
			if p, ok := e.Object.(*corev1.Pod); ok && p.Annotations[c.names.Ready] != "" {
				t.Fatalf("a Pod that was granted nothing has the answer %s", p.Annotations[c.names.Ready])
			}
		case <-end:
			return
		}
	}
}

// slowStorage is a filesystem with one folder whose server can be made to wait.
type slowStorage struct {
	fs.Inode
	t   *testing.T
	dir string

	mu      sync.Mutex
	gate    chan struct{} // closed when it answers again; nil while it does
	arrived chan struct{} // closed at the first request that waits
	gone    bool
}

var _ fs.NodeLookuper = (*slowStorage)(nil)

func newSlowStorage(t *testing.T, dir string) *slowStorage {
	t.Helper()
	must(t, os.Mkdir(dir, 0o755))
	s := &slowStorage{t: t, dir: dir}
	zero := time.Duration(0)
	_, err := fs.Mount(dir, s, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: "slow", Name: "test", DisableXAttrs: true},
		OnAdd: func(ctx context.Context) {
			s.AddChild("cats", s.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: syscall.S_IFDIR}), false)
		},
	})
	must(t, err)
	t.Cleanup(func() {
		s.answer()
		s.unmount()
	})
	return s
}

// Lookup is asked at each way into the folder: nothing of it is cached.
func (s *slowStorage) Lookup(_ context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	s.mu.Lock()
	gate := s.gate
	if gate != nil && s.arrived != nil {
		close(s.arrived)
		s.arrived = nil
	}
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	child := s.GetChild(name)
	if child == nil {
		return nil, syscall.ENOENT
	}
	out.Mode = syscall.S_IFDIR | 0o755
	return child, 0
}

func (s *slowStorage) hang() (arrived <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate, s.arrived = make(chan struct{}), make(chan struct{})
	return s.arrived
}

func (s *slowStorage) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
	}
}

// unmount takes it off the claim, and the claim is as it was.
func (s *slowStorage) unmount() {
	s.t.Helper()
	if s.gone {
		return
	}
	s.gone = true
	must(s.t, errors.Join(unix.Unmount(s.dir, unix.MNT_DETACH), os.Remove(s.dir)))
}
