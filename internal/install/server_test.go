package install_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/charts"
	"github.com/datalayer/node-mounts/internal/install"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/verify"
)

const (
	goodNode    = `{"kernel":"6.8.0","mount_setattr":true,"kubelet_propagation":"shared","root_propagation":"shared","kubelet_found":true,"faults":[]}`
	privateNode = `{"kernel":"6.8.0","mount_setattr":true,"kubelet_propagation":"private","root_propagation":"private","kubelet_found":true,"faults":["/var/lib/kubelet is private"]}`
)

// nodes are two nodes and what works on them: the controller of DaemonSets and the
// kubelets, as far as an installation meets them.
type nodes struct {
	api       kubernetes.Interface
	namespace string
	names     []string

	mu     sync.Mutex
	says   map[string]string // what a probe of a node finds; "" is that it never ends
	waits  map[string]string // what a probe of a node waits for, REASON: MESSAGE
	broken string            // why no agent becomes ready
	slow   bool              // the controllers have not come to it yet
	seen   []string          // what was seen, in order
}

func (n *nodes) set(edit func(*nodes)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	edit(n)
}

func (n *nodes) note(what string) {
	if !slices.Contains(n.seen, what) {
		n.seen = append(n.seen, what)
	}
}

// work does what controller and kubelets do, again and again, until the test ends.
func (n *nodes) work(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// Objects come and go while it looks; the next round sees what is then.
			if err := n.round(ctx); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
				t.Errorf("the nodes: %v", err)
				return
			}
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
}

