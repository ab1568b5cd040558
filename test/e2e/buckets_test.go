package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/test/node"
	"github.com/datalayer/node-mounts/test/ports"
	"github.com/datalayer/node-mounts/test/s3test"
)

// bucketName is the bucket of these tests, on a server of the lab.
const bucketName = "team-data"

// TestBucketsOutliveWhatServesThem installs once and tells one story after the other.
func TestBucketsOutliveWhatServesThem(t *testing.T) {
	program, _, err := s3test.Build(t.TempDir())
	must(t, err)
	w := newWorld(t, setup{bare: true})
	port := freePort(t, w.Address())
	s3 := s3test.Start(t, program, []string{"--listen", net.JoinHostPort(w.Address(), port)}, bucketName)
	s3.Put(bucketName, "data", []byte("data\n"))
	s3.Put(bucketName, "large", make([]byte, 64<<20)) // each mount of it begins without a page in a cache
	w.install(t, "nodeMountGateway.credentials=true", "nodeMountGateway.buckets=true",
		"nodeMountGateway.s3.endpointURL="+s3.Endpoint, "nodeMountGateway.s3.region="+s3.Region, "nodeMountGateway.s3.ports={"+port+"}")
	w.keeperPod(within(t, 2*time.Minute), t)
	for _, story := range []struct {
		name string
		tell func(*testing.T, *world, *s3test.Server)
	}{
		{"a bucket comes and goes in a running Pod", bucketComesAndGoes},
		{"verify finds the keeper", keeperVerified},
		{"the agent, kubelet and containerd are replaced under a bucket", bucketStays},
		{"the keeper is replaced under a bucket", keeperReplaced},
		{"an imitation of the keeper is not believed", keeperImitated},
	} {
		t.Run(story.name, func(t *testing.T) { story.tell(t, w, s3) })
	}
}

// freePort is a port of the address that nobody has.
func freePort(t *testing.T, address string) string {
	t.Helper()
	return ports.Free(t, address)
}

// bucketOf is a grant of a bucket, whose session is in a Secret with the Pod's name.
func bucketOf(p *corev1.Pod, target string, mode grant.Mode) grant.Mount {
	return grant.Mount{Kind: grant.KindCloudStorage, Source: bucketName, Target: target, Mode: mode, Secret: p.Name}
}

// keeperPod is the Pod of the keeper, Ready.
func (w *world) keeperPod(ctx context.Context, t *testing.T) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	must(t, node.Until(ctx, "the keeper", func(ctx context.Context) error {
		pods, err := w.api.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=keeper"})
		if err != nil {
			return err
		}
		live := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if len(live) != 1 {
			return fmt.Errorf("%d keepers", len(live))
		}
		found = &live[0]
		return node.Ready(found)
	}))
	return found
}

func bucketComesAndGoes(t *testing.T, w *world, s3 *s3test.Server) {
	p := w.run(t, pooled(t, "with-bucket", nil))
	key := s3.Session(time.Hour)
	w.session(t, p, key)
	w.mustGrant(t, p, home("ada"), bucketOf(p, "bucket", grant.ReadWrite))
	w.insideOnce(t, p, "ada", "bucket")
	if got := w.in(t, p, "cat", inPod+"/bucket/data"); got != "data\n" {
		t.Errorf("the sandbox reads %q", got)
	}
	w.in(t, p, "sh", "-c", "echo written >"+inPod+"/bucket/new")
	if got, err := os.ReadFile(filepath.Join(s3.Dir, bucketName, "new")); err != nil || string(got) != "written\n" {
		t.Errorf("the server has %q, %v", got, err)
	}
	if got := strings.TrimSpace(w.in(t, p, "stat", "-c", "%u:%g", inPod+"/bucket/data")); got != "1000:100" {
		t.Errorf("files belong to %s", got)
	}
	w.childIsNobody(t, key)

	w.mustGrant(t, p, home("ada"), grant.Mount{
		Kind: grant.KindCloudStorage, Source: bucketName, Target: "bucket", Mode: grant.ReadOnly, Secret: p.Name,
	})
	w.refused(t, p, "sh", "-c", "echo x >"+inPod+"/bucket/more")
	w.mustGrant(t, p, home("ada"))
	w.insideOnce(t, p, "ada")
	w.noChildren(t)
	w.mustGrant(t, p, bucketOf(p, "bucket", grant.ReadWrite))
	w.remove(t, p)
	w.leftNothing(t, p)
	w.noChildren(t)
}

// children are the processes of buckets in the machine, by their folders in /proc.
func (w *world) children(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(w.Path("/proc/[0-9]*/cmdline"))
	must(t, err)
	var out []string
	for _, path := range found {
		if args, err := os.ReadFile(path); err == nil && strings.Contains(string(args), "--bucket="+bucketName) {
			out = append(out, filepath.Dir(path))
		}
	}
	return out
}

func (w *world) noChildren(t *testing.T) {
	t.Helper()
	must(t, node.Until(within(t, time.Minute), "the processes of buckets to end", func(context.Context) error {
		if left := w.children(t); len(left) > 0 {
			return fmt.Errorf("there are %q", left)
		}
		return nil
	}))
}

