package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
	"github.com/datalayer/node-mounts/test/node"
)

// stoodAtTheCrash counts the folders that the first life of crashesOnce saw before it
// ended.
func (w *world) stoodAtTheCrash(t *testing.T, p *corev1.Pod) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(w.in(t, p, "cat", "/mnt/beside/stood")))
	must(t, err)
	return n
}

// crashesOnce is a program whose first life ends by a crash, soon after it can
// write into a folder. The second one has to find there, in its first moment, what
// the first one wrote. Which life it is, another volume tells.
func crashesOnce(target string, after time.Duration) func(*operator.Runtime) {
	mark := inPod + "/" + target + "/crashed"
	script := "if [ -e /mnt/beside/lived ]; then [ -e " + mark + " ] && exec tenant wait; echo no folder >&2; exit 1; fi; " +
		": >/mnt/beside/lived; until (: >" + mark + ") 2>/dev/null; do :; done; " +
		"grep -c ' " + inPod + "/' /proc/self/mountinfo >/mnt/beside/stood; exec tenant crash-after " + after.String()
	return func(r *operator.Runtime) {
		withSecondVolume(r)
		r.Command = []string{"sh", "-c", script}
	}
}

// crashed waits for the second life of the Pod's container.
func (w *world) crashed(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	after, err := w.WaitPod(within(t, 2*time.Minute), p.Namespace, p.Name, func(p *corev1.Pod) error {
		if n := p.Status.ContainerStatuses[0].RestartCount; n < 1 {
			return fmt.Errorf("%d restarts", n)
		}
		return node.Ready(p)
	})
	must(t, err)
	s := after.Status.ContainerStatuses[0]
	if s.RestartCount != 1 {
		t.Errorf("%s: %d restarts, want 1: the folders were not there when the second life began", p.Name, s.RestartCount)
	}
	if last := s.LastTerminationState.Terminated; last == nil || last.ExitCode != 137 {
		t.Errorf("%s: the first life did not crash: %+v", p.Name, last)
	}
	return after
}

func crashes(t *testing.T, w *world) {
	t.Run("with folders that stand", func(t *testing.T) {
		p := w.run(t, pooled(t, "crash", crashesOnce("joe", 2*time.Second)))
		w.mustGrant(t, p, home("joe"), dataset("mnist"))
		p = w.crashed(t, p)
		w.insideOnce(t, p, "joe", "mnist")
		w.answered(t, p)
		w.remove(t, p)
		w.leftNothing(t, p)
	})
	// How far the grant is when the program crashes, the machine decides here;
	// crashesInMidGrant decides it itself.
	for round := range 3 {
		t.Run(fmt.Sprintf("as a grant goes on, %d", round), func(t *testing.T) {
			var mounts []grant.Mount
			var targets []string
			for i := range 30 {
				mounts = append(mounts, home(fmt.Sprintf("mid%d-%02d", round, i)))
				targets = append(targets, mounts[i].Target)
			}
			p := w.run(t, pooled(t, fmt.Sprintf("mid-grant-%d", round), crashesOnce(targets[0], time.Millisecond)))
			w.mustGrant(t, p, mounts...)
			p = w.crashed(t, p)
			t.Logf("%d of 30 folders stood at the crash", w.stoodAtTheCrash(t, p))
			w.answered(t, p)
			w.insideOnce(t, p, targets...)
			w.remove(t, p)
			w.leftNothing(t, p)
		})
	}
}

// crashesInMidGrant has a container crash and come back while its home folder stands
// and the grant's other mount is held up, which letGo ends.
func (w *world) crashesInMidGrant(t *testing.T, held func(*corev1.Pod) grant.Mount, letGo func()) {
	t.Helper()
	p := w.run(t, pooled(t, "mid-grant", crashesOnce("eve", time.Millisecond)))
	mount := held(p)
	_, err := w.operator.Grant(within(t, time.Minute), operator.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, home("eve"), mount)
	must(t, err)
	p = w.crashed(t, p)
	if stood := w.stoodAtTheCrash(t, p); stood != 1 {
		t.Errorf("%d folders stood at the crash, want 1: it did not come in the middle of the grant", stood)
	}
	w.insideOnce(t, p, "eve")
	letGo()
	w.answered(t, p)
	w.insideOnce(t, p, "eve", mount.Target)
	w.remove(t, p)
	w.leftNothing(t, p)
}

