package verify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/verify"
)

// testAPI is a real API server with the users of the tests.
type testAPI struct {
	*servertest.Server
	admin, stranger kubernetes.Interface
}

func startAPI(t *testing.T) testAPI {
	t.Helper()
	s := servertest.Start(t)
	stranger, _ := s.User(t, "stranger")
	return testAPI{s, s.Client(t), stranger}
}

// playedNode plays kubelet, the agent and one container for the Pods of a namespace.
// Pods, grants and answers are in a real API server; mounts and files are here.
type playedNode struct {
	t             *testing.T
	api, stranger kubernetes.Interface
	namespace     string
	fault         fault
	before        func(step int)

	mu       sync.Mutex
	mounts   map[string][]grant.Mount // by Pod
	files    map[string]string        // by path on the claim
	restarts map[string]int32
}

func newPlayedNode(t *testing.T, api testAPI, f fault) *playedNode {
	t.Helper()
	n := &playedNode{
		t: t, api: api.admin, stranger: api.stranger, fault: f,
		mounts: map[string][]grant.Mount{}, files: map[string]string{}, restarts: map[string]int32{},
	}
	ns, err := n.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}, metav1.CreateOptions{})
	must(t, err)
	n.namespace = ns.Name
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.play(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *playedNode) probe(bound time.Duration) verify.Probe {
	if slices.Contains([]fault{noImage, noRestart, stuck}, n.fault) {
		bound = 10 * time.Second // that long it waits for what does not come; what does come may take it too
	}
	return verify.Probe{
		API: n.api, Exec: n, Names: grant.NamesFor(""), Volume: grant.DefaultVolumeName, MountPath: grant.DefaultMountPath,
		Namespace: n.namespace, Image: "example.org/agent", Bound: bound,
	}
}

// later calls f when there is a Pod, and a grant where one is waited for.
func (n *playedNode) later(f func()) {
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n.t.Context().Err() == nil {
			<-tick.C
			if list, err := n.api.CoreV1().Pods(n.namespace).List(n.t.Context(), metav1.ListOptions{}); err == nil && slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
				return n.fault != mute || p.Annotations[grant.NamesFor("").Mounts] != ""
			}) {
				f()
				return
			}
		}
	}()
}

func (n *playedNode) play(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		list, err := n.api.CoreV1().Pods(n.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil {
				n.kubelet(ctx, p)
				n.agent(ctx, p)
			}
		}
	}
}

func (n *playedNode) kubelet(ctx context.Context, p corev1.Pod) {
	if n.fault == stuck && len(p.Finalizers) == 0 {
		p.Finalizers = []string{"example.org/leaked"}
		if updated, err := n.api.CoreV1().Pods(n.namespace).Update(ctx, &p, metav1.UpdateOptions{}); err == nil {
			p = *updated
		}
	}
	n.mu.Lock()
	restarts := n.restarts[p.Name]
	n.mu.Unlock()
	status := corev1.ContainerStatus{Name: "runtime", Ready: true, RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	if n.fault == noImage {
		status.Ready, status.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}
	}
	if n.fault == private {
		status.Ready, status.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "CreateContainerError", Message: `path "/var/lib/kubelet/pods/x" is mounted on "/" but it is not a shared or slave mount`,
		}}
	}
	if len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == restarts {
		return
	}
	p.Status.Phase, p.Status.ContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{status}
	_, _ = n.api.CoreV1().Pods(n.namespace).UpdateStatus(ctx, &p, metav1.UpdateOptions{}) // tried again
}

func (n *playedNode) agent(ctx context.Context, p corev1.Pod) {
	names := grant.NamesFor("")
	text, asks := p.Annotations[names.Mounts]
	if _, answered := p.Annotations[names.Ready]; answered || !asks || n.fault == noImage || n.fault == private || n.fault == mute {
		return
	}
	set := grant.Decode(text)
	st := grant.Status{Hash: set.Hash, State: grant.StateReady, Failed: map[string]grant.Code{}, Messages: map[string]string{}}
	n.mu.Lock()
	switch {
	case n.fault == refuses:
		st.State, st.Failed["probe"], st.Messages["probe"] = grant.StateFailed, grant.CodeMountFailed, "the claim is away"
	case n.fault == heldAfterRevoke && len(set.Mounts) == 0:
		st.State, st.Failed["probe"], st.Messages["probe"] = grant.StateDegraded, grant.CodeMountFailed, "held by a process"
	case n.fault == staysMounted && len(set.Mounts) == 0:
	default:
		n.mounts[p.Name] = set.Mounts
	}
	n.mu.Unlock()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{names.Ready: st.Encode()}}})
	if err == nil {
		_, _ = n.api.CoreV1().Pods(n.namespace).Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{})
	}
}

