package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/test/node"
)

const sandboxImage = "docker.io/datalayer/node-mounts-sandbox:test"

// TestARealNodeBehavesAsTheAgentExpects proves the node itself, with binds made by
// hand where the agent would make them.
func TestARealNodeBehavesAsTheAgentExpects(t *testing.T) {
	n := startNode(t, nil)
	t.Run("together", func(t *testing.T) {
		for name, story := range map[string]func(*testing.T, *node.Node){
			"a program runs in a container, and its log is read": execAndLogs,
			"a bind beneath the volume shows and goes":           bindShows,
			"a leaked bind keeps the Pod":                        leakKeepsPod,
			"a Pod reaches the API":                              podReachesAPI,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				story(t, n)
			})
		}
	})
	t.Run("components restart one by one", func(t *testing.T) { componentsRestart(t, n) })
	t.Run("after a reboot the same Pods run", func(t *testing.T) { reboots(t, n) })
}

// sandbox is a Pod with a memory volume at /mnt/v. Its program writes one line and
// waits.
func sandbox(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers: []corev1.Container{{
				Name: "c", Image: sandboxImage, ImagePullPolicy: corev1.PullNever,
				Command:      []string{"sh", "-c", "echo started; trap 'exit 0' TERM; while :; do sleep 0.2; done"},
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/mnt/v", MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)}},
			}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi"))},
			}}},
		},
	}
}

func run(t *testing.T, n *node.Node, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	ctx := within(t, time.Minute)
	_, err := n.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	must(t, err)
	pod, err = n.WaitPod(ctx, pod.Namespace, pod.Name, node.Ready)
	must(t, err)
	return pod
}

func remove(t *testing.T, n *node.Node, name string) {
	t.Helper()
	must(t, n.Client().CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// inside runs a program in the Pod's container; it must end well.
func inside(t *testing.T, n *node.Node, pod string, argv ...string) string {
	t.Helper()
	out, problems, code, err := n.Exec(within(t, 30*time.Second), "default", pod, "c", argv, nil)
	must(t, err)
	if code != 0 {
		t.Fatalf("%q ended with %d: %s", argv, code, problems)
	}
	return out
}

// bindSource makes a folder of the machine with one file in it.
func bindSource(t *testing.T, n *node.Node, name string) string {
	t.Helper()
	dir := "/srv/" + name
	must(t, os.MkdirAll(n.Path(dir), 0o755))
	must(t, os.WriteFile(n.Path(dir, "file"), []byte("from the host\n"), 0o644))
	return dir
}

func host(t *testing.T, n *node.Node, argv ...string) {
	t.Helper()
	_, err := n.Run(within(t, 30*time.Second), argv...)
	must(t, err)
}

func execAndLogs(t *testing.T, n *node.Node) {
	run(t, n, sandbox("exec"))
	out, problems, code, err := n.Exec(t.Context(), "default", "exec", "c", []string{"/bin/sh", "-c", "cat; echo problem >&2; exit 3"}, strings.NewReader("input"))
	must(t, err)
	if out != "input" || problems != "problem\n" || code != 3 {
		t.Errorf("exec: %q, %q, %d", out, problems, code)
	}
	log, err := n.Client().CoreV1().Pods("default").GetLogs("exec", &corev1.PodLogOptions{}).Stream(t.Context())
	must(t, err)
	defer log.Close()
	text, err := io.ReadAll(log)
	must(t, err)
	if string(text) != "started\n" {
		t.Errorf("its log is %q", text)
	}
}

func bindShows(t *testing.T, n *node.Node) {
	pod := run(t, n, sandbox("bind"))
	source, at := bindSource(t, n, "bind"), n.VolumePath(pod, "v")+"/data"
	table, err := n.MountInfo()
	must(t, err)
	if !strings.Contains(table, filepath.Dir(at)+" ") {
		t.Errorf("no memory volume is mounted at %s", filepath.Dir(at))
	}
	must(t, os.Mkdir(n.Path(at), 0o755))
	host(t, n, "mount", "--bind", source, at)
	if got := inside(t, n, "bind", "cat", "/mnt/v/data/file"); got != "from the host\n" {
		t.Errorf("in the container: %q", got)
	}
	host(t, n, "umount", at)
	if got := inside(t, n, "bind", "ls", "/mnt/v/data"); got != "" {
		t.Errorf("after the umount: %q", got)
	}
	must(t, os.Remove(n.Path(at)))
	remove(t, n, "bind")
	start := time.Now()
	must(t, n.WaitGone(within(t, time.Minute), "default", "bind"))
	t.Logf("gone after %s", time.Since(start).Round(time.Millisecond))
	must(t, node.Until(within(t, time.Minute), "the Pod's folder to go", func(context.Context) error {
		if _, err := os.Stat(n.Path(n.KubeletDir(), "pods", string(pod.UID))); !os.IsNotExist(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	}))
}

func leakKeepsPod(t *testing.T, n *node.Node) {
	pod := run(t, n, sandbox("leak"))
	source, at := bindSource(t, n, "leak"), n.VolumePath(pod, "v")+"/data"
	must(t, os.Mkdir(n.Path(at), 0o755))
	host(t, n, "mount", "--bind", source, at)
	remove(t, n, "leak")
	must(t, node.Until(within(t, time.Minute), "kubelet to say busy", func(context.Context) error {
		log, err := n.KubeletLog()
		if err != nil {
			return err
		}
		times := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, string(pod.UID)) && strings.Contains(line, "busy") {
				times++
			}
		}
		// Once could be the only time it tries.
		if times < 3 {
			return fmt.Errorf("%d lines about the Pod do", times)
		}
		return nil
	}))
	p, err := n.Client().CoreV1().Pods("default").Get(t.Context(), "leak", metav1.GetOptions{})
	must(t, err)
	if p.DeletionTimestamp == nil {
		t.Error("the Pod is not being deleted")
	}
	if text, err := os.ReadFile(n.Path(source, "file")); err != nil || string(text) != "from the host\n" {
		t.Errorf("the source now: %q, %v", text, err)
	}
	host(t, n, "umount", at)
	start := time.Now()
	must(t, n.WaitGone(within(t, 90*time.Second), "default", "leak"))
	t.Logf("gone %s after the umount", time.Since(start).Round(time.Millisecond))
}

// podReachesAPI asks as the agent does: at the service's address, with the Pod's
// own token and the certificate it comes with. kubectl is the machine's.
func podReachesAPI(t *testing.T, n *node.Node) {
	pod := sandbox("api")
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "kubectl", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: filepath.Dir(node.Kubectl)},
	}})
	mounts := &pod.Spec.Containers[0].VolumeMounts
	*mounts = append(*mounts, corev1.VolumeMount{Name: "kubectl", MountPath: "/kubectl"})
	run(t, n, pod)
	if got := inside(t, n, "api", "/kubectl/kubectl", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); got != "system:serviceaccount:default:default" {
		t.Errorf("the API takes the Pod for %q", got)
	}
}

