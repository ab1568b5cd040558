package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/operator"
	"github.com/datalayer/node-mounts/test/node"
)

// componentsRestartUnderGrants: neither the agent's Pod nor the sandbox ends, so
// nothing may move.
func componentsRestartUnderGrants(t *testing.T, w *world) {
	p := w.run(t, pooled(t, "stays", nil))
	w.mustGrant(t, p, home("lea"), dataset("mnist"))
	lines, count := w.insideOnce(t, p, "lea", "mnist"), w.mountsOnNode(t, p)
	loop := w.begin(t, p, "append-loop", "-record", "/tmp/record", inPod+"/lea/log")
	for _, name := range []string{node.Kubelet, node.Containerd} {
		ctx := within(t, 3*time.Minute)
		must(t, w.Restart(ctx, name))
		must(t, w.WaitReady(ctx))
		w.agentPod(ctx, t)
		// What the restarted component thinks of the Pod shows in a Pod that comes after.
		next := w.run(t, pooled(t, "after-"+name, nil))
		w.mustGrant(t, next, home("lea"))
		w.insideOnce(t, next, "lea")
		w.remove(t, next)
		w.leftNothing(t, next)
		w.answered(t, p)
		if now := w.insideOnce(t, p, "lea", "mnist"); !slices.Equal(now, lines) {
			t.Errorf("after %s, inside are\n%q, before\n%q", name, now, lines)
		}
		if n := w.mountsOnNode(t, p); n != count {
			t.Errorf("after %s the node has %d mounts for the Pod, before %d", name, n, count)
		}
	}
	if seen := loop.endLoop(t); seen.Error != "" || seen.Done < 2 {
		t.Errorf("the tenant saw %+v", seen)
	}
	w.mustGrant(t, p)
	w.insideOnce(t, p)
	w.remove(t, p)
	w.leftNothing(t, p)
}

// walkers is how many Pods kubelet prepares at once in the story of fsGroup.
const walkers = 20

// withGroup gives a Pod a group, and a second volume.
func withGroup(r *operator.Runtime) {
	r.FSGroup = 4000
	withSecondVolume(r)
}

func withSecondVolume(r *operator.Runtime) {
	r.Volumes = []corev1.Volume{{Name: "beside", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	r.Mounts = []corev1.VolumeMount{{Name: "beside", MountPath: "/mnt/beside"}}
}

// fsGroupWalk has grants that are there before kubelet knows the Pod: as it is
// made, and again when the node boots. kubelet walks a new volume and gives
// everything it finds to the Pod's group.
func fsGroupWalk(t *testing.T, w *world) {
	homes := map[string]map[string]string{}
	var pods []*corev1.Pod
	for i := range walkers {
		name := fmt.Sprintf("walk%02d", i)
		belongings(t, w.claim("home/users", name))
		homes[name] = snapshot(t, w.claim("home/users", name))
		p := pooled(t, name, withGroup)
		pods = append(pods, w.create(t, granted(t, p, home(name), dataset("mnist"))))
	}
	data := snapshot(t, w.claim("datasets"))
	unmoved := func(when string) {
		t.Helper()
		for name, before := range homes {
			untouched(t, before, w.claim("home/users", name))
		}
		untouched(t, data, w.claim("datasets"))
		if t.Failed() {
			t.Fatalf("%s", when)
		}
	}
	counts := make([]int, walkers)
	for i := range pods {
		pods[i] = w.settled(t, pods[i], node.Ready, pods[i].Name, "mnist")
		counts[i] = w.mountsOnNode(t, pods[i])
		// It has been there: the volume beside ours shows it.
		if got := strings.TrimSpace(w.in(t, pods[i], "stat", "-c", "%g %a", "/mnt/beside")); got != "4000 3777" {
			t.Errorf("%s: the other volume is %s", pods[i].Name, got)
		}
	}
	unmoved("after the Pods were made")

	start := time.Now()
	must(t, w.Reboot(within(t, 5*time.Minute)))
	for i := range pods {
		pods[i] = w.settled(t, pods[i], node.Restarted(pods[i]), pods[i].Name, "mnist")
		if n := w.mountsOnNode(t, pods[i]); n != counts[i] {
			t.Errorf("%s: after the reboot the node has %d mounts for the Pod, before %d", pods[i].Name, n, counts[i])
		}
	}
	t.Logf("%d Pods had their folders %s after the reboot began", walkers, time.Since(start).Round(time.Second))
	unmoved("after the reboot")

	ctx := within(t, 4*time.Minute)
	for _, p := range pods {
		must(t, w.api.CoreV1().Pods(runtimes).Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	for _, p := range pods {
		must(t, w.WaitGone(ctx, runtimes, p.Name))
		w.leftNothing(t, p)
	}
	unmoved("after the Pods were deleted")
}

// settled waits until a Pod is as the condition says, and has each of the targets
// inside, answered, and once. It returns the Pod.
func (w *world) settled(t *testing.T, p *corev1.Pod, condition func(*corev1.Pod) error, targets ...string) *corev1.Pod {
	t.Helper()
	ctx := within(t, 5*time.Minute)
	now, err := w.WaitPod(ctx, p.Namespace, p.Name, condition)
	must(t, err)
	must(t, node.Until(ctx, "the folders of "+p.Name, func(ctx context.Context) error {
		answer, err := w.answer(ctx, p)
		if err == nil && len(answer.Mounted) != len(targets) {
			err = fmt.Errorf("the answer is %+v", answer)
		}
		// An answer of before the boot may stand still.
		if err == nil && len(w.mountsInside(t, p)) < len(targets) {
			err = errors.New("they are not inside")
		}
		return err
	}))
	w.answered(t, p)
	w.insideOnce(t, p, targets...)
	return now
}
