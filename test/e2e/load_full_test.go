package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
	"github.com/datalayer/node-mounts/test/node"
)

const grantsPerPod = 4

// TestLoad is one node for two stories: the first wants it empty.
func TestLoad(t *testing.T) {
	audit := t.TempDir()
	r := newReport()
	w := newWorld(t, setup{node: func(o *node.Options) { auditAgent(t, o, audit) }})
	t.Run("a warm Pod has its folder sooner than a new one", func(t *testing.T) { coldAndWarm(t, w, r) })
	t.Run("a full node is served whole", func(t *testing.T) { fullNode(t, w, r, filepath.Join(audit, "log")) })
	t.Logf("\n%s", r)
	if !t.Failed() {
		r.write(t)
	}
}

// auditAgent has the API server write down what the agent asks of it.
func auditAgent(t *testing.T, o *node.Options, dir string) {
	must(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata, users: ["`+agentUser+`"]}]
`), 0o644))
	const at = "/srv/audit"
	o.Folders = map[string]string{at: dir}
	o.APIServerFlags = []string{"--audit-policy-file=" + at + "/policy.yaml", "--audit-log-path=" + at + "/log", "--audit-log-mode=blocking"}
}

const agentUser = "system:serviceaccount:" + system + ":" + release

// asked counts the agent's requests: by verb, resource and what came of them.
func asked(t *testing.T, log string) map[string]int {
	t.Helper()
	f, err := os.Open(log)
	must(t, err)
	defer f.Close()
	counts := map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb           string
			ObjectRef      struct{ Resource, Subresource string }
			ResponseStatus struct{ Code int }
		}
		must(t, json.Unmarshal(lines.Bytes(), &e))
		counts[fmt.Sprintf("%s %s%s %d", e.Verb, e.ObjectRef.Resource, e.ObjectRef.Subresource, e.ResponseStatus.Code)]++
	}
	must(t, lines.Err())
	return counts
}

const (
	accepted = "patch pods 200"
	refused  = "patch pods 409"
)

// burden is what the agent has used.
type burden struct{ cpuSeconds, bytes float64 }

func (w *world) burden(t *testing.T) burden {
	t.Helper()
	agent := w.agentPod(within(t, time.Minute), t)
	text, err := fetch(t.Context(), "http://"+agent.Status.PodIP+":9808/metrics")
	must(t, err)
	value := func(name string) float64 {
		for line := range strings.Lines(text) {
			if number, ok := strings.CutPrefix(line, name+" "); ok {
				v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
				must(t, err)
				return v
			}
		}
		t.Fatalf("the agent has no %s", name)
		return 0
	}
	return burden{value("process_cpu_seconds_total"), value("process_resident_memory_bytes")}
}

func fullNode(t *testing.T, w *world, r *report, log string) {
	for i := range grantsPerPod / 2 {
		must(t, os.MkdirAll(w.claim("datasets", fmt.Sprintf("d%d", i)), 0o755))
		must(t, os.WriteFile(w.claim("datasets", fmt.Sprintf("d%d", i), "file"), []byte("x"), 0o644))
	}
	start, nothing := w.burden(t), asked(t, log)
	begin := time.Now()
	pods := w.fill(t)
	filled := time.Since(begin)
	idle, before := w.burden(t), asked(t, log)

	granting := w.everywhere(t, pods, func(p *corev1.Pod) []grant.Mount {
		mounts := make([]grant.Mount, 0, grantsPerPod)
		for i := range grantsPerPod / 2 {
			h := home(fmt.Sprintf("%s-%d", p.Name, i))
			mounts = append(mounts, h, dataset(fmt.Sprintf("d%d", i)))
		}
		return mounts
	})
	full, granted := w.burden(t), onePatchEach(t, log, len(pods), before)
	for _, p := range []*corev1.Pod{pods[0], pods[len(pods)/2], pods[len(pods)-1]} {
		w.in(t, p, "sh", "-c", "cat /mnt/datalayer/d0/file /mnt/datalayer/d1/file && touch /mnt/datalayer/"+p.Name+"-0/x /mnt/datalayer/"+p.Name+"-1/x")
	}
	revoking := w.everywhere(t, pods, func(*corev1.Pod) []grant.Mount { return nil })
	empty, revoked := w.burden(t), onePatchEach(t, log, len(pods), granted)

	begin = time.Now()
	w.drain(t, pods)
	gone := time.Since(begin)
	after := asked(t, log)
	if n := after[accepted] - before[accepted]; n != 2*len(pods) {
		t.Errorf("%d changes of sets took %d patches", 2*len(pods), n)
	}

	r.say("\n### %d Pods, %d grants each\n\nAll sets are written at once, and the clock stops at the last answer. Processor seconds and memory (RSS) are the agent's own metrics.\n", len(pods), grantsPerPod)
	r.table("Step", "took, s", "agent's processor, s", "agent's memory, MB", "patches accepted", "patches refused (409)")
	row := func(what string, took time.Duration, from, to burden, a, b map[string]int) {
		r.row(what, fmt.Sprintf("%.1f", took.Seconds()), fmt.Sprintf("%.2f", to.cpuSeconds-from.cpuSeconds), fmt.Sprintf("%.0f", to.bytes/1e6), b[accepted]-a[accepted], b[refused]-a[refused])
	}
	row(fmt.Sprintf("%d Pods created, no grant", len(pods)), filled, start, idle, nothing, before)
	row(fmt.Sprintf("%d grants", len(pods)*grantsPerPod), granting, idle, full, before, granted)
	row("all revoked", revoking, full, empty, granted, revoked)
	row("all Pods deleted", gone, empty, w.burden(t), revoked, after)
	r.say("\nThe agent's requests in the whole run, by the API server's audit log: %s.\n", summary(after))
}

// onePatchEach waits until the log has a patch for each Pod since from: a line is
// written when the request has ended, and its effect is seen before.
func onePatchEach(t *testing.T, log string, pods int, from map[string]int) map[string]int {
	t.Helper()
	var counts map[string]int
	must(t, node.Until(within(t, time.Minute), "a patch for each Pod", func(context.Context) error {
		counts = asked(t, log)
		if n := counts[accepted] - from[accepted]; n < pods {
			return fmt.Errorf("%d were accepted", n)
		}
		return nil
	}))
	return counts
}

// room is how many more Pods kubelet takes.
func (w *world) room(t *testing.T) int {
	t.Helper()
	ctx := within(t, time.Minute)
	nodes, err := w.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	there, err := w.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
	must(t, err)
	return int(nodes.Items[0].Status.Allocatable.Pods().Value()) - len(there.Items)
}

// fill creates as many Pods as the node carries, and waits until all are Ready.
func (w *world) fill(t *testing.T) []*corev1.Pod {
	t.Helper()
	pods := make([]*corev1.Pod, w.room(t))
	for i := range pods {
		pods[i] = w.create(t, pooled(t, fmt.Sprintf("p%03d", i), nil))
	}
	must(t, node.Until(within(t, 10*time.Minute), "a full node", func(ctx context.Context) error {
		list, err := w.api.CoreV1().Pods(runtimes).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		var last error
		for _, p := range list.Items {
			if why := node.Ready(&p); why != nil {
				last = fmt.Errorf("%s: %w", p.Name, why)
				continue
			}
			ready++
		}
		if ready < len(pods) {
			return fmt.Errorf("%d Pods are Ready; %w", ready, last)
		}
		return nil
	}))
	return pods
}

// everywhere grants a set to every Pod at once, and returns how long it took until
// the last was answered. All have to be ready.
func (w *world) everywhere(t *testing.T, pods []*corev1.Pod, set func(*corev1.Pod) []grant.Mount) time.Duration {
	t.Helper()
	ctx := within(t, 5*time.Minute)
	problems := make([]error, len(pods))
	begin := time.Now()
	var all sync.WaitGroup
	for i, p := range pods {
		all.Go(func() {
			asked, err := w.operator.Grant(ctx, operator.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, set(p)...)
			if err != nil {
				problems[i] = err
				return
			}
			status, err := w.operator.Wait(ctx, asked)
			if err == nil && (status.State != grant.StateReady || len(status.Mounted) != len(set(p))) {
				err = fmt.Errorf("%s is answered %+v", p.Name, status)
			}
			problems[i] = err
		})
	}
	all.Wait()
	must(t, errors.Join(problems...))
	return time.Since(begin)
}

// drain deletes the Pods and waits until nothing is left of the last.
func (w *world) drain(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	ctx := within(t, 10*time.Minute)
	for _, p := range pods {
		must(t, w.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	for _, p := range pods {
		must(t, w.WaitGone(ctx, p.Namespace, p.Name))
		w.leftNothing(t, p)
	}
}

func summary(counts map[string]int) string {
	var lines []string
	for what, n := range counts {
		lines = append(lines, fmt.Sprintf("%s: %d", what, n))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}
