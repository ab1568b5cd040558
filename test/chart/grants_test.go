package chart

import (
	"context"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// patch is a merge patch of the metadata.
type patch struct {
	subresource string
	body        map[string]any
}

func annotations(pairs ...any) patch { return patch{"", meta("annotations", pairs...)} }
func labels(pairs ...any) patch      { return patch{"", meta("labels", pairs...)} }

func meta(field string, pairs ...any) map[string]any {
	values := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i].(string)] = pairs[i+1]
	}
	return map[string]any{"metadata": map[string]any{field: values}}
}

func (p patch) through(subresource string) patch { return patch{subresource, p.body} }

func (j *judge) patch(ctx context.Context, client kubernetes.Interface, of *corev1.Pod, p patch) error {
	body, err := json.Marshal(p.body)
	if err != nil {
		return err
	}
	var sub []string
	if p.subresource != "" {
		sub = append(sub, p.subresource)
	}
	_, err = client.CoreV1().Pods(of.Namespace).Patch(ctx, of.Name, types.MergePatchType, body, metav1.PatchOptions{}, sub...)
	return err
}

const (
	mayNotGrant  = "may not write " + "runtime-pools.datalayer.io/node-mount-gateway-mounts"
	mayNotLabel  = "may not change the label"
	mayNotAnswer = "may not write " + "runtime-pools.datalayer.io/node-mount-gateway-ready"
	onlyReady    = "and nothing else"
	onlyOwnNode  = "answers for Pods of its own node"
	onlyPatches  = "only patches Pods that exist"
)

// request is one line of the table: who patches what, and how that ends.
type request struct {
	what  string
	who   user
	patch patch
	says  string // "" where it is allowed
}

func requests() []request {
	admin, writer := user{}, serviceAccount("ops", "operator", nodeTwo)
	tenant := serviceAccount(runtimes, "datalayer-runtimes-sa", nodeOne)
	kubelet := user{"system:node:" + nodeOne, []string{"system:nodes"}, ""}
	stranger := user{"mallory", nil, ""}
	own, other, unbound := agentOn(nodeOne), agentOn(nodeTwo), agentOn("")
	impostor := serviceAccount(runtimes, fullname, nodeOne)
	grant, answer := annotations(names.Mounts, `[]`), annotations(names.Ready, `{"state":"ready"}`)
	return []request{
		{"the operator grants", writer, grant, ""},
		{"the operator grants and removes the old answer", writer, annotations(names.Mounts, `[1]`, names.Ready, nil), ""},
		{"the operator removes the grant", writer, annotations(names.Mounts, nil, names.Ready, nil), ""},
		{"the operator changes the label", writer, labels(names.Label, nil), ""},
		{"the operator writes an answer", writer, answer, mayNotAnswer},
		{"an administrator grants", admin, grant, ""},
		{"an administrator writes an answer", admin, answer, mayNotAnswer},
		{"a companion grants", tenant, grant, mayNotGrant},
		{"a companion grants through the status", tenant, grant.through("status"), mayNotGrant},
		{"a companion removes the grant", tenant, annotations(names.Mounts, nil), mayNotGrant},
		{"a companion empties the grant", tenant, annotations(names.Mounts, ""), mayNotGrant},
		{"a companion removes the answer", tenant, annotations(names.Ready, nil), mayNotAnswer},
		{"a companion writes an answer", tenant, answer, mayNotAnswer},
		{"a companion removes the label", tenant, labels(names.Label, nil), mayNotLabel},
		{"a companion changes the label through the status", tenant, labels(names.Label, "no").through("status"), mayNotLabel},
		{"a companion labels its Pod as it does", tenant, labels("pod-status", "paused"), ""},
		{"a companion annotates its Pod as it does", tenant, annotations("example.org/note", "x"), ""},
		{"a stranger grants", stranger, grant, mayNotGrant},
		{"a stranger labels", stranger, labels("a", "b"), ""},
		{"a kubelet grants through the status", kubelet, grant.through("status"), mayNotGrant},
		{"a kubelet writes a status", kubelet, patch{"status", map[string]any{"status": map[string]any{"phase": "Running"}}}, ""},
		{"the agent answers", own, answer, ""},
		{"the agent removes its answer", own, annotations(names.Ready, nil), ""},
		{"the agent grants", own, grant, onlyReady},
		{"the agent grants while it answers", own, annotations(names.Mounts, "[]", names.Ready, "{}"), onlyReady},
		{"the agent removes the grant", own, annotations(names.Mounts, nil), onlyReady},
		{"the agent writes another annotation", own, annotations("example.org/note", "x"), onlyReady},
		{"the agent removes another annotation", own, annotations("example.org/kept", nil), onlyReady},
		{"the agent labels", own, labels("pod-status", "paused"), onlyReady},
		{"the agent takes the Pod from its owner", own, patch{"", map[string]any{"metadata": map[string]any{"ownerReferences": []any{}}}}, onlyReady},
		{"the agent keeps the Pod from going", own, patch{"", map[string]any{"metadata": map[string]any{"finalizers": []any{"example.org/stay"}}}}, onlyReady},
		{"the agent ends the Pod", own, patch{"", map[string]any{"spec": map[string]any{"activeDeadlineSeconds": 1}}}, onlyReady},
		{"the agent answers through the status", own, answer.through("status"), onlyPatches},
		{"the agent writes a status", own, patch{"status", map[string]any{"status": map[string]any{"phase": "Failed"}}}, onlyPatches},
		{"another node's agent answers", other, answer, onlyOwnNode},
		{"another node's agent removes the answer", other, annotations(names.Ready, nil), onlyOwnNode},
		{"an agent's account without a node answers", unbound, answer, onlyOwnNode},
		{"an account of the agent's name elsewhere answers", impostor, answer, mayNotAnswer},
	}
}

