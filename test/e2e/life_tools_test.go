package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
	"github.com/datalayer/node-mounts/test/node"
)

// Where the machine has the commands, and where the sandboxes have the folders.
const (
	commandsDir = "/opt/node-mounts"
	inPod       = "/mnt/datalayer"
)

// withCommands gives the machine the commands, as an administrator does who has to
// recover a Pod there.
func withCommands(o *node.Options) {
	o.Folders = map[string]string{commandsDir: os.Getenv(commandsEnv)}
}

// ok runs node-mounts, which has to end with this status, and returns what it
// wrote.
func (w *world) ok(t *testing.T, status int, args ...string) string {
	t.Helper()
	out, err := w.command(within(t, 5*time.Minute), args...)
	if got := exitCode(err); got != status {
		t.Fatalf("node-mounts %s: status %d (%v), want %d:\n%s", strings.Join(args, " "), got, err, status, out)
	}
	return out
}

// answered waits until the whole set that the Pod asks for now is mounted.
func (w *world) answered(t *testing.T, p *corev1.Pod) {
	t.Helper()
	ctx := within(t, 2*time.Minute)
	asked, err := w.operator.Asked(ctx, operator.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID})
	must(t, err)
	status, err := w.operator.Wait(ctx, asked)
	must(t, err)
	if status.State != grant.StateReady {
		t.Fatalf("the answer of %s: %+v", p.Name, status)
	}
}

// answer is the answer as it stands, the zero value where there is none.
func (w *world) answer(ctx context.Context, p *corev1.Pod) (grant.Status, error) {
	now, err := w.api.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return grant.Status{}, err
	}
	text, found := now.Annotations[grant.NamesFor("").Ready]
	if !found {
		return grant.Status{}, nil
	}
	return grant.DecodeStatus(text)
}

// granted makes a Pod of a grant that is written into the request that creates it.
func granted(t *testing.T, p *corev1.Pod, mounts ...grant.Mount) *corev1.Pod {
	t.Helper()
	text, err := grant.Encode(mounts)
	must(t, err)
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[grant.NamesFor("").Mounts] = text
	return p
}

// mountsInside are the lines of the container's own mount table about what is
// granted: number, parent, device, root, place, flags.
func (w *world) mountsInside(t *testing.T, p *corev1.Pod) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(w.in(t, p, "cat", "/proc/self/mountinfo")) {
		if fields := strings.Fields(line); len(fields) > 5 && strings.HasPrefix(fields[4], inPod+"/") {
			found = append(found, strings.Join(fields[:6], " "))
		}
	}
	slices.Sort(found)
	return found
}

// insideOnce fails unless the container has each of these mounted, once, and
// nothing else.
func (w *world) insideOnce(t *testing.T, p *corev1.Pod, targets ...string) []string {
	t.Helper()
	lines := w.mountsInside(t, p)
	var got, want []string
	for _, line := range lines {
		got = append(got, strings.Fields(line)[4])
	}
	for _, target := range targets {
		want = append(want, inPod+"/"+target)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("in %s are mounted %q, want %q", p.Name, got, want)
	}
	return lines
}

// mountsOnNode counts the machine's mounts for a Pod.
func (w *world) mountsOnNode(t *testing.T, p *corev1.Pod) int {
	t.Helper()
	info, err := w.MountInfo()
	must(t, err)
	count := 0
	for line := range strings.Lines(info) {
		if strings.Contains(line, string(p.UID)) {
			count++
		}
	}
	return count
}

// busyLines counts the times kubelet has called a Pod's volume busy.
func (w *world) busyLines(t *testing.T, p *corev1.Pod) int {
	t.Helper()
	log, err := w.KubeletLog()
	must(t, err)
	count := 0
	for line := range strings.Lines(log) {
		if strings.Contains(line, string(p.UID)) && strings.Contains(line, "busy") {
			count++
		}
	}
	return count
}

// wentInTime fails where kubelet had to wait for a Pod's mounts. Both it and the agent
// begin when they see that the containers have ended: kubelet may come first once, and
// tries again after half a second. The second time it waits longer.
func (w *world) wentInTime(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if n := w.busyLines(t, p); n > 1 {
		t.Errorf("kubelet found the volume busy %d times", n)
	}
}

const agentSet = release // name of the DaemonSet

// stopAgent leaves the node without an agent: its DaemonSet wants a node that is
// not there.
func (w *world) stopAgent(t *testing.T) {
	t.Helper()
	ctx := within(t, 2*time.Minute)
	old := w.agentPod(ctx, t)
	w.selectNode(t, `"nowhere"`)
	must(t, w.WaitGone(ctx, old.Namespace, old.Name))
}

// startAgent undoes stopAgent.
func (w *world) startAgent(t *testing.T) {
	t.Helper()
	w.selectNode(t, "null")
	w.agentPod(within(t, 2*time.Minute), t)
}