func componentsRestart(t *testing.T, n *node.Node) {
	ctx := within(t, 3*time.Minute)
	before := run(t, n, sandbox("restart"))
	for _, name := range []string{node.Kubelet, node.Containerd, node.Controllers, node.Scheduler, node.APIServer, node.Etcd} {
		start := time.Now()
		if err := n.Restart(ctx, name); err != nil {
			t.Fatalf("restarting %s: %v", name, err)
		}
		t.Logf("%s restarted in %s", name, time.Since(start).Round(time.Millisecond))
	}
	must(t, n.WaitReady(ctx))
	pod, err := n.WaitPod(ctx, "default", "restart", node.Ready)
	must(t, err)
	if pod.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Error("the container did not live through it")
	}
	inside(t, n, "restart", "ls")
	run(t, n, sandbox("after-restart"))
}

func reboots(t *testing.T, n *node.Node) {
	ctx := within(t, 3*time.Minute)
	before := run(t, n, sandbox("reboot"))
	source, at := bindSource(t, n, "reboot"), n.VolumePath(before, "v")+"/data"
	must(t, os.Mkdir(n.Path(at), 0o755))
	host(t, n, "mount", "--bind", source, at)
	boot := n.BootID()
	start := time.Now()
	must(t, n.Reboot(ctx))
	t.Logf("Ready again after %s", time.Since(start).Round(10*time.Millisecond))
	if n.BootID() == boot {
		t.Error("the boot id is the old one")
	}
	_, err := n.WaitPod(ctx, "default", "reboot", node.Restarted(before))
	must(t, err)
	t.Logf("the Pod runs again after %s", time.Since(start).Round(10*time.Millisecond))
	if got := inside(t, n, "reboot", "ls", "/mnt/v"); got != "" {
		t.Errorf("the memory volume still holds %q", got)
	}
	if text, err := os.ReadFile(n.Path(source, "file")); err != nil || string(text) != "from the host\n" {
		t.Errorf("on the disk now: %q, %v", text, err)
	}
}