// Run implements verify.Executor: what the scripts do, in the container of a Pod.
func (n *playedNode) Run(ctx context.Context, _, pod, _ string, command ...string) (string, error) {
	scripts := verify.ProbeScripts()
	script, args := command[2], command[4:]
	n.interrupt(script)
	if err := ctx.Err(); err != nil {
		return "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch script {
	case scripts.Table:
		return n.table(pod), nil
	case scripts.End:
		if n.fault != noRestart {
			n.restarts[pod]++
		}
		if n.fault == lostAtRestart {
			n.mounts[pod] = nil
		}
		return "", failed("terminated")
	case scripts.Owner:
		owner := "1000 100"
		if n.fault == squashed {
			owner = "65534 65534"
		}
		return "drwxrwxr-x 2 " + owner + " 4096 Nov 30 00:00 " + args[0] + "\n", nil
	}
	return n.touch(pod, script, args)
}

// interrupt tells which step of the probe a script belongs to.
func (n *playedNode) interrupt(script string) {
	if n.before == nil {
		return
	}
	s := verify.ProbeScripts()
	step := map[string]int{s.Write: 2, s.Table: 3, s.Spoil: 4, s.End: 5, s.Remove: 6}
	if i, ok := step[script]; ok {
		n.before(i)
	}
}

func (n *playedNode) touch(pod, script string, args []string) (string, error) {
	scripts := verify.ProbeScripts()
	target := path.Base(path.Dir(args[0]))
	i := slices.IndexFunc(n.mounts[pod], func(m grant.Mount) bool { return m.Target == target })
	if i < 0 {
		return "", failed("No such file or directory")
	}
	m := n.mounts[pod][i]
	file := m.Source + "/" + path.Base(args[0])
	switch writes := script != scripts.Read; {
	case writes && m.Mode == grant.ReadOnly && n.fault == roForOthers, writes && n.fault == notWritable:
		return "", failed("Permission denied")
	case writes && m.Mode == grant.ReadOnly && n.fault != roIsWritable:
		return "", failed("Read-only file system")
	}
	switch script {
	case scripts.Write:
		n.files[file] = args[1]
	case scripts.Spoil:
		n.files[file] = "x"
	case scripts.Remove:
		delete(n.files, file)
		return "", nil
	}
	text, ok := n.files[file]
	if !ok {
		return "", failed("No such file or directory")
	}
	return text, nil
}

func failed(says string) error { return &verify.ExitError{Status: 1, Stderr: "sh: " + says} }

// table is the mount table of a container.
func (n *playedNode) table(pod string) string {
	var b strings.Builder
	for _, m := range n.mounts[pod] {
		flags := []string{string(m.Mode), "nosuid", "nodev"}
		if !m.AllowExec && n.fault != executable {
			flags = append(flags, "noexec")
		}
		if n.fault == suid {
			flags = slices.DeleteFunc(flags, func(f string) bool { return f == "nosuid" })
		}
		fmt.Fprintf(&b, "100 90 0:42 /%s %s/%s %s master:7 - nfs4 server:/ rw\n", m.Source, grant.DefaultMountPath, m.Target, strings.Join(flags, ","))
	}
	return b.String()
}

// left: no Pod of the probe and no file of it is left.
func (n *playedNode) left(podsToo bool) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fault != lostAtRestart && len(n.files) > 0 { // without a mount there is no way to the file
		n.t.Errorf("files are left on the claim: %v", n.files)
	}
	list, err := n.api.CoreV1().Pods(n.namespace).List(context.Background(), metav1.ListOptions{})
	must(n.t, err)
	if podsToo && len(list.Items) > 0 {
		n.t.Errorf("Pods are left: %v", stillThere(list.Items))
	}
}