func (n *nodes) round(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods, err := n.api.CoreV1().Pods(n.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; strings.HasPrefix(p.Name, "node-mounts-preflight-") {
			n.note("probe")
			if err := n.answer(ctx, p); err != nil {
				return err
			}
		}
	}
	if n.slow {
		return nil
	}
	sets, err := n.api.AppsV1().DaemonSets(n.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items { // the garbage collector
		p := &pods.Items[i]
		if owner := metav1.GetControllerOf(p); owner != nil && !slices.ContainsFunc(sets.Items, func(s appsv1.DaemonSet) bool { return s.UID == owner.UID }) {
			if err := n.api.CoreV1().Pods(n.namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
				return err
			}
		}
	}
	for i := range sets.Items {
		n.note("agents")
		if err := n.serve(ctx, &sets.Items[i], pods.Items); err != nil {
			return err
		}
	}
	return nil
}

func (n *nodes) answer(ctx context.Context, p *corev1.Pod) error {
	says := n.says[p.Spec.NodeName]
	if reason, message, waits := strings.Cut(n.waits[p.Spec.NodeName], ": "); waits {
		now := []corev1.ContainerStatus{{Name: "driver", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		if reflect.DeepEqual(p.Status.ContainerStatuses, now) {
			return nil
		}
		p.Status.ContainerStatuses = now
		_, err := n.api.CoreV1().Pods(n.namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	}
	if says == "" || p.Status.Phase != corev1.PodPending {
		return nil
	}
	p.Status.Phase = corev1.PodSucceeded
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "driver", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: says},
	}}}
	_, err := n.api.CoreV1().Pods(n.namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// serve makes a DaemonSet's Pods, replaces those of an older template, and says so.
func (n *nodes) serve(ctx context.Context, set *appsv1.DaemonSet, pods []corev1.Pod) error {
	generation := fmt.Sprint(set.Generation)
	there := map[string]bool{}
	for i := range pods {
		p := &pods[i]
		if !metav1.IsControlledBy(p, set) {
			continue
		}
		if p.Labels["pod-template-generation"] != generation {
			if err := n.api.CoreV1().Pods(n.namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
				return err
			}
			continue
		}
		there[p.Spec.NodeName] = true
		if err := n.start(ctx, p); err != nil {
			return err
		}
	}
	for _, name := range n.names {
		if there[name] {
			continue
		}
		p := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
		p.GenerateName, p.Spec.NodeName = set.Name+"-", name
		p.Labels["pod-template-generation"] = generation
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
		if _, err := n.api.CoreV1().Pods(n.namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	all := int32(len(n.names))
	if set.Status.ObservedGeneration == set.Generation && set.Status.UpdatedNumberScheduled == int32(len(there)) {
		return nil
	}
	set.Status.ObservedGeneration, set.Status.DesiredNumberScheduled, set.Status.UpdatedNumberScheduled = set.Generation, all, int32(len(there))
	_, err := n.api.AppsV1().DaemonSets(n.namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	return err
}

func (n *nodes) start(ctx context.Context, p *corev1.Pod) error {
	condition, state := corev1.ConditionTrue, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if n.broken != "" {
		condition, state = corev1.ConditionFalse, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: n.broken, Message: "no such image"}}
	}
	if len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == condition {
		return nil
	}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: condition}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "driver", State: state}}
	_, err := n.api.CoreV1().Pods(n.namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// place is a cluster to install into, as one test sees it.
type place struct {
	*nodes
	cluster  install.Cluster
	request  install.Request
	progress func() string
}

// newPlace makes a namespace with a claim, and an operator that is off.
func newPlace(t *testing.T, api kubernetes.Interface, cfg *rest.Config, namespace string) *place {
	t.Helper()
	_, err := api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "homes"}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *quantity(t, "1Gi")}
	claim, err = api.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), claim, metav1.CreateOptions{})
	must(t, err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = api.CoreV1().PersistentVolumeClaims(namespace).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	must(t, err)
	labels := map[string]string{"app": "operator"}
	operator := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "datalayer-operator"}}
	operator.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	operator.Spec.Template.Labels = labels
	operator.Spec.Template.Spec.Containers = []corev1.Container{{Name: "operator", Image: "operator"}}
	_, err = api.AppsV1().Deployments(namespace).Create(t.Context(), operator, metav1.CreateOptions{})
	must(t, err)
	chart, err := charts.NodeMounts()
	must(t, err)
	helm, err := install.NewHelm(cfg, namespace, io.Discard)
	must(t, err)
	var mu sync.Mutex
	var lines []string
	p := &place{
		nodes: &nodes{api: api, namespace: namespace, names: []string{"one", "two"}, says: map[string]string{"one": goodNode, "two": goodNode}},
		cluster: install.Cluster{Client: kubernetes.NewForConfigOrDie(cfg), Helm: helm, Interval: 20 * time.Millisecond, Progress: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		}},
		request: install.Request{
			Chart: chart, Namespace: namespace, Timeout: time.Minute,
			Values: map[string]any{
				"fullnameOverride": namespace, // cluster-wide objects of parallel releases
				"nodeMountGateway": map[string]any{"enabled": true, "sharedFilesystemClaim": "homes", "namespace": namespace},
			},
			Operator: &install.Operator{Namespace: namespace, Name: "datalayer-operator"},
		},
		progress: func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(lines, "\n")
		},
	}
	p.request.Verify = func(context.Context, install.Serving) ([]install.Row, error) {
		p.set(func(n *nodes) { n.note("checks") })
		return []install.Row{{Check: "all", Status: verify.OK}}, nil
	}
	p.work(t)
	return p
}

// slowUntil keeps the controllers from working until this is told.
func (p *place) slowUntil(told string) {
	p.set(func(n *nodes) { n.slow = true })
	tell := p.cluster.Progress
	p.cluster.Progress = func(line string) {
		tell(line)
		if strings.Contains(line, told) {
			p.set(func(n *nodes) { n.slow = false })
		}
	}
}

func (p *place) operatorIs(t *testing.T) string {
	t.Helper()
	d, err := p.api.AppsV1().Deployments(p.namespace).Get(t.Context(), "datalayer-operator", metav1.GetOptions{})
	must(t, err)
	for _, e := range d.Spec.Template.Spec.Containers[0].Env {
		if e.Name == "DATALAYER_NODE_MOUNT_GATEWAY_ENABLED" {
			return e.Value
		}
	}
	return ""
}

