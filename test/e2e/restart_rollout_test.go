package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/test/node"
)

// TestAnAgentIsReplacedUnderTenants has a claim that the kernel keeps, and that
// kubelet mounts and unmounts together with the agent's Pod.
func TestAnAgentIsReplacedUnderTenants(t *testing.T) {
	w := newWorld(t, setup{bare: true, volume: &corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: claimPath}}})
	host(t, w.Node, "mount", "-t", "tmpfs", "claim", claimPath)
	w.install(t)
	must(t, os.MkdirAll(w.claim("datasets/mnist"), 0o755))
	must(t, os.WriteFile(w.claim("datasets/mnist/data"), []byte("data\n"), 0o644))
	if r := w.outlives(t); r.Status != "ok" {
		t.Errorf("verify says %+v", r)
	}
	p := w.run(t, pooled(t, "tenant", nil))
	w.mustGrant(t, p, home("ada"), dataset("mnist"))
	busy := w.keepBusy(t, p, "ada", "mnist")
	lines, count := w.insideOnce(t, p, "ada", "mnist"), w.mountsOnNode(t, p)

	for range 2 {
		old := w.agentPod(within(t, time.Minute), t)
		if n := w.claimsOf(t, old); n < 1 {
			t.Fatalf("kubelet has mounted the claim %d times for the agent", n)
		}
		w.replaceAgent(t)
		must(t, node.Until(within(t, time.Minute), "kubelet to unmount the claim", func(context.Context) error {
			if n := w.claimsOf(t, old); n > 0 {
				return fmt.Errorf("it is there %d times", n)
			}
			return nil
		}))
		w.answered(t, p)
		if now := w.insideOnce(t, p, "ada", "mnist"); !slices.Equal(now, lines) {
			t.Errorf("with the next agent, inside are\n%q, before\n%q", now, lines)
		}
		if n := w.mountsOnNode(t, p); n != count {
			t.Errorf("with the next agent, the node has %d mounts for the Pod, before %d", n, count)
		}
	}
	busy.endWell(t)
	// The next agent takes away what an earlier one made.
	w.mustGrant(t, p, home("ada"))
	w.insideOnce(t, p, "ada")
	w.mustGrant(t, p, home("bob"), dataset("mnist"))
	w.insideOnce(t, p, "bob", "mnist")
	w.remove(t, p)
	w.leftNothing(t, p)
	w.wentInTime(t, p)
}

// outlives is what verify says about the claim and the agent's end.
func (w *world) outlives(t *testing.T) row {
	t.Helper()
	rows := w.verify(t, 0)
	at := slices.IndexFunc(rows, func(r row) bool { return r.Check == "Claim outlives the agent" })
	if at < 0 {
		t.Fatalf("verify has no such row: %+v", rows)
	}
	return rows[at]
}

// claimsOf counts the mounts of a Pod's claim on the node.
func (w *world) claimsOf(t *testing.T, p *corev1.Pod) int {
	t.Helper()
	info, err := w.MountInfo()
	must(t, err)
	count := 0
	for line := range strings.Lines(info) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], w.KubeletDir()+"/pods/"+string(p.UID)+"/volumes/") && strings.HasSuffix(fields[4], "/"+claimName) {
			count++
		}
	}
	return count
}

// busyness is what goes on in a Pod's folders, by what it is.
type busyness map[string]program

// keepBusy writes into one folder and reads the file "data" of another, by name and
// through handles that were opened before, and works in a folder.
func (w *world) keepBusy(t *testing.T, p *corev1.Pod, own, shared string) busyness {
	t.Helper()
	w.in(t, p, "sh", "-c", "mkdir "+inPod+"/"+own+"/work && echo kept >"+inPod+"/"+own+"/open")
	begin := func(command, path string) program {
		return w.begin(t, p, command, "-record", "/tmp/"+command, inPod+"/"+path)
	}
	return busyness{
		"writing":                  begin("append-loop", own+"/log"),
		"reading":                  begin("read-loop", shared+"/data"),
		"writing through a handle": begin("append-through", own+"/journal"),
		"reading through a handle": begin("read-through", own+"/open"),
		"working in a folder":      begin("list-loop", own+"/work"),
	}
}

// endWell ends it, and fails where somebody has seen an error.
func (b busyness) endWell(t *testing.T) {
	t.Helper()
	for name, loop := range b {
		seen := loop.endLoop(t)
		if seen.Error != "" || seen.Done < 2 {
			t.Errorf("%s: %+v", name, seen)
		}
		t.Logf("%s: %d times, the slowest took %.1f ms", name, seen.Done, seen.Slow)
	}
}

