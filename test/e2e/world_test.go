package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
	"github.com/datalayer/node-mounts/test/node"
)

// Where things are in every test's cluster.
const (
	system    = "datalayer-system"   // namespace of the release and of the claim
	runtimes  = "datalayer-runtimes" // namespace of the Pods that are granted to
	release   = "datalayer-node-mounts"
	claimName = "datalayer-shared-fs"
	claimPath = "/srv/claim" // of the claim's folder, in the machine
	agentRoot = "/var/lib/datalayer/node-mount-gateway"
)

// commandsEnv is the folder with the commands as the image has them.
const commandsEnv = "NODE_MOUNTS_COMMANDS"

// world is a node with a claim, and with the release installed as people install
// it.
type world struct {
	*node.Node
	api      kubernetes.Interface
	operator *operator.Client
}

// setup is how a world differs from the usual one.
type setup struct {
	node   func(*node.Options)
	volume *corev1.PersistentVolumeSource // of the claim; nil: a folder of the node
	// set are values of the chart beside the image and the claim.
	set []string
	// bare: nothing is installed.
	bare bool
}

// newWorld makes a world that ends with the test.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	n := startNode(t, s.node)
	w := &world{Node: n, api: n.Client(), operator: operator.New(n.Client().CoreV1(), grant.NamesFor(""))}
	must(t, os.MkdirAll(w.claim(), 0o755))
	importAgent(t, n)
	w.makeCluster(t, s.volume)
	if !s.bare {
		w.install(t, s.set...)
	}
	return w
}

// claim is how the test reaches what lies on the claim. A reboot changes it.
func (w *world) claim(elem ...string) string {
	return w.Path(append([]string{claimPath}, elem...)...)
}

// makeCluster makes the namespaces, the claim, and the runtimes' account.
func (w *world) makeCluster(t *testing.T, source *corev1.PersistentVolumeSource) {
	t.Helper()
	ctx := within(t, time.Minute)
	if source == nil {
		source = &corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: claimPath}}
	}
	for _, name := range []string{system, runtimes} {
		_, err := w.api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claimName}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
		PersistentVolumeSource: *source, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef: &corev1.ObjectReference{Namespace: system, Name: claimName},
	}}
	if source.Local != nil {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{w.Name()}}},
		}}}}
	}
	_, err := w.api.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	must(t, err)
	class := ""
	_, err = w.api.CoreV1().PersistentVolumeClaims(system).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claimName},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeName: claimName, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	no := false
	_, err = w.api.CoreV1().ServiceAccounts(runtimes).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "datalayer-runtimes-sa"}, AutomountServiceAccountToken: &no,
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, node.Until(ctx, "the claim", func(ctx context.Context) error {
		c, err := w.api.CoreV1().PersistentVolumeClaims(system).Get(ctx, claimName, metav1.GetOptions{})
		if err == nil && c.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("the claim is %s", c.Status.Phase)
		}
		return err
	}))
}

// install installs or upgrades the release by the command people use.
func (w *world) install(t *testing.T, set ...string) {
	t.Helper()
	image := os.Getenv(imageEnv)
	colon := strings.LastIndex(image, ":")
	args := []string{"install", "--claim", claimName, "-n", system, "--timeout", "3m"}
	for _, s := range slices.Concat([]string{
		"image.repository=" + image[:colon], "image.tag=" + image[colon+1:], "image.pullPolicy=Never",
		// This node has no DNS and no CNI that enforces policies; the API server listens
		// on the port of its Service.
		"apiServer.port=443",
	}, set) {
		args = append(args, "--set", s)
	}
	out, err := w.command(within(t, 5*time.Minute), args...)
	if err != nil {
		t.Fatalf("node-mounts %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// command runs node-mounts in the lab, against the cluster. The output is both
// streams.
func (w *world) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(commandsEnv), "node-mounts"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Kubeconfig())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// exitCode is that of a command, -1 where it did not run.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// agentPod is the Pod of the agent, Ready.
func (w *world) agentPod(ctx context.Context, t *testing.T) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	must(t, node.Until(ctx, "the agent", func(ctx context.Context) error {
		pods, err := w.api.CoreV1().Pods(system).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=node-mounts,app.kubernetes.io/component=agent",
		})
		if err != nil {
			return err
		}
		live := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if len(live) != 1 {
			return fmt.Errorf("%d agents", len(live))
		}
		found = &live[0]
		return node.Ready(found)
	}))
	return found
}