// left are the probes and DaemonSets that are there.
func (p *place) left(t *testing.T) (probes, sets int) {
	t.Helper()
	pods, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=node-mounts-preflight"})
	must(t, err)
	all, err := p.api.AppsV1().DaemonSets(p.namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	return len(pods.Items), len(all.Items)
}

func TestOnAServer(t *testing.T) {
	s := servertest.Start(t)
	api := s.Client(t)
	for _, name := range []string{"one", "two"} {
		n, err := api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}}, metav1.CreateOptions{})
		must(t, err)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err = api.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		must(t, err)
	}
	for _, story := range []struct {
		name string
		tell func(*testing.T, *servertest.Server, *place)
	}{
		{"the agents come first, the checks then, and the operator's half last", inOrder},
		{"the second installation changes nothing, and another value upgrades", repeated},
		{"a node that cannot serve stops the installation before anything is installed", unfit},
		{"a node on which no container can start is not waited for", hopeless},
		{"an image is tried for a while", pulled},
		{"a probe that somebody deletes is not waited for at all", deleted},
		{"an interrupt takes the probes away", interrupted},
		{"agents that do not become ready leave the operator's half alone, and it is said why", unready},
		{"a failure tells loudly of an operator's half that is on", loud},
		{"checks that fail leave the operator's half off", unchecked},
		{"who may not install is told what is missing, and nothing is made", forbidden},
		{"a claim that is not there stops the installation", claimless},
		{"an uninstallation turns the operator off and takes everything away", removed},
		{"an uninstallation refuses while Pods have mounts", inUse},
		{"an uninstallation asks the agents, and not the annotations alone", asked},
		{"what mounts are found by does not change while some stand", settled},
		{"what somebody has changed by hand is seen and taken back when told to", drifted},
		{"a way back leads to a revision that was good", wayBack},
	} {
		t.Run(story.name, func(t *testing.T) {
			name := "place-" + strings.ToLower(strings.Fields(story.name)[len(strings.Fields(story.name))-1]) + fmt.Sprint(len(story.name))
			story.tell(t, s, newPlace(t, api, s.Admin, name))
		})
	}
}

func inOrder(t *testing.T, _ *servertest.Server, p *place) {
	verified := ""
	p.request.Verify = func(context.Context, install.Serving) ([]install.Row, error) {
		verified = p.operatorIs(t)
		p.set(func(n *nodes) { n.note("checks") })
		return []install.Row{{Check: "all", Status: verify.OK}}, nil
	}
	report, err := p.cluster.Install(t.Context(), p.request)
	if err != nil {
		t.Fatalf("%v\n%+v", err, report)
	}
	if got := strings.Join(p.seen, " "); got != "probe agents checks" || verified != "" || p.operatorIs(t) != "true" {
		t.Errorf("the order is %q, the operator's half was %q at the checks and is %q", got, verified, p.operatorIs(t))
	}
	if report.Change != install.Installed || report.Revision != 1 || len(report.Rollout) != 2 || report.Operator != p.namespace+"/datalayer-operator" {
		t.Errorf("%+v", report)
	}
	if probes, sets := p.left(t); probes != 0 || sets != 1 {
		t.Errorf("%d probes and %d DaemonSets are there", probes, sets)
	}
	secrets, err := p.api.CoreV1().Secrets(p.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm,name=" + install.ReleaseName + ",status=deployed"})
	must(t, err)
	if len(secrets.Items) != 1 || secrets.Items[0].Type != "helm.sh/release.v1" {
		t.Errorf("`helm list` would not show it: %d Secrets", len(secrets.Items))
	}
	set, err := p.api.AppsV1().DaemonSets(p.namespace).Get(t.Context(), p.namespace, metav1.GetOptions{})
	must(t, err)
	if len(set.ManagedFields) == 0 || set.ManagedFields[0].Manager != "helm" {
		t.Errorf("`helm upgrade` would conflict with %+v", set.ManagedFields)
	}
}

func repeated(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Operator = nil
	step := func(change install.Change, revision int) {
		t.Helper()
		report, err := p.cluster.Install(t.Context(), p.request)
		if err != nil || report.Change != change || report.Revision != revision {
			t.Fatalf("%s %d, %v; want %s %d\n%s", report.Change, report.Revision, err, change, revision, p.progress())
		}
	}
	step(install.Installed, 1)
	p.set(func(n *nodes) { n.says = nil }) // nobody would answer a probe
	step(install.Unchanged, 1)
	p.set(func(n *nodes) { n.says = map[string]string{"one": goodNode, "two": goodNode} })
	p.request.Values["nodeMountGateway"].(map[string]any)["maxMountsPerPod"] = 7
	p.slowUntil("agents are being replaced")
	step(install.Upgraded, 2)
	pods, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "pod-template-generation=1"})
	must(t, err)
	if len(pods.Items) > 0 {
		t.Errorf("%d agents of before are there", len(pods.Items))
	}
	must(t, p.api.AppsV1().DaemonSets(p.namespace).Delete(t.Context(), p.namespace, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	step(install.Upgraded, 3)
	p.request.Values, p.request.ReuseValues = map[string]any{}, true
	step(install.Unchanged, 3)
}

func unfit(t *testing.T, _ *servertest.Server, p *place) {
	p.set(func(n *nodes) { n.says["two"] = privateNode })
	report, err := p.cluster.Install(t.Context(), p.request)
	last := report.Preflight[len(report.Preflight)-1]
	if !errors.Is(err, verify.ErrFailed) || last.Node != "two" || last.Status != verify.Fail || !strings.Contains(last.Hint, "make-rshared") {
		t.Errorf("%v\n%+v", err, report.Preflight)
	}
	if probes, sets := p.left(t); probes != 0 || sets != 0 || p.operatorIs(t) != "" {
		t.Errorf("%d probes, %d DaemonSets, the operator's half is %q", probes, sets, p.operatorIs(t))
	}
	p.request.SkipPreflight = true
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Errorf("--skip-preflight: %v", err)
	}
}

