package install_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/datalayer/node-mounts/internal/fleet/fleettest"
	"github.com/datalayer/node-mounts/internal/install"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// hintOf is what an error says to do.
func hintOf(err error) string {
	if hinted, ok := errors.AsType[interface {
		error
		Hint() string
	}](err); ok {
		return hinted.Hint()
	}
	return ""
}

// sandbox makes a Pod with the gateway volume and no annotation: granted, and
// revoked while no agent ran.
func (p *place) sandbox(t *testing.T, node string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "sandbox"}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "node-mount-gateway", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}}
	_, err := p.api.CoreV1().Pods(p.namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
}

func asked(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Operator = nil
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Fatal(err)
	}
	p.sandbox(t, "one")
	removal := install.Removal{Timeout: time.Minute}
	refuses := func(what string, f *fleettest.Fleet, want error, says, hint string) {
		t.Helper()
		p.cluster.Agents = f
		_, err := p.cluster.Uninstall(t.Context(), removal)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), says) || !strings.Contains(hintOf(err), hint) {
			t.Errorf("%s: %v\n%s", what, err, hintOf(err))
		}
	}
	refuses("no agent", &fleettest.Fleet{}, install.ErrUnasked, "one (it has no agent)", "node-mounts status")
	dead := &fleettest.Fleet{}
	dead.Fails("one", errors.New("container not running"))
	refuses("a dead agent", dead, install.ErrUnasked, "one (container not running)", "--force")
	for what, pod := range map[string]nodeview.Pod{
		"mounts": {Mounts: []nodeview.Mount{{Target: "ada"}}},
		"held":   {Held: []nodeview.Held{{Target: "ada"}}},
		"leaked": {Leaked: 1},
	} {
		pod.Namespace, pod.Name = p.namespace, "sandbox"
		f := &fleettest.Fleet{}
		f.Answers(nodeview.Node{Node: "one", Pods: []nodeview.Pod{pod}})
		refuses(what, f, install.ErrInUse, p.namespace+"/sandbox", "node-mounts revoke sandbox --all --wait -n "+p.namespace)
	}
	if _, sets := p.left(t); sets != 1 {
		t.Errorf("%d DaemonSets are there", sets)
	}
	// On the node of a dead agent there is no Pod that could have mounts.
	empty := &fleettest.Fleet{}
	empty.Answers(nodeview.Node{Node: "one", Pods: []nodeview.Pod{{Namespace: p.namespace, Name: "sandbox", Published: true}}})
	empty.Fails("two", errors.New("container not running"))
	p.cluster.Agents = empty
	removal.Operator = &install.Operator{Namespace: p.namespace, Name: "datalayer-operator"}
	if _, err := p.cluster.Uninstall(t.Context(), removal); err != nil {
		t.Errorf("with nothing mounted: %v", err)
	}
}

func settled(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Operator = nil
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Fatal(err)
	}
	stands := &fleettest.Fleet{}
	stands.Answers(nodeview.Node{Node: "one", Pods: []nodeview.Pod{{Namespace: p.namespace, Name: "sandbox", Mounts: []nodeview.Mount{{Target: "ada"}}}}})
	p.cluster.Agents = stands
	p.request.SkipPreflight = true
	gateway := p.request.Values["nodeMountGateway"].(map[string]any)
	for key, value := range map[string]string{"root": "/var/lib/other", "annotationPrefix": "other.example.com", "volumeName": "other"} {
		gateway[key] = value
		_, err := p.cluster.Install(t.Context(), p.request)
		if !errors.Is(err, install.ErrInUse) || !strings.Contains(err.Error(), "nodeMountGateway."+key) || !strings.Contains(err.Error(), value) || !strings.Contains(hintOf(err), "revoke everything first") {
			t.Errorf("%s: %v", key, err)
		}
		delete(gateway, key)
	}
	p.request.Values["kubeletDir"] = "/var/lib/k0s/kubelet"
	if _, err := p.cluster.Install(t.Context(), p.request); !errors.Is(err, install.ErrInUse) || !strings.Contains(err.Error(), "kubeletDir") {
		t.Errorf("%v", err)
	}
	p.cluster.Agents = &fleettest.Fleet{}
	if report, err := p.cluster.Install(t.Context(), p.request); err != nil || report.Change != install.Upgraded {
		t.Errorf("with nothing mounted: %v %+v", err, report)
	}
}

func drifted(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Operator = nil
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Fatal(err)
	}
	_, err := p.api.AppsV1().DaemonSets(p.namespace).Patch(t.Context(), p.namespace, types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"priorityClassName":"","containers":[{"name":"driver","image":"other:1"}]}}}}`), metav1.PatchOptions{FieldManager: "kubectl-patch"})
	must(t, err)
	_, err = p.cluster.Install(t.Context(), p.request)
	if err == nil || !strings.Contains(err.Error(), "kubectl-patch") || !strings.Contains(hintOf(err), "--force-conflicts") {
		t.Errorf("%v\n%s", err, hintOf(err))
	}
	p.request.ForceConflicts = true
	report, err := p.cluster.Install(t.Context(), p.request)
	if err != nil || report.Change != install.Upgraded {
		t.Fatalf("%v %+v", err, report)
	}
	set, err := p.api.AppsV1().DaemonSets(p.namespace).Get(t.Context(), p.namespace, metav1.GetOptions{})
	must(t, err)
	if image := set.Spec.Template.Spec.Containers[0].Image; image == "other:1" {
		t.Errorf("the image is still %s", image)
	}
	if report, err = p.cluster.Install(t.Context(), p.request); err != nil || report.Change != install.Unchanged {
		t.Errorf("again: %v %s", err, report.Change)
	}
}

func wayBack(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Operator = nil
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Fatal(err)
	}
	p.request.Timeout = 8 * time.Second // the probes have to end in it, too
	for i, revision := range []int{2, 3} {
		p.request.Values["nodeMountGateway"].(map[string]any)["maxMountsPerPod"] = 7 + i
		p.set(func(n *nodes) { n.broken = "ImagePullBackOff" })
		report, err := p.cluster.Install(t.Context(), p.request)
		if !errors.Is(err, install.ErrTimeout) || report.Revision != revision || !strings.Contains(hintOf(err), "helm rollback "+install.ReleaseName+" 1 -n") {
			t.Errorf("%d: %v\n%s", report.Revision, err, hintOf(err))
		}
	}
}