// TestAClaimThatAProcessServesIsLostWithItAndComesBack has a claim whose server ends when
// the last Pod of the node does that uses it, as CSI drivers of FUSE filesystems
// do it.
func TestAClaimThatAProcessServesIsLostWithItAndComesBack(t *testing.T) {
	w := newWorld(t, setup{bare: true, volume: &corev1.PersistentVolumeSource{
		FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: servedDriver},
	}})
	w.installDriver(t)
	w.install(t)
	must(t, os.MkdirAll(w.claim("datasets/mnist"), 0o755))
	must(t, os.WriteFile(w.claim("datasets/mnist/data"), []byte("data\n"), 0o644))
	p := w.run(t, pooled(t, "tenant", nil))
	w.mustGrant(t, p, home("ada"), dataset("mnist"))

	t.Run("without a holder", func(t *testing.T) {
		if r := w.outlives(t); r.Status != "warn" || !strings.Contains(r.Detail, "claimHolder.enabled") {
			t.Errorf("verify says %+v", r)
		}
		loop := w.begin(t, p, "append-loop", "-record", "/tmp/writes", inPod+"/ada/log")
		answers := w.answersOf(t, p)
		old := w.serverPID(t)
		w.replaceAgent(t)
		if now := w.serverPID(t); now == old {
			t.Fatal("the server has not ended: this shows nothing")
		}
		if seen := loop.endLoop(t); seen.Error == "" {
			t.Errorf("the tenant saw no error: %+v", seen)
		} else {
			t.Logf("the tenant saw %+v", seen)
		}
		w.comeBack(t, p, "again")
		for _, a := range answers() {
			t.Logf("answered: %+v", a)
		}
	})
	t.Run("its server crashes", func(t *testing.T) {
		host(t, w.Node, "kill", "-KILL", w.serverPID(t))
		must(t, node.Until(within(t, 2*time.Minute), "the answer to say so", func(ctx context.Context) error {
			answer, err := w.answer(ctx, p)
			if err == nil && (answer.State != grant.StateDegraded || answer.Failed["ada"] != grant.CodeMountDead || answer.Failed["mnist"] != grant.CodeMountDead) {
				err = fmt.Errorf("it is %+v", answer)
			}
			return err
		}))
		for _, target := range w.status(t, p.Name).Targets {
			if target.State != "dead" {
				t.Errorf("status: %+v", target)
			}
		}
		// An error tells a program more than an empty folder.
		if said := w.refused(t, p, "ls", inPod+"/ada"); !strings.Contains(said, "not connected") {
			t.Errorf("ls says %q", said)
		}
		w.replaceAgent(t)
		w.comeBack(t, p, "after the crash")
	})
	t.Run("with one", func(t *testing.T) {
		w.install(t, "claimHolder.enabled=true")
		ctx := within(t, 2*time.Minute)
		must(t, node.Until(ctx, "the holder", func(ctx context.Context) error {
			d, err := w.api.AppsV1().DaemonSets(system).Get(ctx, release+"-claim-holder", metav1.GetOptions{})
			if err == nil && (d.Status.NumberReady != 1 || d.Status.ObservedGeneration != d.Generation) {
				err = fmt.Errorf("%+v", d.Status)
			}
			return err
		}))
		if r := w.outlives(t); r.Status != "ok" {
			t.Errorf("verify says %+v", r)
		}
		busy := w.keepBusy(t, p, "ada", "mnist")
		lines, server := w.insideOnce(t, p, "ada", "mnist"), w.serverPID(t)
		w.replaceAgent(t)
		w.answered(t, p)
		if now := w.insideOnce(t, p, "ada", "mnist"); !slices.Equal(now, lines) {
			t.Errorf("with the next agent, inside are\n%q, before\n%q", now, lines)
		}
		if now := w.serverPID(t); now != server {
			t.Error("another server answers for the claim")
		}
		busy.endWell(t)
		w.mustGrant(t, p, home("bob"))
		w.insideOnce(t, p, "bob")
	})
	w.remove(t, p)
	w.leftNothing(t, p)
}

// comeBack waits until a Pod that has lost its folders can use them again, and the
// answer says so. text is written into them.
func (w *world) comeBack(t *testing.T, p *corev1.Pod, text string) {
	t.Helper()
	must(t, node.Until(within(t, 3*time.Minute), "the folders to come back", func(ctx context.Context) error {
		argv := []string{"sh", "-c", "echo " + text + " >" + inPod + "/ada/again && cat " + inPod + "/mnist/data"}
		_, problems, code, err := w.Exec(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name, argv, nil)
		if err == nil && code != 0 {
			err = errors.New(problems)
		}
		return err
	}))
	w.insideOnce(t, p, "ada", "mnist")
	must(t, node.Until(within(t, time.Minute), "the answer to be ready", func(ctx context.Context) error {
		answer, err := w.answer(ctx, p)
		if err == nil && answer.State != grant.StateReady {
			err = fmt.Errorf("it is %+v", answer)
		}
		return err
	}))
	if got, err := os.ReadFile(w.claim("home/users/ada/again")); err != nil || string(got) != text+"\n" {
		t.Errorf("on the claim: %q, %v", got, err)
	}
}

// answersOf notes every answer of a Pod from now on; what it returns ends that and
// returns them.
func (w *world) answersOf(t *testing.T, p *corev1.Pod) func() []grant.Status {
	t.Helper()
	events, err := w.api.CoreV1().Pods(p.Namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name})
	must(t, err)
	done := make(chan []grant.Status)
	go func() {
		var all []grant.Status
		last := ""
		for e := range events.ResultChan() {
			now, isPod := e.Object.(*corev1.Pod)
			if !isPod {
				continue
			}
			text := now.Annotations[grant.NamesFor("").Ready]
			if st, err := grant.DecodeStatus(text); err == nil && text != last {
				all, last = append(all, st), text
			}
		}
		done <- all
	}()
	return func() []grant.Status {
		events.Stop()
		return <-done
	}
}