// row is the preflight's row about a node.
func (p *place) row(t *testing.T, report install.Report, node string) install.Row {
	t.Helper()
	i := slices.IndexFunc(report.Preflight, func(r install.Row) bool { return r.Node == node })
	if i < 0 {
		t.Fatalf("no row about %s: %+v", node, report.Preflight)
	}
	if probes, sets := p.left(t); probes != 0 || sets != 0 {
		t.Errorf("%d probes and %d DaemonSets are there", probes, sets)
	}
	return report.Preflight[i]
}

func hopeless(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Timeout = time.Hour // the test's own is shorter
	for waits, hint := range map[string]string{
		`CreateContainerError: path "/x" is mounted on "/" but it is not a shared or slave mount`: "make-rshared",
		"ErrImageNeverPull: not there": "image.repository",
		"InvalidImageName: A:B:C":      "image.repository",
	} {
		p.set(func(n *nodes) { n.waits = map[string]string{"two": waits} })
		report, err := p.cluster.Install(t.Context(), p.request)
		two, one := p.row(t, report, "two"), p.row(t, report, "one")
		if !errors.Is(err, verify.ErrFailed) || two.Status != verify.Fail || !strings.Contains(two.Detail, waits) || !strings.Contains(two.Hint, hint) || one.Status != verify.OK {
			t.Errorf("%v\n%+v", err, report.Preflight)
		}
	}
}

func pulled(t *testing.T, _ *servertest.Server, p *place) {
	p.set(func(n *nodes) { n.waits = map[string]string{"two": "ErrImagePull: the registry is away"} })
	// Where the time is over before the tries are. What there is to see is seen before.
	p.request.Timeout = 8 * time.Second
	report, err := p.cluster.Install(t.Context(), p.request)
	if two := p.row(t, report, "two"); !errors.Is(err, verify.ErrFailed) || !strings.Contains(two.Detail, "in time: ErrImagePull: the registry is away") || !strings.Contains(two.Hint, "image.repository") {
		t.Errorf("%v\n%+v", err, two)
	}
	// Where they are over.
	p.request.Timeout, p.cluster.PullPatience = time.Hour, 500*time.Millisecond
	report, err = p.cluster.Install(t.Context(), p.request)
	if two := p.row(t, report, "two"); !errors.Is(err, verify.ErrFailed) || !strings.HasPrefix(two.Detail, "ErrImagePull: ") || !strings.Contains(two.Hint, "image.repository") {
		t.Errorf("%v\n%+v", err, two)
	}
	// One of them succeeds.
	p.request.Timeout, p.cluster.PullPatience = time.Minute, time.Minute
	tell := p.cluster.Progress
	p.cluster.Progress = func(line string) {
		tell(line)
		if strings.Contains(line, "two: ErrImagePull") {
			p.set(func(n *nodes) { n.waits = nil })
		}
	}
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Errorf("%v\n%s", err, p.progress())
	}
}

func deleted(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Timeout = time.Hour
	p.set(func(n *nodes) { n.says["two"] = "" })
	tell := p.cluster.Progress
	p.cluster.Progress = func(line string) {
		tell(line)
		if strings.Contains(line, "1 of 2") {
			pods, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{})
			must(t, err)
			for i := range pods.Items {
				if pods.Items[i].Spec.NodeName == "two" {
					must(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), pods.Items[i].Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
				}
			}
		}
	}
	report, err := p.cluster.Install(t.Context(), p.request)
	if two := p.row(t, report, "two"); !errors.Is(err, verify.ErrFailed) || !strings.Contains(two.Detail, "deleted") {
		t.Errorf("%v\n%+v", err, two)
	}
}

