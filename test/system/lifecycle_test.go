package system_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/mnt"
)

func twoFolders() []grant.Mount {
	return []grant.Mount{home("home/users/ada", "ada"), dataset("datasets/cats", "cats")}
}

// failedPod: it has ended and is kept to be looked at. Its mounts and its answer
// go, the Pod and its grant stay.
func failedPod(t *testing.T, c *cluster) {
	n := c.node(t)
	p := n.run("sandbox")
	n.startAgent(agentOptions{})
	p.grant(twoFolders()...)
	must(t, p.ctr.Stop())
	p.report(corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}})
	p.forgotten()
	eventually(t, "the answer to be removed", func() string {
		if st := p.ready(); st != nil {
			return fmt.Sprintf("it is %+v", st)
		}
		return ""
	})
	now, err := p.get()
	must(t, err)
	if now.Annotations[c.names.Mounts] == "" {
		t.Error("the grant has been removed")
	}
	p.tornDown()
	p.remove()
}

// longPreStop: the sandbox goes on working for a while after the Pod was deleted,
// and saves what it has at the last moment.
func longPreStop(t *testing.T, c *cluster) {
	n := c.node(t)
	p := n.run("sandbox")
	n.startAgent(agentOptions{})
	set := twoFolders()
	p.grant(set...)
	const grace = time.Minute
	p.terminate(int64(grace / time.Second))
	saves := 0
	throughout(t, 3*time.Second, func() string {
		saves++
		if err := p.ctr.WriteFile(in+"ada/notebook", []byte(fmt.Sprint(saves)), 0o644); err != nil {
			return err.Error()
		}
		if _, err := p.TearDownVolume(); !errors.Is(err, unix.EBUSY) {
			return fmt.Sprintf("kubelet's teardown while the container runs: %v", err)
		}
		return p.differs(set)
	})
	must(t, p.ctr.WriteFile(in+"ada/notebook", []byte("saved"), 0o644))
	must(t, p.ctr.Stop())
	took := p.tornDown()
	t.Logf("%d saves; the volume was gone %v after the container", saves, took.Round(time.Millisecond))
	// And not until the Pod's grace period is over.
	if took > grace/2 {
		t.Errorf("the mounts stayed for %v", took)
	}
	p.remove()
	p.forgotten()
	path := filepath.Join(n.Claim, "home/users/ada/notebook")
	if got, err := os.ReadFile(path); err != nil || string(got) != "saved" {
		t.Errorf("the notebook is %q, %v", got, err)
	}
	must(t, os.Remove(path))
}

// podGoesUnseen: the Pod is deleted, all of it, while no agent runs.
func podGoesUnseen(t *testing.T, c *cluster) {
	n := c.node(t)
	p, stays := n.run("sandbox"), n.run("stays")
	n.startAgent(agentOptions{})
	set := twoFolders()
	p.grant(set...)
	stays.grant(set...)
	ids := stays.ids()
	n.agent.Kill()
	must(t, p.ctr.Stop())
	p.remove()
	for range 3 {
		if how, err := p.TearDownVolume(); how != "tmpfs" || !errors.Is(err, unix.EBUSY) {
			t.Errorf("kubelet's teardown with grants standing: %s, %v", how, err)
		}
	}
	n.mustHaveClaim()
	n.startAgent(agentOptions{})
	p.tornDown()
	p.forgotten()
	stays.mustHave(set)
	for target, id := range stays.ids() {
		if ids[target] != id {
			t.Errorf("the other Pod's %s is mount %d, was %d", target, id, ids[target])
		}
	}
	stays.delete()
}

// rebootedNode: the journal is there, and of what it tells of nothing is mounted.
func rebootedNode(t *testing.T, c *cluster) { reboot(t, c, func(*node, *pod) {}) }

// rebootedAroundATree: what stands in the tree's place after a boot is, in all that
// a record tells, what stood there before: device, root and flags. It is so on a
// node that is a container and has the agent's folder from a shared mount outside
// (k3d's --volume …:shared), and may be on any other, where a boot hands out device
// numbers from the start. Whatever else became of it meanwhile, no record tells.
func rebootedAroundATree(t *testing.T, c *cluster) {
	reboot(t, c, func(n *node, p *pod) {
		n.outlives = p.tree()
		foreign := filepath.Join(p.tree(), "cats/deep")
		must(t, unix.Mount("foreign", foreign, "tmpfs", 0, "mode=0777"))
	})
}

func reboot(t *testing.T, c *cluster, meanwhile func(*node, *pod)) {
	n := c.node(t)
	n.boot = "the first boot"
	p := n.run("sandbox")
	n.startAgent(agentOptions{})
	set := append(twoFolders(), home("home/users/bob", "bob"))
	p.grant(set...)
	answered, err := p.get()
	must(t, err)

	n.agent.Kill()
	must(t, p.ctr.Stop())
	meanwhile(n, p)
	n.powerFails()
	if !p.known() {
		t.Fatal("the journal is gone too")
	}
	n.boot = "the second boot"
	n.startAgent(agentOptions{})
	eventually(t, "the answer to say what is true now", func() string {
		if st := p.ready(); st == nil || st.State != grant.StateFailed || st.Failed["*"] != grant.CodeNotReady || len(st.Mounted) > 0 {
			return fmt.Sprintf("it is %+v", st)
		}
		return ""
	})
	must(t, p.SetUpVolume(false))
	p.startContainer()
	eventually(t, "the mounts to be made again", func() string { return p.differs(set) })
	eventually(t, "the answer to be what it was", func() string {
		now, err := p.get()
		must(t, err)
		if now.Annotations[c.names.Ready] != answered.Annotations[c.names.Ready] {
			return now.Annotations[c.names.Ready]
		}
		return ""
	})
	for _, name := range []string{"cats/new", "cats/deep/new"} {
		if err := p.ctr.WriteFile(in+name, nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("a write to %s in the dataset: %v", name, err)
		}
	}
	if got, err := p.ctr.ReadFile(in + "cats/deep/two"); err != nil || string(got) != "datasets/cats deep/two" {
		t.Errorf("in the dataset the sandbox reads %q, %v", got, err)
	}
	p.grant(set[:2]...)
	p.delete()
}

// powerFails takes everything away that ends with a boot. What kubelet has on the
// disk beneath its mounts stays.
func (n *node) powerFails() {
	n.t.Helper()
	mortal := func() []mnt.Mount {
		return slices.DeleteFunc(n.ours(), func(m mnt.Mount) bool { return n.outlives != "" && mnt.Within(n.outlives, m.Point) })
	}
	eventually(n.t, "the mounts to be gone", func() string {
		ms := mortal()
		if len(ms) == 0 {
			return ""
		}
		deepest := ms[0]
		for _, m := range ms {
			if strings.Count(m.Point, "/") >= strings.Count(deepest.Point, "/") {
				deepest = m
			}
		}
		if err := unix.Unmount(deepest.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Sprintf("%s: %v", deepest.Point, err)
		}
		return fmt.Sprintf("%d stood", len(ms))
	})
	if left := mortal(); len(left) > 0 {
		n.t.Fatalf("%v survive a reboot", left)
	}
}
