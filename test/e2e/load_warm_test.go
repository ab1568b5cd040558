package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/operator"
	"github.com/datalayer/node-mounts/test/node"
)

const warmTurns = 9

// watching is the same program in a new Pod and in a warm one: it reads the file in
// the folder as soon as it can, and leaves one of its own there, whose time is the
// kernel's. Nobody has to look from outside.
func watching(folder string) []string {
	return []string{"sh", "-c", `until read line <` + folder + `/file; do usleep 1000; done 2>/dev/null; : >` + folder + `/seen; exec tenant wait`}
}

// coldAndWarm measures, in turns, how long a person waits for a folder: in a Pod
// that is made for them with the folder as its volume, and in one that runs already
// and is granted it.
func coldAndWarm(t *testing.T, w *world, r *report) {
	var cold, started, warm, answered []time.Duration
	for turn := range warmTurns {
		a, b := w.cold(t, fmt.Sprintf("cold%d", turn))
		cold, started = append(cold, a), append(started, b)
		a, b = w.warm(t, fmt.Sprintf("warm%d", turn))
		warm, answered = append(warm, a), append(answered, b)
	}
	ratio := float64(median(cold)) / float64(median(warm))
	t.Logf("cold %v, warm %v", cold, warm)
	if median(cold) <= median(warm) {
		t.Errorf("a warm Pod is no better than a new one: %v, %v", median(warm), median(cold))
	}
	r.say(`
### A new Pod and a warm one

Until the same program, in the same image, can read a file in the same folder. *New*: a Pod is created with the folder as a
volume; the image is on the node, and nothing has to be attached. *Warm*: the Pod runs, and is granted the folder. Nothing
else runs on the node. Milliseconds, the median of %d turns (least to most); the times are the kernel's, to its tick.
`, warmTurns)
	r.table("What", "new Pod", "warm Pod", "new / warm")
	r.row("the program reads the file", spread(cold), spread(warm), fmt.Sprintf("**%.0f times** (target: 20)", ratio))
	r.row("a watcher has the Pod Ready, and the answer", spread(started), spread(answered), fmt.Sprintf("%.0f times", float64(median(started))/float64(median(answered))))
}

// folder makes one with a file that the Pods' user may write beside.
func (w *world) folder(t *testing.T, name string) string {
	t.Helper()
	dir := w.claim("home/users", name)
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(path.Join(dir, "file"), []byte("there\n"), 0o644))
	must(t, os.Chown(dir, operator.DefaultUser, operator.DefaultGroup))
	return dir
}

// seen waits for the program's file, and returns how long after begin it was made.
func seen(t *testing.T, dir string, begin time.Time) time.Duration {
	t.Helper()
	var at time.Time
	must(t, node.Until(within(t, time.Minute), "the program to see the folder", func(context.Context) error {
		info, err := os.Stat(path.Join(dir, "seen"))
		if err == nil {
			at = info.ModTime()
		}
		return err
	}))
	return at.Sub(begin.Round(0)) // by the wall clock, as the file's time is
}

func (w *world) cold(t *testing.T, name string) (read, ready time.Duration) {
	t.Helper()
	dir := w.folder(t, name)
	p := pooled(t, name, func(r *operator.Runtime) { r.Command = watching("/mnt/datalayer/" + name) })
	// The Pod as it is without Node Mounts.
	p.Labels = nil
	p.Spec.Volumes = []corev1.Volume{hostPath("home", path.Join(claimPath, "home/users", name))}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "home", MountPath: "/mnt/datalayer/" + name}}
	begin := time.Now()
	made := w.create(t, p)
	w.waitReady(t, made)
	ready = time.Since(begin)
	read = seen(t, dir, begin)
	w.remove(t, made)
	return read, ready
}

func (w *world) warm(t *testing.T, name string) (read, answered time.Duration) {
	t.Helper()
	dir := w.folder(t, name)
	p := w.run(t, pooled(t, name, func(r *operator.Runtime) { r.Command = watching("/mnt/datalayer/" + name) }))
	begin := time.Now()
	w.mustGrant(t, p, home(name))
	answered = time.Since(begin)
	read = seen(t, dir, begin)
	w.remove(t, p)
	w.leftNothing(t, p)
	return read, answered
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func spread(all []time.Duration) string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d.Microseconds())/1000) }
	return fmt.Sprintf("%s (%s to %s)", ms(median(all)), ms(slices.Min(all)), ms(slices.Max(all)))
}