// pooled is a Pod of a warm pool as the operator's template makes it. change may
// be nil.
func pooled(t testing.TB, name string, change func(*operator.Runtime)) *corev1.Pod {
	t.Helper()
	r := operator.Runtime{
		Image: sandboxImage, Command: []string{"tenant", "wait"},
		OpenMetadata: true, ServiceAccount: "datalayer-runtimes-sa", Grace: 2 * time.Second,
	}
	if change != nil {
		change(&r)
	}
	template, err := operator.PodTemplate(r)
	must(t, err)
	for i := range template.Spec.Containers {
		template.Spec.Containers[i].ImagePullPolicy = corev1.PullNever
	}
	for i := range template.Spec.InitContainers {
		template.Spec.InitContainers[i].ImagePullPolicy = corev1.PullNever
	}
	p := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	p.Name, p.Namespace = name, runtimes
	return p
}

// run creates a Pod and waits until it is Ready. The Pod ends with the test.
func (w *world) run(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	return w.waitReady(t, w.create(t, p))
}

// create creates a Pod that ends with the test.
func (w *world) create(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	made, err := w.api.CoreV1().Pods(p.Namespace).Create(within(t, time.Minute), p, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = w.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}) // most tests have done so
		if err := w.WaitGone(ctx, p.Namespace, p.Name); err != nil {
			t.Errorf("at the end of the test: %v", err)
		}
	})
	return made
}

func (w *world) waitReady(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	ready, err := w.WaitPod(within(t, time.Minute), p.Namespace, p.Name, node.Ready)
	must(t, err)
	return ready
}

// grant grants exactly these mounts, waits for the answer and returns it.
func (w *world) grant(t *testing.T, p *corev1.Pod, mounts ...grant.Mount) grant.Status {
	t.Helper()
	ctx := within(t, time.Minute)
	asked, err := w.operator.Grant(ctx, operator.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, mounts...)
	must(t, err)
	status, err := w.operator.Wait(ctx, asked)
	must(t, err)
	return status
}

// mustGrant is grant where everything has to be mounted.
func (w *world) mustGrant(t *testing.T, p *corev1.Pod, mounts ...grant.Mount) {
	t.Helper()
	if status := w.grant(t, p, mounts...); status.State != grant.StateReady {
		t.Fatalf("the answer: %+v", status)
	}
}

// home is a grant of a home folder.
func home(name string) grant.Mount {
	return grant.Mount{Kind: grant.KindFiles, Source: "home/users/" + name, Target: name, Mode: grant.ReadWrite, AllowExec: true}
}

// dataset is a read-only grant of a folder that nothing may be run from.
func dataset(name string) grant.Mount {
	return grant.Mount{Kind: grant.KindSharedFolder, Source: "datasets/" + name, Target: name, Mode: grant.ReadOnly}
}

// in runs a program in the Pod's first container, as its user, and returns what it
// wrote. A status that is not zero ends the test.
func (w *world) in(t *testing.T, p *corev1.Pod, argv ...string) string {
	t.Helper()
	out, problems, code, err := w.Exec(within(t, time.Minute), p.Namespace, p.Name, p.Spec.Containers[0].Name, argv, nil)
	if err != nil || code != 0 {
		t.Fatalf("in %s: %q: status %d, %v: %s%s", p.Name, argv, code, err, out, problems)
	}
	return out
}

// refused runs a program that has to fail, and returns its complaint.
func (w *world) refused(t *testing.T, p *corev1.Pod, argv ...string) string {
	t.Helper()
	out, problems, code, err := w.Exec(within(t, time.Minute), p.Namespace, p.Name, p.Spec.Containers[0].Name, argv, nil)
	if err != nil || code == 0 {
		t.Fatalf("in %s: %q has not been refused: status %d, %v: %s%s", p.Name, argv, code, err, out, problems)
	}
	return out + problems
}

// remove deletes a Pod and waits until it is gone. It returns how long that took.
func (w *world) remove(t *testing.T, p *corev1.Pod) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx := within(t, 2*time.Minute)
	must(t, w.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
	must(t, w.WaitGone(ctx, p.Namespace, p.Name))
	return time.Since(begin)
}

// leftNothing fails unless the node has nothing any more of a Pod that is gone:
// no mount, no folder, no record.
func (w *world) leftNothing(t *testing.T, p *corev1.Pod) {
	t.Helper()
	must(t, node.Until(within(t, time.Minute), "the node to forget "+p.Name, func(context.Context) error {
		info, err := w.MountInfo()
		if err != nil {
			return err
		}
		var left []string
		for line := range strings.Lines(info) {
			if strings.Contains(line, string(p.UID)) {
				left = append(left, line)
			}
		}
		for _, pattern := range []string{
			path.Join(w.KubeletDir(), "pods", string(p.UID)),
			path.Join(agentRoot, "*", string(p.UID)+"*"),
		} {
			found, err := filepath.Glob(w.Path(pattern))
			if err != nil {
				return err
			}
			left = append(left, found...)
		}
		if len(left) > 0 {
			return fmt.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		return nil
	}))
}