func interrupted(t *testing.T, _ *servertest.Server, p *place) {
	p.set(func(n *nodes) { n.says = nil })
	ctx, interrupt := context.WithCancel(t.Context())
	tell := p.cluster.Progress
	p.cluster.Progress = func(line string) {
		tell(line)
		if strings.Contains(line, "0 of 2") { // both are there and have not ended
			interrupt()
		}
	}
	_, err := p.cluster.Install(ctx, p.request)
	if probes, sets := p.left(t); !errors.Is(err, context.Canceled) || probes != 0 || sets != 0 {
		t.Errorf("%v; %d probes and %d DaemonSets are there", err, probes, sets)
	}
}

func unready(t *testing.T, _ *servertest.Server, p *place) {
	p.set(func(n *nodes) { n.broken = "ImagePullBackOff" })
	p.request.Timeout = 10 * time.Second // the probes have to end in it, too
	report, err := p.cluster.Install(t.Context(), p.request)
	var hint interface{ Hint() string }
	if !errors.Is(err, install.ErrTimeout) || !errors.As(err, &hint) || !strings.Contains(hint.Hint(), "uninstall") {
		t.Errorf("%v", err)
	}
	if len(report.Rollout) != 2 || !strings.Contains(report.Rollout[0].Detail, "ImagePullBackOff: no such image") || report.Rollout[0].Status != verify.Fail {
		t.Errorf("%+v", report.Rollout)
	}
	if !strings.Contains(p.progress(), "one: ImagePullBackOff") {
		t.Errorf("it was not told while it waited:\n%s", p.progress())
	}
	if p.operatorIs(t) != "" || slices.Contains(p.seen, "checks") {
		t.Errorf("the operator's half is %q, seen %v", p.operatorIs(t), p.seen)
	}
}

func loud(t *testing.T, _ *servertest.Server, p *place) {
	p.turnOn(t)
	p.set(func(n *nodes) { n.says["one"] = privateNode })
	_, err := p.cluster.Install(t.Context(), p.request)
	if !errors.Is(err, verify.ErrFailed) || !strings.Contains(err.Error(), "OPERATOR'S HALF IS ON") {
		t.Errorf("%v", err)
	}
	p.request.Operator = nil // it is found by its name
	if _, err = p.cluster.Install(t.Context(), p.request); !strings.Contains(fmt.Sprint(err), "("+p.namespace+"/datalayer-operator)") {
		t.Errorf("%v", err)
	}
}

func (p *place) turnOn(t *testing.T) {
	t.Helper()
	d, err := p.api.AppsV1().Deployments(p.namespace).Get(t.Context(), "datalayer-operator", metav1.GetOptions{})
	must(t, err)
	from := &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "other", LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}
	d.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OTHER", ValueFrom: from}, {Name: "DATALAYER_NODE_MOUNT_GATEWAY_ENABLED", Value: "true"}}
	_, err = p.api.AppsV1().Deployments(p.namespace).Update(t.Context(), d, metav1.UpdateOptions{})
	must(t, err)
}

func unchecked(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Verify = func(context.Context, install.Serving) ([]install.Row, error) {
		return []install.Row{{Check: "one", Status: verify.Warn}, {Check: "other", Status: verify.Fail}}, nil
	}
	report, err := p.cluster.Install(t.Context(), p.request)
	if !errors.Is(err, verify.ErrFailed) || len(report.Checks) != 2 || p.operatorIs(t) != "" {
		t.Errorf("%v, %+v, the operator's half is %q", err, report.Checks, p.operatorIs(t))
	}
}

