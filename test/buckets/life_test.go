package buckets

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func itoa(n int) string { return strconv.Itoa(n) }

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func wants(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestAnAgentThatIsReplacedDisturbsNobody(t *testing.T) {
	w := newWorld(t)
	content := bytes.Repeat([]byte("x"), 1<<20)
	w.s3.Put(bucketName, "a", content)
	for i := range 3 {
		w.s3.Put(bucketName, "n"+itoa(i), []byte("n"))
	}
	p, c := w.grantedForAWhile("pod", bucketName, grant.ReadWrite)
	held, err := c.Hold(in + "data/a")
	must(t, err)
	pid := w.keeper.PID(p.UID + "/data")
	for i := range 3 {
		w.StopAgent()
		if got, err := c.HeldRead(held); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("without an agent: %d bytes, %v", len(got), err)
		}
		must(t, c.WriteFile(in+"data/w"+itoa(i), []byte("w"), 0o644))
		end := w.renewing(p)
		w.restart()
		p.Answered(isReady)
		// The new agent serves the session of a process that it did not start.
		if got, err := c.ReadFile(in + "data/n" + itoa(i)); err != nil || string(got) != "n" {
			t.Fatalf("after %d restarts: %q, %v", i+1, got, err)
		}
		end()
	}
	if got := w.keeper.PID(p.UID + "/data"); got != pid {
		t.Errorf("the process was replaced: %d, was %d", got, pid)
	}
}

func TestAProcessThatIsKilledIsReplacedWhileItsCachesAreWarm(t *testing.T) {
	w := newWorld(t)
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	p, c := w.granted("pod", bucketName, grant.ReadWrite, w.s3.Key())
	mounts, point := w.mounts(c), filepath.Join(w.Root, "pods", p.UID, "data")
	for i := range often(10, 50) {
		_, err := c.ReadDir(in + "data")
		must(t, err)
		end := func() {}
		if mnttest.MountsBeneath() {
			end = neverEmpty(t, point, c)
		}
		must(t, unix.Kill(w.keeper.PID(p.UID+"/data"), unix.SIGKILL))
		began := time.Now()
		st := p.Told(failedWith("MOUNT_DEAD"))
		if st.State != grant.StateDegraded {
			t.Errorf("kill %d: the answer is %+v", i, st)
		}
		p.Answered(isReady)
		if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a" {
			t.Fatalf("kill %d: %q, %v", i, got, err)
		}
		restored := time.Since(began)
		end()
		// Tenants are promised seconds. A busy machine takes more of them; the pause after a
		// process that does not come to serve is longer than this.
		if restored > 20*time.Second {
			t.Errorf("kill %d: restored after %v", i, restored)
		}
		if got := w.mounts(c); got != mounts {
			t.Fatalf("kill %d: %d mounts, were %d", i, got, mounts)
		}
		if i == 0 {
			// Another container, between two kills.
			must(t, p.Ctr.Stop())
			c = p.Start(simnode.ContainerOptions{}).AsUser(userID, groupID)
			p.Answered(isReady)
			mounts = w.mounts(c)
		}
	}
}

// neverEmpty reads a folder that is not empty over and over until it is told to end,
// on the node and in a container. Each time there is an error, or what is in it.
func neverEmpty(t *testing.T, point string, c *simnode.Container) (end func()) {
	t.Helper()
	told := make(chan struct{})
	var group sync.WaitGroup
	for where, read := range map[string]func() (int, error){
		"on the node": func() (int, error) {
			entries, err := os.ReadDir(point)
			return len(entries), err
		},
		"in the container": func() (int, error) {
			names, err := c.ReadDir(in + "data")
			return len(names), err
		},
	} {
		group.Go(func() {
			for {
				if n, err := read(); err == nil && n == 0 {
					t.Errorf("%s: an empty folder", where)
					return
				}
				select {
				case <-told:
					return
				default:
				}
			}
		})
	}
	end = sync.OnceFunc(func() {
		close(told)
		group.Wait()
	})
	t.Cleanup(end)
	return end
}

// mounts is how many a container has.
func (w *world) mounts(c *simnode.Container) int {
	w.t.Helper()
	ms, err := c.Mounts()
	must(w.t, err)
	return len(ms)
}

func TestWhatIsWrittenWhenThePodEndsIsStored(t *testing.T) {
	w := newWorld(t)
	p, c := w.granted("pod", bucketName, grant.ReadWrite, w.s3.Key())
	content := bytes.Repeat([]byte("y"), 8<<20)
	must(t, c.WriteFile(in+"data/last", content, 0o644))
	must(t, p.Ctr.Stop())
	w.API.Delete(p.UID)
	p.Pass()
	w.within(time.Minute, "the process has ended", func() bool { return len(w.keeper.Children()) == 0 })
	if got, err := os.ReadFile(filepath.Join(w.s3.Dir, bucketName, "last")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the server has %d bytes, %v", len(got), err)
	}
	if left := w.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAKeeperThatIsReplacedCostsOldHandlesAlone(t *testing.T) {
	w := newWorld(t)
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	p, c := w.granted("pod", bucketName, grant.ReadWrite, w.s3.Key())
	held, err := c.Hold(in + "data/a.txt")
	must(t, err)
	w.keeper.Kill()
	p.Answered(failedWith("MOUNT_DEAD"))
	w.keeper.Start()
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := c.HeldRead(held); err == nil {
		t.Error("an old handle reads on")
	}
}
