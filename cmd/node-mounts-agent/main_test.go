package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/test/ports"
)

const (
	podUID = "3f2c9a10-5b7d-4e21-9c44-0d1e2f3a4b5c"

	// agentEnv makes the test binary the command itself.
	agentEnv = "AGENT_TEST_RUN"

	// patience is how long a test waits for what takes milliseconds.
	patience = 30 * time.Second
)

func TestMain(m *testing.M) {
	// git runs as the command, by other names and without an environment.
	if name := os.Args[0]; name == "node-mounts-confined" || strings.HasPrefix(name, "/proc/self/fd/") {
		main()
	}
	simnode.Main()
	if os.Getenv(agentEnv) != "" {
		main()
	}
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	put(t, path, `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: `+server+`}}]
users: [{name: test, user: {}}]
`)
	return path
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// agentProcess is the command as a process.
type agentProcess struct {
	*agenttest.Process
	t    *testing.T
	port string
}

// start starts the agent on the node.
func start(t *testing.T, n *simnode.Node, config string, more ...string) *agentProcess {
	t.Helper()
	port := ports.Free(t, "")
	cmd := exec.Command("/proc/self/exe", append(agenttest.Flags(n, "node-a", "runtimes", config),
		append([]string{"--health-port", port, "--log-level", "debug", "--events", "false"}, more...)...)...)
	cmd.Env = append(os.Environ(), agentEnv+"=1")
	a := &agentProcess{Process: agenttest.StartProcess(t, cmd, patience), t: t, port: port}
	t.Cleanup(func() {
		a.Kill()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", a.Log())
		}
	})
	return a
}

func (a *agentProcess) get(path string) (int, string) {
	a.t.Helper()
	r, err := http.Get("http://127.0.0.1:" + a.port + path)
	if err != nil {
		a.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// cluster is an API over HTTP.
func cluster(t *testing.T, pods ...*corev1.Pod) (client kubernetes.Interface, config string) {
	t.Helper()
	c, err := kubetest.NewClient(pods...)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(kubetest.Handler(c))
	t.Cleanup(func() {
		server.CloseClientConnections() // ends the watches
		server.Close()
	})
	return c, kubeconfig(t, server.URL)
}

func sandbox(container string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sandbox", Namespace: "runtimes", UID: podUID},
		Spec: corev1.PodSpec{
			NodeName: "node-a",
			Volumes: []corev1.Volume{{
				Name:         "node-mount-gateway",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
			}},
			Containers: []corev1.Container{{Name: "runtime", VolumeMounts: []corev1.VolumeMount{{
				Name: "node-mount-gateway", MountPath: simnode.DefaultMountPath,
				MountPropagation: ptr.To(corev1.MountPropagationHostToContainer),
			}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "runtime", ContainerID: "containerd://" + container,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
}

// annotate writes the grant as a writer does: the old answer goes in the same
// patch. Then it waits for the Pod to look as until says.
func annotate(t *testing.T, client kubernetes.Interface, value *string, until func(ready *string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	names := grant.NamesFor("")
	change := map[string]any{names.Mounts: value}
	if value != nil {
		change[names.Ready] = nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": change}})
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods("runtimes")
	if _, err := pods.Patch(ctx, "sandbox", types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	last := "none"
	for {
		select {
		case <-ctx.Done():
			t.Fatalf("the answer is still %s", last)
		case e := <-events.ResultChan():
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("an event of %T", e.Object)
			}
			var ready *string
			if v, ok := p.Annotations[names.Ready]; ok {
				ready, last = &v, v
			}
			if until(ready) {
				return
			}
		}
	}
}

func TestTheAgentServesAGrantAndLeavesItStandingWhenItStops(t *testing.T) {
	node, err := simnode.New(simnode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	}()
	put(t, filepath.Join(node.Claim, "datasets/cats/one"), "meow")
	pod := node.NewPod(podUID)
	if err := pod.SetUpVolume(false); err != nil {
		t.Fatal(err)
	}
	container, err := pod.StartContainer(simnode.ContainerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, config := cluster(t, sandbox(container.ID()))
	inside := func(want string) {
		t.Helper()
		got, err := container.ReadFile(simnode.DefaultMountPath + "/cats/one")
		if (err == nil) != (want != "") || string(got) != want {
			t.Errorf("the sandbox reads %q, %v; want %q", got, err, want)
		}
	}

	a := start(t, node, config)
	set, err := grant.Encode([]grant.Mount{{Kind: grant.KindSharedFolder, Source: "datasets/cats", Target: "cats", Mode: grant.ReadOnly, AllowExec: true}})
	if err != nil {
		t.Fatal(err)
	}
	annotate(t, client, &set, func(ready *string) bool {
		if ready == nil {
			return false
		}
		st, err := grant.DecodeStatus(*ready)
		return err == nil && st.State == grant.StateReady
	})
	inside("meow")
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ok", "/metrics": "datalayer_mount_gateway_granted_total 1\n", "/gateway": `"source": "datasets/cats"`,
	} {
		if status, body := a.get(path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status := a.Stop(); status != 0 {
		t.Errorf("the agent ended with status %d", status)
	}
	inside("meow")
	if log := a.Log(); strings.Contains(log, "cannot be watched") || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("the agent complains:\n%s", log)
	}

	b := start(t, node, config)
	annotate(t, client, nil, func(ready *string) bool { return ready == nil })
	inside("")
	if status := b.Stop(); status != 0 {
		t.Errorf("the second agent ended with status %d", status)
	}
}

func TestOnANodeThatCannotMountTheAgentRunsAndIsNotReady(t *testing.T) {
	node, err := simnode.New(simnode.Options{Private: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, config := cluster(t)
	a := start(t, node, config)
	a.Says("watching the node's pods")
	if status, body := a.get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "make-rshared") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if status, body := a.get("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, body)
	}
	if status, body := a.get("/gateway"); status != http.StatusOK || !strings.Contains(body, "make-rshared") || !json.Valid([]byte(body)) {
		t.Errorf("/gateway: %d %s", status, body)
	}
	if status := a.Stop(); status != 0 {
		t.Errorf("the agent ended with status %d", status)
	}
}

func TestWithoutTheAPITheAgentRunsAndIsNotReady(t *testing.T) {
	node, err := simnode.New(simnode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	}()
	a := start(t, node, kubeconfig(t, "http://127.0.0.1:"+ports.Free(t, "")))
	a.Says("cannot be watched")
	if status, body := a.get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "not been listed") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if status, body := a.get("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, body)
	}
	began := time.Now()
	if status := a.Stop(); status != 0 {
		t.Errorf("the agent ended with status %d", status)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to stop", took)
	}
}