// One API server for all: it takes ten seconds to start.
func TestThePoliciesOnARealAPIServer(t *testing.T) {
	j := newJudge(t, "admission: {grants: {writers: ["+operatorUser+"]}}")
	t.Run("a Pod with the label can receive folders safely", func(t *testing.T) { podsWithTheLabel(t, j) })
	t.Run("what the operator makes passes, and what passes it hands out", func(t *testing.T) { operatorsTemplates(t, j) })
	t.Run("only writers grant, and only the node's agent answers", func(t *testing.T) { patches(t, j) })
	t.Run("a Pod is not born with a grant", func(t *testing.T) { grantsAtCreation(t, j) })
	t.Run("there is no side door", func(t *testing.T) { grantsByTheSideDoors(t, j) })
	t.Run("a sandbox's account touches no agent", func(t *testing.T) { agentsAreNotTouched(t, j) })
	t.Run("with no list of writers", func(t *testing.T) { withoutAList(t, j) })
	t.Run("the API server takes every object", func(t *testing.T) { everyObject(t, j) })
	t.Run("the test's account reads what verify reads", func(t *testing.T) { testsAccount(t, j) })
}

func patches(t *testing.T, j *judge) {
	for _, r := range requests() {
		t.Run(r.what, func(t *testing.T) {
			p := gatewayPod()
			p.Annotations = map[string]string{names.Mounts: `["old"]`, "example.org/kept": "1"}
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "1"}}
			made := j.put(t, runtimes, p, `{"old":1}`)
			verdict(t, j.patch(t.Context(), j.as(t, r.who), made, r.patch), r.says)
		})
	}
	t.Run("outside the served namespace nobody is asked", func(t *testing.T) {
		made := j.put(t, "elsewhere", pod(""), "")
		verdict(t, j.patch(t.Context(), j.as(t, serviceAccount(runtimes, "datalayer-runtimes-sa", nodeOne)), made, annotations(names.Mounts, "[]")), "")
	})
}

// A Pod may be born with its grant.
func grantsAtCreation(t *testing.T, j *judge) {
	tenant, writer := serviceAccount(runtimes, "datalayer-runtimes-sa", ""), serviceAccount("ops", "operator", "")
	for name, test := range map[string]struct {
		who  user
		key  string
		says string
	}{
		"a companion creates a Pod with a grant":   {tenant, names.Mounts, mayNotGrant},
		"a companion creates a Pod with an answer": {tenant, names.Ready, mayNotAnswer},
		"a companion creates a Pod":                {tenant, "example.org/note", ""},
		"the operator creates a Pod with a grant":  {writer, names.Mounts, ""},
		"the operator creates one with an answer":  {writer, names.Ready, mayNotAnswer},
		"an agent creates a Pod":                   {agentOn(nodeOne), "example.org/note", onlyPatches},
	} {
		t.Run(name, func(t *testing.T) {
			p := gatewayPod()
			p.Annotations = map[string]string{test.key: "[]"}
			verdict(t, j.create(t.Context(), j.as(t, test.who), runtimes, p, true), test.says)
		})
	}
}