func forbidden(t *testing.T, s *servertest.Server, p *place) {
	_, user := s.User(t, "halfway",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets", "namespaces", "nodes", "persistentvolumeclaims", "pods"}, Verbs: []string{"get", "list", "create", "update", "delete"}},
		rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{APIGroups: []string{"apps", "rbac.authorization.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"create", "patch", "delete"}})
	user.QPS, user.Burst = 100, 200
	helm, err := install.NewHelm(user, p.namespace, io.Discard)
	must(t, err)
	p.cluster.Client, p.cluster.Helm = kubernetes.NewForConfigOrDie(user), helm
	report, err := p.cluster.Install(t.Context(), p.request)
	if !errors.Is(err, verify.ErrFailed) {
		t.Fatal(err)
	}
	row := report.Preflight[slices.IndexFunc(report.Preflight, func(r install.Row) bool { return r.Check == "Your permissions" })]
	for _, missing := range []string{"create serviceaccounts in " + p.namespace, "create networkpolicies.networking.k8s.io", "watch pods in " + p.namespace + " (the agent's role grants it"} {
		if row.Status != verify.Fail || !strings.Contains(row.Detail, missing) {
			t.Errorf("no %q in %+v", missing, row)
		}
	}
	if strings.Contains(row.Detail, "daemonsets") || strings.Contains(row.Detail, "secrets") {
		t.Errorf("what is there is called missing: %s", row.Detail)
	}
	if probes, sets := p.left(t); probes != 0 || sets != 0 || slices.Contains(p.seen, "probe") {
		t.Errorf("%d probes and %d DaemonSets, seen %v", probes, sets, p.seen)
	}
}

func claimless(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Values["nodeMountGateway"].(map[string]any)["sharedFilesystemClaim"] = "nothing"
	p.request.Values["nodeMountGateway"].(map[string]any)["namespace"] = "nowhere"
	report, err := p.cluster.Install(t.Context(), p.request)
	var fails []string
	for _, r := range report.Preflight {
		if r.Status == verify.Fail {
			fails = append(fails, r.Check)
		}
	}
	if !errors.Is(err, verify.ErrFailed) || strings.Join(fails, ", ") != "Runtimes namespace, Shared filesystem claim" || slices.Contains(p.seen, "probe") {
		t.Errorf("%v; %q fail, seen %v", err, fails, p.seen)
	}
}

func removed(t *testing.T, _ *servertest.Server, p *place) {
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Fatal(err)
	}
	removal := install.Removal{Timeout: time.Minute}
	if _, err := p.cluster.Uninstall(t.Context(), removal); err == nil || !strings.Contains(err.Error(), "operator's half is on") {
		t.Errorf("with the operator on: %v", err)
	}
	removal.Operator = p.request.Operator
	p.slowUntil("2 agents are still there")
	done, err := p.cluster.Uninstall(t.Context(), removal)
	if err != nil || p.operatorIs(t) != "false" || done.Stays != "/var/lib/datalayer/node-mount-gateway" {
		t.Errorf("%v, the operator's half is %q, %+v", err, p.operatorIs(t), done)
	}
	if _, sets := p.left(t); sets != 0 {
		t.Errorf("%d DaemonSets are there", sets)
	}
	pods, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(pods.Items) > 0 {
		t.Errorf("%d agents are there", len(pods.Items))
	}
	if _, err := p.cluster.Uninstall(t.Context(), removal); !errors.Is(err, install.ErrNotInstalled) {
		t.Errorf("again: %v", err)
	}
}

func inUse(t *testing.T, _ *servertest.Server, p *place) {
	p.request.Operator = nil
	// Before the release is there: its policy lets nobody but the agent answer.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "sandbox", Annotations: map[string]string{
		"runtime-pools.datalayer.io/node-mount-gateway-ready": `{"failed":{},"hash":"h","mounted":["ada"],"state":"ready"}`,
	}}, Spec: corev1.PodSpec{NodeName: "one", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	_, err := p.api.CoreV1().Pods(p.namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	if _, err := p.cluster.Install(t.Context(), p.request); err != nil {
		t.Fatal(err)
	}
	removal := install.Removal{Timeout: time.Minute}
	if _, err := p.cluster.Uninstall(t.Context(), removal); !errors.Is(err, install.ErrInUse) || !strings.Contains(err.Error(), p.namespace+"/sandbox") {
		t.Errorf("%v", err)
	}
	if _, sets := p.left(t); sets != 1 {
		t.Errorf("%d DaemonSets are there", sets)
	}
	removal.Force = true
	done, err := p.cluster.Uninstall(t.Context(), removal)
	if _, sets := p.left(t); err != nil || sets != 0 || len(done.Using) != 1 {
		t.Errorf("%v; %d DaemonSets, %+v", err, sets, done)
	}
}