// childIsNobody looks at the process of the only bucket.
func (w *world) childIsNobody(t *testing.T, key s3test.Credentials) {
	t.Helper()
	all := w.children(t)
	if len(all) != 1 {
		t.Fatalf("the processes of one bucket are %q", all)
	}
	status, err := os.ReadFile(filepath.Join(all[0], "status"))
	must(t, err)
	for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Groups:\t \n"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the process has not %q:\n%s", line, status)
		}
	}
	var uid int
	_, after, _ := strings.Cut(string(status), "\nUid:\t")
	if _, err := fmt.Sscan(after, &uid); err != nil || uid < 1<<30 {
		t.Errorf("it runs as %d, %v", uid, err)
	}
	for _, path := range []string{"environ", "cmdline"} {
		text, err := os.ReadFile(filepath.Join(all[0], path))
		must(t, err)
		if strings.Contains(string(text), key.SecretAccessKey) || strings.Contains(string(text), key.SessionToken) {
			t.Errorf("the key is in %s", path)
		}
	}
	if _, err := os.Stat(filepath.Join(all[0], "root/var/run/secrets/kubernetes.io/serviceaccount/token")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("where it runs there is a token: %v", err)
	}
}

func keeperVerified(t *testing.T, w *world, s3 *s3test.Server) {
	p := w.run(t, pooled(t, "looked-at", nil))
	w.session(t, p, s3.Key())
	w.mustGrant(t, p, bucketOf(p, "bucket", grant.ReadWrite))
	seen := 0
	for _, r := range w.verify(t, 0) {
		if strings.Contains(strings.ToLower(r.Check), "keeper") {
			seen++
		}
		if r.Status != "ok" {
			t.Errorf("%+v", r)
		}
	}
	if seen < 2 {
		t.Errorf("%d rows about the keeper", seen)
	}
	w.remove(t, p)
	w.leftNothing(t, p)
}

// bucketStays: no tenant sees an error while everything but the keeper is replaced.
func bucketStays(t *testing.T, w *world, s3 *s3test.Server) {
	p := w.run(t, pooled(t, "tenant", nil))
	w.session(t, p, s3.Key())
	w.mustGrant(t, p, bucketOf(p, "bucket", grant.ReadWrite), home("ada"))
	busy := w.keepBusy(t, p, "bucket", "bucket")
	handles := w.throughHandles(t, p)
	child, lines := w.children(t), w.insideOnce(t, p, "ada", "bucket")
	same := func(after string) {
		t.Helper()
		w.answered(t, p)
		w.readsAgain(t, p) // also: a kubelet that starts knows its Pods after a while
		if now := w.children(t); !slices.Equal(now, child) {
			t.Errorf("after %s the process is %q, before %q", after, now, child)
		}
		if now := w.insideOnce(t, p, "ada", "bucket"); !slices.Equal(now, lines) {
			t.Errorf("after %s, inside are\n%q, before\n%q", after, now, lines)
		}
	}
	before := w.agentPod(within(t, time.Minute), t)
	host(t, w.Node, "pkill", "-KILL", "-x", "node-mounts-age")
	_, err := w.WaitPod(within(t, 2*time.Minute), system, before.Name, node.Restarted(before))
	must(t, err)
	same("the agent's end")
	w.replaceAgent(t)
	same("another agent")
	for _, name := range []string{node.Kubelet, node.Containerd} {
		ctx := within(t, 3*time.Minute)
		must(t, w.Restart(ctx, name))
		must(t, w.WaitReady(ctx))
		w.agentPod(ctx, t)
		same(name)
	}
	busy.endWell(t)
	handles(t)
	w.remove(t, p)
	w.leftNothing(t, p)
	w.noChildren(t)
}

// throughHandles reads a large file through one handle, a piece at a time, from before
// everything is replaced until end is called, and follows a log. end fails where
// somebody has seen an error.
func (w *world) throughHandles(t *testing.T, p *corev1.Pod) (end func(t *testing.T)) {
	t.Helper()
	w.in(t, p, "sh", "-c", `cd /tmp
tail -f `+inPod+`/bucket/log >tail.out 2>tail.err </dev/null & echo $! >tail.pid
(exec 3<`+inPod+`/bucket/large; while dd bs=64k count=1 <&3 2>dd.err | wc -c >dd.last && grep -q 65536 dd.last; do echo piece; [ -e stop ] && echo stopped && exit; sleep 0.2; done; echo failed) >dd.out 2>&1 </dev/null &`)
	return func(t *testing.T) {
		t.Helper()
		w.in(t, p, "touch", "/tmp/stop")
		must(t, node.Until(within(t, time.Minute), "the reader to stop", func(context.Context) error {
			if got := w.in(t, p, "cat", "/tmp/dd.out"); !strings.Contains(got, "stopped") && !strings.Contains(got, "failed") {
				return fmt.Errorf("it has written %q, %s", got, w.in(t, p, "sh", "-c", "ls -l /tmp; cat /tmp/dd.err; ps"))
			}
			return nil
		}))
		if got := w.in(t, p, "cat", "/tmp/dd.out"); strings.Contains(got, "failed") || strings.Count(got, "piece") < 10 {
			t.Errorf("through the open handle was read: %d pieces, %s", strings.Count(got, "piece"), w.in(t, p, "cat", "/tmp/dd.err"))
		}
		// The log grows by a line each turn of who writes it: the last one has to come by.
		w.in(t, p, "sh", "-c", "echo the end >>"+inPod+"/bucket/log")
		must(t, node.Until(within(t, time.Minute), "the log's last line to be followed", func(context.Context) error {
			if got := w.in(t, p, "tail", "-n", "1", "/tmp/tail.out"); got != "the end\n" {
				return fmt.Errorf("the last one is %q", got)
			}
			return nil
		}))
		if got := w.in(t, p, "sh", "-c", "cat /tmp/tail.err; kill $(cat /tmp/tail.pid) || echo tail has ended"); got != "" {
			t.Errorf("following the log: %s", got)
		}
	}
}

