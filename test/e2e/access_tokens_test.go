package e2e_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
	"github.com/datalayer/node-mounts/test/node"
)

const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// TestWhoMayGrant asks the API server with the tokens that the containers really
// have, under the roles and policies that the chart makes unless told otherwise.
func TestWhoMayGrant(t *testing.T) {
	w := newWorld(t, setup{})
	p := w.run(t, pooled(t, "tokens", withCompanion))
	for _, story := range []struct {
		name string
		run  func(*testing.T, *world, *corev1.Pod)
	}{
		{"the agent answers for Pods of its node, and that is all", agentAnswersOnly},
		{"a companion's token does not grant", companionMayNotGrant},
		{"user code finds no token", noTokenWithin},
	} {
		t.Run(story.name, func(t *testing.T) { story.run(t, w, p) })
	}
	w.remove(t, p)
	w.leftNothing(t, p)
	t.Run("a Pod of another shape is refused at creation", func(t *testing.T) { badShapesAreRefused(t, w) })
	w.install(t, "admission.pods.enabled=false")
	t.Run("without the policy it is created, and the agent says what is wrong", func(t *testing.T) { badShapesAreAnswered(t, w) })
}

func withCompanion(r *operator.Runtime) {
	r.Companion = &operator.Companion{Image: sandboxImage, Command: []string{"tenant", "wait"}}
}

