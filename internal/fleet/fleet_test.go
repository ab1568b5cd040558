package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/fleet/fleettest"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

func agentLabels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "node-mounts", "app.kubernetes.io/component": "agent", "app.kubernetes.io/version": "v0.3.0",
	}
}

// agentPod is an agent's Pod on a node, with what a change makes of it.
func agentPod(name, node string, change func(p *corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: name, Labels: agentLabels()},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func node(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func daemonSet(selector map[string]string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "datalayer-node-mounts", Labels: agentLabels()},
		Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: selector}}},
	}
}

func found(t *testing.T, c *fleet.Cluster) fleet.Found {
	t.Helper()
	f, err := c.Agents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAgentsAreFoundByTheirLabelsAndNodesWithoutOneAreNamed(t *testing.T) {
	client := fake.NewClientset(
		agentPod("a", "node-a", nil),
		agentPod("b", "node-b", func(p *corev1.Pod) {
			unready(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "driver", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			}}
		}),
		agentPod("other", "node-c", func(p *corev1.Pod) { p.Labels = nil }),
		agentPod("unscheduled", "", unready),
		node("node-a", nil), node("node-b", nil), node("node-c", nil), daemonSet(nil),
	)
	got := found(t, &fleet.Cluster{Client: client})
	want := []fleet.Agent{
		{Node: "node-a", Namespace: "agents", Pod: "a", Ready: true, Version: "v0.3.0"},
		{Node: "node-b", Namespace: "agents", Pod: "b", Version: "v0.3.0", Reason: "its container waits: CrashLoopBackOff"},
		{Node: "node-c", Reason: "no Pod of the DaemonSet is on it"},
	}
	if !slices.Equal(got.Agents, want) || len(got.Unknown) != 0 {
		t.Errorf("got  %+v, unknown %v\nwant %+v", got.Agents, got.Unknown, want)
	}
	if got := found(t, &fleet.Cluster{Client: client, Namespace: "elsewhere"}); len(got.Agents) != 0 {
		t.Errorf("in another namespace there are %+v", got.Agents)
	}
}

func TestANodeThatTheDaemonSetDoesNotChooseLacksNoAgent(t *testing.T) {
	client := fake.NewClientset(
		agentPod("a", "node-a", nil), node("node-a", map[string]string{"pool": "sandboxes"}), node("node-b", map[string]string{"pool": "gpu"}),
		daemonSet(map[string]string{"pool": "sandboxes"}),
	)
	if got := found(t, &fleet.Cluster{Client: client}); len(got.Agents) != 1 || got.Agents[0].Node != "node-a" {
		t.Errorf("got %+v", got.Agents)
	}
}

func TestOfTwoAgentsOfANodeTheOneThatServesIsAsked(t *testing.T) {
	now := metav1.Now()
	ending := func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} }
	for name, other := range map[string]func(p *corev1.Pod){
		"ending": ending, "starting": unready, "finished": func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
	} {
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			client := fake.NewClientset(agentPod(order[0], "node-a", nil), agentPod(order[1], "node-a", other))
			if got := found(t, &fleet.Cluster{Client: client}).Agents; len(got) != 1 || got[0].Pod != order[0] {
				t.Errorf("beside one that is %s: %+v, want %s", name, got, order[0])
			}
		}
	}
}

func forbid(client *fake.Clientset, resource string) {
	client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
	})
}

func TestWhatMayNotBeLookedAtIsSaidAndTheAgentsAreFoundAllTheSame(t *testing.T) {
	client := fake.NewClientset(agentPod("a", "node-a", nil), daemonSet(nil))
	forbid(client, "nodes")
	got := found(t, &fleet.Cluster{Client: client})
	if len(got.Agents) != 1 || len(got.Unknown) != 1 || !strings.HasPrefix(got.Unknown[0], "which nodes have no agent: ") {
		t.Errorf("got %+v", got)
	}
	forbid(client, "pods")
	if _, err := (&fleet.Cluster{Client: client, Namespace: "agents"}).Agents(t.Context()); !apierrors.IsForbidden(err) ||
		!strings.HasPrefix(err.Error(), "list the agents' Pods in namespace agents: ") {
		t.Errorf("without the right to list Pods: %v", err)
	}
}

func TestANodeThatHangsOrHasNoAgentCostsTheOthersNothing(t *testing.T) {
	synctest.Test(t, hangsAmongOthers) // time passes where all others have answered
}

func hangsAmongOthers(t *testing.T) {
	var f fleettest.Fleet
	broken := errors.New("the connection broke")
	defer f.Hangs("node-a")() // no goroutine may be left in there
	f.Answers(nodeview.Node{Node: "node-b", Leaked: 1})
	f.Fails("node-c", broken)
	f.Missing("node-d", "no Pod of the DaemonSet is on it")
	for range 40 { // more than are asked at once
		f.Answers(nodeview.Node{Node: "node-z"})
	}
	all, err := f.Agents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := fleet.Ask(t.Context(), &f, all.Agents, 200*time.Millisecond)
	if len(got) != 44 {
		t.Fatalf("%d answers", len(got))
	}
	if got[0].Node != "node-a" || got[0].View != nil || !errors.Is(got[0].Err, fleet.ErrSilent) || !strings.Contains(got[0].Err.Error(), "200ms") {
		t.Errorf("the one that hangs: %+v", got[0])
	}
	if got[1].Node != "node-b" || got[1].View == nil || got[1].View.Leaked != 1 || got[1].Err != nil {
		t.Errorf("the one that answers: %+v", got[1])
	}
	if !errors.Is(got[2].Err, broken) || got[2].View != nil {
		t.Errorf("the one that fails: %+v", got[2])
	}
	if got[3].Node != "node-d" || !errors.Is(got[3].Err, fleet.ErrNoAgent) {
		t.Errorf("the one without an agent: %+v", got[3])
	}
	for _, a := range got[4:] {
		if a.View == nil {
			t.Errorf("not answered: %+v", a)
		}
	}
	if slices.Contains(f.Asked(), "") {
		t.Error("a node without an agent was asked")
	}
}

func TestWhoAsksMayGo(t *testing.T) {
	var f fleettest.Fleet
	f.Hangs("node-a")
	all, err := f.Agents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := fleet.Ask(ctx, &f, all.Agents, time.Hour); !errors.Is(got[0].Err, context.Canceled) {
		t.Errorf("got %+v", got)
	}
}