// startAgentAfter starts the agent at the end of a test that may have failed.
func (w *world) startAgentAfter(t *testing.T) {
	body := `{"spec":{"template":{"spec":{"nodeSelector":{"test":null}}}}}`
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := w.api.AppsV1().DaemonSets(system).Patch(ctx, agentSet, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

func (w *world) selectNode(t *testing.T, value string) {
	t.Helper()
	body := fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{"test":%s}}}}}`, value)
	_, err := w.api.AppsV1().DaemonSets(system).Patch(within(t, time.Minute), agentSet, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	must(t, err)
}

// replaceAgent deletes the agent's Pod, as a rollout does, and waits for the next.
func (w *world) replaceAgent(t *testing.T) {
	t.Helper()
	ctx := within(t, 3*time.Minute)
	old := w.agentPod(ctx, t)
	must(t, w.api.CoreV1().Pods(system).Delete(ctx, old.Name, metav1.DeleteOptions{}))
	must(t, w.WaitGone(ctx, old.Namespace, old.Name))
	w.agentPod(ctx, t)
}

// program is one that runs in a container beside its first process.
type program struct {
	w       *world
	pod     *corev1.Pod
	pid     string
	written string // file with what it wrote
}

// begin starts a command of tenant and waits until it has begun. It writes to the
// container's own filesystem.
func (w *world) begin(t *testing.T, p *corev1.Pod, args ...string) program {
	t.Helper()
	written := "/tmp/" + args[0] + "-" + fmt.Sprint(time.Now().UnixNano())
	line := "mkdir -p /tmp; tenant " + strings.Join(args, " ") + " >" + written + " 2>&1 </dev/null & echo $!"
	b := program{w: w, pod: p, pid: strings.TrimSpace(w.in(t, p, "sh", "-c", line)), written: written}
	must(t, node.Until(within(t, time.Minute), args[0]+" to begin", func(context.Context) error {
		if text := w.in(t, p, "cat", written); !strings.HasPrefix(text, "ready\n") {
			return fmt.Errorf("it wrote %q", text)
		}
		return nil
	}))
	return b
}

// alive tells whether it runs still.
func (b program) alive(t *testing.T) bool {
	t.Helper()
	_, _, code, err := b.w.Exec(within(t, time.Minute), b.pod.Namespace, b.pod.Name, b.pod.Spec.Containers[0].Name, []string{"sh", "-c", "kill -0 " + b.pid}, nil)
	must(t, err)
	return code == 0
}

// end asks it to end and returns what it wrote after "ready".
func (b program) end(t *testing.T) string {
	t.Helper()
	if b.alive(t) {
		b.w.in(t, b.pod, "kill", "-TERM", b.pid)
	}
	must(t, node.Until(within(t, time.Minute), "process "+b.pid+" to end", func(context.Context) error {
		if b.alive(t) {
			return errors.New("it runs")
		}
		return nil
	}))
	return strings.TrimPrefix(b.w.in(t, b.pod, "cat", b.written), "ready\n")
}

// looped is what a loop of tenant has seen.
type looped struct {
	Done  int
	Slow  float64 `json:"slowest_ms"`
	Error string
}

func (b program) endLoop(t *testing.T) looped {
	t.Helper()
	text := b.end(t)
	var seen looped
	first, _, _ := strings.Cut(text, "\n")
	if err := json.Unmarshal([]byte(first), &seen); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return seen
}

// belongings makes a home folder as people have them: private folders, a key,
// files of others, folders that pass their group on.
func belongings(t *testing.T, dir string) {
	t.Helper()
	for _, e := range []struct {
		name     string
		mode     fs.FileMode
		uid, gid int
	}{
		{".", fs.ModeDir | 0o700, 1000, 100},
		{".ssh", fs.ModeDir | 0o700, 1000, 100},
		{".ssh/id_ed25519", 0o600, 1000, 100},
		{"work", fs.ModeDir | 0o755, 1000, 100},
		{"work/notes.txt", 0o644, 1000, 100},
		{"work/run", 0o755, 1000, 100},
		{"team", fs.ModeDir | fs.ModeSetgid | 0o750, 2000, 3000},
		{"team/of-another", 0o640, 2001, 3001},
		{"root", fs.ModeDir | 0o700, 0, 0},
		{"root/secret", 0o400, 0, 0},
	} {
		name := filepath.Join(dir, e.name)
		if e.mode.IsDir() {
			must(t, os.MkdirAll(name, 0o700))
		} else {
			must(t, os.WriteFile(name, []byte(e.name), 0o600))
		}
		must(t, os.Lchown(name, e.uid, e.gid))
		must(t, os.Chmod(name, e.mode&(fs.ModePerm|fs.ModeSetgid)))
	}
	must(t, os.Symlink("notes.txt", filepath.Join(dir, "work/link")))
	must(t, os.Lchown(filepath.Join(dir, "work/link"), 1000, 100))
}

// snapshot is the owner, the mode and the content of everything in a folder, and
// when the kernel last changed either: a walk that sets what is there already shows.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(name)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		fact := fmt.Sprintf("%d:%d %o changed %d.%09d", st.Uid, st.Gid, st.Mode, st.Ctim.Sec, st.Ctim.Nsec)
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			fact += " " + string(text)
		}
		rel, err := filepath.Rel(dir, name)
		all[rel] = fact
		return err
	}))
	return all
}

// untouched fails where a folder is not what it was.
func untouched(t *testing.T, before map[string]string, dir string) {
	t.Helper()
	after := snapshot(t, dir)
	for name, was := range before {
		if now := after[name]; now != was {
			t.Errorf("%s was %q and is %q", path.Join(filepath.Base(dir), name), was, now)
		}
		delete(after, name)
	}
	for name, now := range after {
		t.Errorf("%s is new: %q", path.Join(filepath.Base(dir), name), now)
	}
}