// savesAtTheEnd has a notebook that saves for four seconds after the deletion. A
// finalizer keeps the Pod's last status readable.
func savesAtTheEnd(t *testing.T, w *world) {
	const keep, line = "datalayer.test/keep", "a line that is saved"
	pod := pooled(t, "saves", func(r *operator.Runtime) {
		r.Grace = 20 * time.Second
		r.Command = []string{"tenant", "write-on-term", "-for", "4s", inPod + "/zoe/notes", line}
	})
	pod.Finalizers = []string{keep}
	p := w.create(t, pod)
	letGo := func(ctx context.Context) error {
		_, err := w.api.CoreV1().Pods(runtimes).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() { _ = letGo(context.WithoutCancel(t.Context())) }) // where the test ends early
	p = w.waitReady(t, p)
	w.mustGrant(t, p, home("zoe"))
	ctx := within(t, 2*time.Minute)
	must(t, w.api.CoreV1().Pods(runtimes).Delete(ctx, p.Name, metav1.DeleteOptions{}))
	ended, err := w.WaitPod(ctx, runtimes, p.Name, func(p *corev1.Pod) error {
		if p.Status.ContainerStatuses[0].State.Terminated == nil {
			return errors.New("it runs")
		}
		return nil
	})
	must(t, err)
	// Its status is that of its writes: an append that fails ends the program with 1.
	if last := ended.Status.ContainerStatuses[0].State.Terminated; last.ExitCode != 0 {
		t.Errorf("the notebook ended with %d: %s", last.ExitCode, last.Message)
	}
	text, err := os.ReadFile(w.claim("home/users/zoe/notes"))
	must(t, err)
	lines := strings.Count(string(text), line+"\n")
	if rest := strings.ReplaceAll(string(text), line+"\n", ""); lines < 2 || rest != "" {
		t.Errorf("on the claim are %d lines, and %q", lines, rest)
	}
	t.Logf("%d lines were saved after the deletion", lines)
	must(t, letGo(ctx))
	must(t, w.WaitGone(ctx, runtimes, p.Name))
	w.leftNothing(t, p)
}

// deadAgent deletes a Pod that nobody takes the folders from.
func deadAgent(t *testing.T, w *world) {
	home0 := w.claim("home/users/kim")
	belongings(t, home0)
	before := snapshot(t, home0)
	hangs := func(t *testing.T, name string) *corev1.Pod {
		t.Helper()
		p := w.run(t, pooled(t, name, nil))
		w.mustGrant(t, p, home("kim"), dataset("mnist"))
		w.stopAgent(t)
		w.insideOnce(t, p, "kim", "mnist")
		ctx := within(t, 2*time.Minute)
		must(t, w.api.CoreV1().Pods(runtimes).Delete(ctx, p.Name, metav1.DeleteOptions{}))
		must(t, node.Until(ctx, "kubelet to say busy", func(context.Context) error {
			if n := w.busyLines(t, p); n < 3 {
				return fmt.Errorf("it said so %d times", n)
			}
			return nil
		}))
		now, err := w.api.CoreV1().Pods(runtimes).Get(ctx, p.Name, metav1.GetOptions{})
		must(t, err)
		if now.UID != p.UID || now.DeletionTimestamp == nil {
			t.Errorf("the Pod is %s, deleted at %v", now.UID, now.DeletionTimestamp)
		}
		untouched(t, before, home0)
		return p
	}
	t.Run("until the agent returns", func(t *testing.T) {
		t.Cleanup(func() { w.startAgentAfter(t) })
		p := hangs(t, "orphan")
		w.startAgent(t)
		must(t, w.WaitGone(within(t, 2*time.Minute), runtimes, p.Name))
		w.leftNothing(t, p)
		untouched(t, before, home0)
	})
	t.Run("until somebody recovers it", func(t *testing.T) {
		t.Cleanup(func() { w.startAgentAfter(t) })
		p := hangs(t, "recovered")
		out, err := w.Run(within(t, time.Minute), commandsDir+"/node-mounts", "recover", runtimes+"/"+p.Name)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{"kim ", "mnist ", "taken down", "Nothing of "} {
			if !strings.Contains(string(out), want) {
				t.Errorf("recover does not say %q:\n%s", want, out)
			}
		}
		must(t, w.WaitGone(within(t, 2*time.Minute), runtimes, p.Name))
		w.leftNothing(t, p)
		untouched(t, before, home0)
		// The agent has nothing to complain about when it comes back.
		w.startAgent(t)
		next := w.run(t, pooled(t, "after-recovery", nil))
		w.mustGrant(t, next, home("kim"))
		w.insideOnce(t, next, "kim")
		w.remove(t, next)
		w.leftNothing(t, next)
		untouched(t, before, home0)
	})
}