// readsAgain waits until a new open of the bucket's file works, and returns how long
// that took.
func (w *world) readsAgain(t *testing.T, p *corev1.Pod) time.Duration {
	t.Helper()
	begin := time.Now()
	must(t, node.Until(within(t, time.Minute), "the bucket to be read again", func(ctx context.Context) error {
		out, problems, code, err := w.Exec(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name, []string{"cat", inPod + "/bucket/data"}, nil)
		if err == nil && (code != 0 || out != "data\n") {
			err = fmt.Errorf("status %d: %q %s", code, out, problems)
		}
		return err
	}))
	return time.Since(begin)
}

func keeperReplaced(t *testing.T, w *world, s3 *s3test.Server) {
	p := w.run(t, pooled(t, "tenant", nil))
	w.session(t, p, s3.Key())
	w.mustGrant(t, p, bucketOf(p, "bucket", grant.ReadWrite), home("ada"))
	count := w.mountsOnNode(t, p)
	w.in(t, p, "sh", "-c", "(exec 3<"+inPod+"/bucket/large; while ! [ -e /tmp/try ]; do sleep 0.1; done; cat <&3 >/dev/null && echo works || echo broken) >/tmp/old 2>&1 </dev/null & (while :; do cat "+inPod+"/bucket/data >/dev/null 2>&1 && echo ok || echo no; sleep 0.05; done) >/tmp/opens 2>&1 </dev/null & echo $! >/tmp/opens.pid")
	for _, both := range []bool{false, true} {
		ctx := within(t, 3*time.Minute)
		old := w.keeperPod(ctx, t)
		must(t, w.api.CoreV1().Pods(system).Delete(ctx, old.Name, metav1.DeleteOptions{}))
		if both {
			w.replaceAgent(t)
		}
		must(t, w.WaitGone(ctx, system, old.Name))
		w.keeperPod(ctx, t)
		t.Logf("with the agent replaced too: %v; read again %v after the next keeper was Ready", both, w.readsAgain(t, p))
		if opens := w.in(t, p, "cat", "/tmp/opens"); !strings.Contains(opens, "no") {
			t.Error("nobody noticed that the keeper was gone")
		} else {
			w.in(t, p, "touch", "/tmp/try")
			must(t, node.Until(within(t, time.Minute), "the old handle to be tried", func(context.Context) error {
				if got := w.in(t, p, "cat", "/tmp/old"); !strings.Contains(got, "broken") {
					return fmt.Errorf("it gave %q", got)
				}
				return nil
			}))
			t.Logf("of %d opens since the first deletion %d failed, each 50 ms after the last", strings.Count(opens, "\n"), strings.Count(opens, "no"))
		}
		w.answered(t, p)
		w.insideOnce(t, p, "ada", "bucket")
		if n := w.mountsOnNode(t, p); n != count {
			t.Errorf("the node has %d mounts for the Pod, before %d", n, count)
		}
	}
	w.remove(t, p)
	w.leftNothing(t, p)
	w.noChildren(t)
}

// keeperImitated has a tenant with the keeper's labels and a volume of its name.
func keeperImitated(t *testing.T, w *world, s3 *s3test.Server) {
	fake := pooled(t, "imitation", nil)
	keeper := w.keeperPod(within(t, time.Minute), t)
	for key, value := range keeper.Labels {
		if strings.HasPrefix(key, "app.kubernetes.io/") {
			fake.Labels[key] = value
		}
	}
	fake.Spec.Volumes = append(fake.Spec.Volumes, corev1.Volume{Name: "socket", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	fake.Spec.Containers[0].VolumeMounts = append(fake.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "socket", MountPath: "/run/imitation"})
	fake = w.run(t, fake)
	listens := w.begin(t, fake, "listen", "/run/imitation/keeper.sock")
	w.replaceAgent(t) // which looks for the keeper anew
	p := w.run(t, pooled(t, "tenant", nil))
	w.session(t, p, s3.Key())
	w.mustGrant(t, p, bucketOf(p, "bucket", grant.ReadWrite))
	if got := listens.end(t); got != "" {
		t.Errorf("somebody has connected to the imitation: %q", got)
	}
	w.remove(t, p)
	w.remove(t, fake)
}