// What else writes metadata of a Pod: a Binding's is copied, a resize and a
// debugging container may carry some along.
func grantsByTheSideDoors(t *testing.T, j *judge) {
	tenant := serviceAccount(runtimes, "datalayer-runtimes-sa", "")
	unscheduled := func(t *testing.T) *corev1.Pod {
		p := gatewayPod()
		p.Spec.NodeName = ""
		return j.put(t, runtimes, p, "")
	}
	bind := func(t *testing.T, who user, m metav1.ObjectMeta) (*corev1.Pod, error) {
		p := unscheduled(t)
		m.Name, m.Namespace = p.Name, p.Namespace
		err := j.as(t, who).CoreV1().Pods(runtimes).Bind(t.Context(), &corev1.Binding{ObjectMeta: m, Target: corev1.ObjectReference{Kind: "Node", Name: nodeOne}}, metav1.CreateOptions{})
		return p, err
	}
	t.Run("a Binding grants nothing", func(t *testing.T) {
		_, err := bind(t, tenant, metav1.ObjectMeta{Annotations: map[string]string{names.Mounts: "[]"}})
		verdict(t, err, mayNotGrant)
	})
	t.Run("a Binding answers nothing", func(t *testing.T) {
		_, err := bind(t, tenant, metav1.ObjectMeta{Annotations: map[string]string{names.Ready: "[]"}})
		verdict(t, err, mayNotAnswer)
	})
	t.Run("a scheduler binds", func(t *testing.T) {
		_, err := bind(t, user{"system:kube-scheduler", nil, ""}, metav1.ObjectMeta{})
		verdict(t, err, "")
	})
	t.Run("a Binding of the old sort grants nothing", func(t *testing.T) {
		p := unscheduled(t)
		b := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Annotations: map[string]string{names.Mounts: "[]"}},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeOne},
		}
		err := j.as(t, tenant).CoreV1().RESTClient().Post().Namespace(runtimes).Resource("bindings").Body(b).Do(t.Context()).Error()
		verdict(t, err, mayNotGrant)
	})
	for _, sub := range []string{"resize", "ephemeralcontainers"} {
		t.Run("nothing is granted through "+sub, func(t *testing.T) {
			p := j.put(t, runtimes, gatewayPod(), "")
			err := j.patch(t.Context(), j.as(t, tenant), p, annotations(names.Mounts, "[]").through(sub))
			if err != nil && !isPolicy(err) {
				t.Fatal(err)
			}
			now, err := j.admin.CoreV1().Pods(runtimes).Get(t.Context(), p.Name, metav1.GetOptions{})
			ok(t, err)
			if grant, there := now.Annotations[names.Mounts]; there {
				t.Errorf("the Pod has the grant %q", grant)
			}
		})
	}
}

// Without a list whoever may patch Pods grants, but for those who must never.
func withoutAList(t *testing.T, j *judge) {
	j.apply(t, must(t, least))
	grant := annotations(names.Mounts, "[]")
	// The policy with a list refused this one.
	stranger := j.as(t, user{"mallory", nil, ""})
	j.until(t, "the list is gone", func(ctx context.Context) error {
		p := pod("sentinel")
		p.Annotations = map[string]string{names.Mounts: "[]"}
		return j.create(ctx, stranger, runtimes, p, true)
	})
	for name, test := range map[string]struct {
		who  user
		says string
	}{
		"anybody else grants":  {user{"mallory", nil, ""}, ""},
		"an operator grants":   {serviceAccount("anywhere", "any-operator", ""), ""},
		"a companion does not": {serviceAccount(runtimes, "datalayer-runtimes-sa", ""), mayNotGrant},
		"a kubelet does not":   {user{"system:node:" + nodeOne, []string{"system:nodes"}, ""}, mayNotGrant},
		"an agent does not":    {agentOn(nodeOne), onlyReady},
	} {
		t.Run(name, func(t *testing.T) {
			verdict(t, j.patch(t.Context(), j.as(t, test.who), j.put(t, runtimes, gatewayPod(), ""), grant), test.says)
		})
	}
}
