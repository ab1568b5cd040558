package buckets

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/test/textlog"
)

const hour = time.Hour

// sessionLength is how long the sessions of these tests last.
const sessionLength = 8 * time.Second

func TestAFileThatIsOpenIsReadOnOverTheEndOfSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	w.s3.Put(bucketName, "large", content)
	const unread = 4000 // objects that the containers' reader takes, and as many for the load
	for i := range 2 * unread {
		w.s3.Put(bucketName, "unread/"+itoa(i), []byte("unread"))
	}
	ends := often(5, 20)
	for i := range ends {
		w.s3.Put(bucketName, "later"+itoa(i), []byte("later"+itoa(i)))
	}
	p, c := w.grantedForAWhile("pod", bucketName, grant.ReadOnly)
	held, err := c.Hold(in + "data/large")
	must(t, err)
	// Opened now, and read for the first time each after one more session.
	later := make([]simnode.Handle, ends)
	for i := range later {
		later[i], err = c.Hold(in + "data/later" + itoa(i))
		must(t, err)
	}
	pid, mounts := w.keeper.PID(p.UID+"/data"), w.mountIDs(p)

	// Until now the machine has taken its time.
	w.secrets.put(p, "session", w.s3.Session(sessionLength).Data())
	began, ended := time.Now(), 0
	refresh := time.Now().Add(sessionLength * 3 / 4)
	load := w.readers(c, func(i int) string { return "unread/" + itoa(unread+i%unread) })
	reads := 0
	for ended < ends {
		if time.Now().After(refresh) {
			w.secrets.put(p, "session", w.s3.Session(sessionLength).Data())
			refresh = time.Now().Add(sessionLength * 3 / 4)
		}
		got, err := c.HeldRead(held)
		if err != nil || !bytes.HasPrefix(content, got) || len(got) == 0 {
			t.Fatalf("read %d: %d bytes, %v", reads, len(got), err)
		}
		// What is in no cache.
		if got, err := c.ReadFile(in + "data/unread/" + itoa(reads%unread)); err != nil || string(got) != "unread" {
			t.Fatalf("read %d of another object: %q, %v", reads, got, err)
		}
		if time.Since(began) > time.Duration(ended+1)*sessionLength {
			asked := w.s3.Stats()["get"]
			if got, err := c.HeldRead(later[ended]); err != nil || string(got) != "later"+itoa(ended) {
				t.Fatalf("after %d sessions: %q, %v", ended+1, got, err)
			}
			if w.s3.Stats()["get"] == asked {
				t.Error("what was read came from no server")
			}
			ended++
		}
		reads++
	}
	reads += load()
	if got := w.keeper.PID(p.UID + "/data"); got != pid || w.mountIDs(p) != mounts {
		t.Errorf("it was made anew: pid %d, was %d; mounts %s, were %s", got, pid, w.mountIDs(p), mounts)
	}
	t.Logf("%d reads over %d sessions", reads, ends)
}

// readers reads objects, whose content is "unread", through the container's mount until
// end is called, which fails the test where a read failed and returns how many there were.
func (w *world) readers(c *simnode.Container, object func(int) string) (end func() int) {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	w.t.Cleanup(stop)
	dir := fmt.Sprintf("/proc/%d/root%sdata", c.PID(), in)
	var reads atomic.Int64
	var group errgroup.Group
	for range 3 {
		group.Go(func() error {
			for ctx.Err() == nil {
				name := filepath.Join(dir, object(int(reads.Add(1))))
				got, err := os.ReadFile(name)
				if err == nil && string(got) != "unread" {
					err = fmt.Errorf("it has %q", got)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		})
	}
	return func() int {
		w.t.Helper()
		stop()
		if err := group.Wait(); err != nil {
			w.t.Errorf("under load: %v", err)
		}
		return int(reads.Load())
	}
}

func TestASessionThatIsNotRefreshedIsAnErrorAndNoHang(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	events := &told{}
	w.Events = events
	w.restart()
	p, c := w.grantedForAWhile("pod", bucketName, grant.ReadWrite)
	st := p.Answered(failedWith("MOUNT_DEAD"))
	if text := events.String(); !strings.Contains(text, agent.ReasonDegraded) || !strings.Contains(text, "expired") {
		t.Errorf("the events are %s", text)
	}
	if !strings.Contains(st.Messages["data"], "expired") || st.State != grant.StateDegraded {
		t.Errorf("the answer is %+v", st)
	}
	began := time.Now()
	if got, err := c.ReadFile(in + "data/a.txt"); err == nil {
		t.Errorf("it reads %q", got)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a read failed after %v", took)
	}
	w.secrets.put(p, "session", w.s3.Session(hour).Data())
	p.Answered(isReady)
	w.within(20*time.Second, "it is read again", func() bool {
		got, err := c.ReadFile(in + "data/a.txt")
		return err == nil && string(got) == "a"
	})
}

func TestASecretThatIsTakenAwayIsToldAndOneThatIsRotatedIsUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	p, c := w.granted("pod", bucketName, grant.ReadOnly, w.s3.Session(20*time.Second))
	w.secrets.drop(p, "session")
	st := p.Answered(failedWith("MOUNT_DEAD"))
	if !strings.Contains(st.Messages["data"], "does not exist") {
		t.Errorf("deleted: %+v", st)
	}
	w.secrets.mu.Lock()
	w.secrets.has[namespaceOf(p)+"/session"] = secret.Stored{
		Owners: []secret.Owner{{APIVersion: "v1", Kind: "Pod", UID: "another"}}, Data: secret.NewData(w.s3.Key().Data()),
	}
	w.secrets.mu.Unlock()
	st = p.Answered(func(st *grant.Status) bool { return strings.Contains(st.Messages["data"], "does not belong") })
	if st.State != grant.StateDegraded {
		t.Errorf("re-owned: %+v", st)
	}
	w.secrets.put(p, "session", w.s3.Key().Data())
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a" {
		t.Errorf("rotated: %q, %v", got, err)
	}
}

// told are the events of a node, as text.
type told struct{ textlog.Log }

// Event implements agent.Events.
func (e *told) Event(_ plan.Pod, _ bool, reason, message string) {
	fmt.Fprintln(&e.Log, reason, message)
}

// mountIDs are the kernel's numbers of what stands at the Pod's target.
func (w *world) mountIDs(p *agenttest.Pod) string {
	w.t.Helper()
	ms, err := new(mnt.Kernel).List()
	must(w.t, err)
	var ids []string
	for _, m := range ms {
		if m.Point == filepath.Join(w.Root, "pods", p.UID, "data") {
			ids = append(ids, itoa(m.ID))
		}
	}
	return strings.Join(ids, " ")
}