// TestTheHostIsLeftAsItWas looks at the host while a node has run and is gone,
// with a Pod that was not deleted and a mount that was not taken away.
func TestTheHostIsLeftAsItWas(t *testing.T) {
	before, err := node.ReadHost(os.Getppid())
	must(t, err)
	n := startNode(t, nil)
	pod := run(t, n, sandbox("left"))
	source, at := bindSource(t, n, "left"), n.VolumePath(pod, "v")+"/data"
	must(t, os.Mkdir(n.Path(at), 0o755))
	host(t, n, "mount", "--bind", source, at)
	_, err = net.InterfaceByName("cni0")
	must(t, err)
	during, err := before.Left(node.RunName(), "")
	must(t, err)
	if !strings.Contains(strings.Join(during, "\n"), "process") {
		t.Errorf("the look at the host does not see the node's processes: %q", during)
	}
	must(t, n.Stop())
	left, err := before.Left(node.RunName(), "")
	must(t, err)
	for _, line := range left {
		t.Error(line)
	}
	if _, err := net.InterfaceByName("cni0"); err == nil {
		t.Error("the Pods' bridge is there")
	}
}

// TestANodeMayKeepPodsInAnotherFolder has the agent's image on it, and does by hand
// what a privileged Pod of the agent does.
func TestANodeMayKeepPodsInAnotherFolder(t *testing.T) {
	n := startNode(t, func(o *node.Options) { o.KubeletDir = "/data/kubelet" })
	start := time.Now()
	image := importAgent(t, n)
	t.Logf("the agent's image imported in %s", time.Since(start).Round(10*time.Millisecond))
	agent := sandbox("agent")
	pods, c := n.KubeletDir()+"/pods", &agent.Spec.Containers[0]
	c.Image, c.SecurityContext = image, &corev1.SecurityContext{Privileged: ptr.To(true)}
	agent.Spec.Volumes = []corev1.Volume{hostPath("pods", pods), hostPath("source", bindSource(t, n, "agent"))}
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "pods", MountPath: pods, MountPropagation: ptr.To(corev1.MountPropagationBidirectional)},
		{Name: "source", MountPath: "/source"},
	}
	run(t, n, agent)
	at := n.VolumePath(run(t, n, sandbox("tenant")), "v") + "/data"
	inside(t, n, "agent", "node-mounts-agent", "--version")
	inside(t, n, "agent", "sh", "-c", "mkdir "+at+" && mount --bind /source "+at)
	if got := inside(t, n, "tenant", "cat", "/mnt/v/data/file"); got != "from the host\n" {
		t.Errorf("in the other Pod: %q", got)
	}
	inside(t, n, "agent", "umount", at)
	if got := inside(t, n, "tenant", "ls", "/mnt/v/data"); got != "" {
		t.Errorf("in the other Pod after the umount: %q", got)
	}
	if left, err := os.ReadDir(n.Path(node.DefaultKubeletDir, "pods")); !os.IsNotExist(err) {
		t.Errorf("where kubelet keeps Pods usually: %v, %v", left, err)
	}
}

func hostPath(name, path string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
}

// kubelet shares its own folder whatever the node does, so a Pod with a volume runs.
// One with a folder of the node that shall propagate is refused, by the runtime.
func TestANodeWithPrivateMountsRefusesToPropagateItsFolders(t *testing.T) {
	n := startNode(t, func(o *node.Options) { o.PrivateMounts = true })
	run(t, n, sandbox("volume"))
	pod := sandbox("folder")
	pod.Spec.Volumes[0] = hostPath("v", bindSource(t, n, "private"))
	ctx := within(t, time.Minute)
	_, err := n.Client().CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	must(t, err)
	_, err = n.WaitPod(ctx, "default", "folder", func(p *corev1.Pod) error {
		why := node.Ready(p)
		if why == nil {
			t.Fatal("it runs")
		}
		if !strings.Contains(why.Error(), "is not a shared or slave mount") {
			return why
		}
		return nil
	})
	must(t, err)
}