// as is a client with a token and nothing else.
func (w *world) as(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(w.Config())
	config.BearerToken = strings.TrimSpace(token)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// tokenOf is the token that a container of the Pod has.
func (w *world) tokenOf(t *testing.T, p *corev1.Pod, container string) string {
	t.Helper()
	out, problems, code, err := w.Exec(within(t, time.Minute), p.Namespace, p.Name, container, []string{"cat", tokenFile}, nil)
	if err != nil || code != 0 || strings.Count(out, ".") != 2 {
		t.Fatalf("the token of %s in %s: status %d, %v: %q %s", container, p.Name, code, err, out, problems)
	}
	return out
}

// claims are the parts of a token's payload that say whose it is.
func claims(t *testing.T, token string) (node, pod string) {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	must(t, err)
	var c struct {
		Kubernetes struct {
			Node struct {
				Name string `json:"name"`
			} `json:"node"`
			Pod struct {
				Name string `json:"name"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	must(t, json.Unmarshal(payload, &c))
	return c.Kubernetes.Node.Name, c.Kubernetes.Pod.Name
}

// patchAnnotation writes one annotation; "" takes it away.
func patchAnnotation(ctx context.Context, api kubernetes.Interface, p *corev1.Pod, key, value string, sub ...string) error {
	annotations := map[string]any{key: value}
	if value == "" {
		annotations[key] = nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = api.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{}, sub...)
	return err
}

// wantRefusal fails unless the API server refused, with these words.
func wantRefusal(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("%s has not been refused: %v", what, err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: the refusal does not say %q: %v", what, word, err)
		}
	}
}

const (
	byRBAC   = `cannot` // "cannot patch resource"
	byPolicy = "ValidatingAdmissionPolicy"
)

func agentAnswersOnly(t *testing.T, w *world, p *corev1.Pod) {
	ctx := within(t, 2*time.Minute)
	agent := w.agentPod(ctx, t)
	token := w.tokenOf(t, agent, "driver")
	if on, of := claims(t, token); on != w.Name() || of != agent.Name {
		t.Errorf("the agent's token is bound to Pod %q on node %q", of, on)
	}
	api, names := w.as(t, token), grant.NamesFor("")

	must(t, patchAnnotation(ctx, api, p, names.Ready, `{"hash":"","state":"ready"}`))
	must(t, patchAnnotation(ctx, api, p, names.Ready, ""))

	set, err := grant.Encode([]grant.Mount{home("eve")})
	must(t, err)
	wantRefusal(t, "the agent that grants", patchAnnotation(ctx, api, p, names.Mounts, set), byPolicy, "and nothing else")
	wantRefusal(t, "the agent that grants through the status", patchAnnotation(ctx, api, p, names.Mounts, set, "status"), byRBAC)
	wantRefusal(t, "the agent that labels", patchLabel(ctx, api, p), byPolicy, "and nothing else")
	for _, ns := range []string{system, runtimes, "kube-system"} {
		_, err := w.api.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "there"}}, metav1.CreateOptions{})
		must(t, err)
		_, err = api.CoreV1().Secrets(ns).Get(ctx, "there", metav1.GetOptions{})
		wantRefusal(t, "the agent that reads a Secret in "+ns, err, byRBAC)
		_, err = api.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})
		wantRefusal(t, "the agent that lists Secrets in "+ns, err, byRBAC)
	}

	stranger := w.strangersPod(t)
	wantRefusal(t, "the agent that answers for a Pod of another node", patchAnnotation(ctx, api, stranger, names.Ready, "{}"),
		byPolicy, "answers for Pods of its own node: the Pod is on node-2, the token belongs to "+w.Name())

	// Not every token of the account will do: one that names no node answers nothing.
	loose, err := w.api.CoreV1().ServiceAccounts(system).CreateToken(ctx, agent.Spec.ServiceAccountName, tokenRequest(nil), metav1.CreateOptions{})
	must(t, err)
	wantRefusal(t, "a token of the agent's account without a node", patchAnnotation(ctx, w.as(t, loose.Status.Token), p, names.Ready, "{}"), byPolicy, "names no node")
}

func patchLabel(ctx context.Context, api kubernetes.Interface, p *corev1.Pod) error {
	_, err := api.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	return err
}

// strangersPod is a Pod of a second node, which is an object alone: no kubelet of
// it runs. No agent goes there, because of its system.
func (w *world) strangersPod(t *testing.T) *corev1.Pod {
	t.Helper()
	ctx := within(t, time.Minute)
	nodes := w.api.CoreV1().Nodes()
	_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", Labels: map[string]string{corev1.LabelOSStable: "windows"}}}, metav1.CreateOptions{})
	must(t, err)
	p := pooled(t, "stranger", nil)
	p.Spec.NodeName = "node-2"
	made, err := w.api.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		now := int64(0) // nobody is there to end it
		if err := w.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
		if err := nodes.Delete(ctx, "node-2", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return made
}

// companionMayNotGrant lets the runtimes' account patch Pods, as it does where a
// companion labels its own: RBAC then stops nothing, and the policy has to.
func companionMayNotGrant(t *testing.T, w *world, p *corev1.Pod) {
	ctx, names := within(t, 2*time.Minute), grant.NamesFor("")
	api := w.as(t, w.tokenOf(t, p, operator.DefaultCompanion))
	wantRefusal(t, "the companion that grants without a right to patch", patchAnnotation(ctx, api, p, names.Mounts, "[]"), byRBAC)

	w.allow(t, "companions", "datalayer-runtimes-sa", runtimes, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"get", "patch", "update", "create"},
	})
	// Authorisers hear of a new role a moment later.
	must(t, node.Until(ctx, "the companion's right to annotate its Pod", func(ctx context.Context) error {
		return patchAnnotation(ctx, api, p, "example.org/note", "x")
	}))
	for _, sub := range [][]string{nil, {"status"}} {
		wantRefusal(t, "the companion that grants", patchAnnotation(ctx, api, p, names.Mounts, "[]", sub...), byPolicy, "datalayer-runtimes-sa may not write "+names.Mounts)
		wantRefusal(t, "the companion that answers", patchAnnotation(ctx, api, p, names.Ready, "{}", sub...), byPolicy, "may not write "+names.Ready)
	}
	born := pooled(t, "born", nil)
	born.Annotations = map[string]string{names.Mounts: "[]"}
	_, err := api.CoreV1().Pods(runtimes).Create(ctx, born, metav1.CreateOptions{})
	wantRefusal(t, "the companion that creates a Pod with a grant", err, byPolicy, "may not write "+names.Mounts)

	after, err := w.api.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	must(t, err)
	if got, there := after.Annotations[names.Mounts]; there {
		t.Errorf("the Pod has a grant: %q", got)
	}
}

// allow gives an account a role of its own in the runtimes' namespace. It ends with
// the test.
func (w *world) allow(t *testing.T, role, account, of string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	ctx, rbac := within(t, time.Minute), w.api.RbacV1()
	meta := metav1.ObjectMeta{Name: role}
	_, err := rbac.Roles(runtimes).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.RoleBindings(runtimes).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: of}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { w.disallow(t, role) })
}

// disallow takes a role of allow away. It may be gone already.
func (w *world) disallow(t *testing.T, role string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, err := range []error{
		w.api.RbacV1().RoleBindings(runtimes).Delete(ctx, role, metav1.DeleteOptions{}),
		w.api.RbacV1().Roles(runtimes).Delete(ctx, role, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
}

// searching prints every file and environment within reach in which something looks
// like a token: "eyJ" is the beginning of a JSON object in base64, and the dots
// divide a token's three parts. Processes' roots lead to what other containers see.
const searching = `
looks='eyJ[A-Za-z0-9_-]+[.]eyJ[A-Za-z0-9_-]+[.]'
find / -path /proc -prune -o -path /sys -prune -o -type f -size -64k -print0 2>/dev/null | xargs -0 grep -lE "$looks" 2>/dev/null
for p in /proc/[0-9]*; do
  tr '\0' '\n' <$p/environ 2>/dev/null | grep -qE "$looks" && echo $p/environ
  find $p/root/var/run/ $p/root/run/ -type f -size -64k -print0 2>/dev/null | xargs -0 grep -lE "$looks" 2>/dev/null
done
`

func noTokenWithin(t *testing.T, w *world, p *corev1.Pod) {
	search := func(container string) string {
		t.Helper()
		out, problems, _, err := w.Exec(within(t, time.Minute), p.Namespace, p.Name, container, []string{"sh", "-c", searching}, nil)
		must(t, err)
		if problems != "" {
			t.Errorf("searching in %s: %s", container, problems)
		}
		return out
	}
	// The search finds what is there: the companion has a token.
	if got := search(operator.DefaultCompanion); !strings.Contains(got, "serviceaccount/") || !strings.Contains(got, "root/var/run/") {
		t.Errorf("the search finds no token in the companion:\n%s", got)
	}
	if got := search(operator.DefaultRuntime); got != "" {
		t.Errorf("user code finds a token:\n%s", got)
	}
	if out := w.refused(t, p, "cat", tokenFile); !strings.Contains(out, "No such file") {
		t.Errorf("reading %s: %s", tokenFile, out)
	}
}
