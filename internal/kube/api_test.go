package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
	"github.com/datalayer/node-mounts/internal/plan"
)

func typesUID(uid string) types.UID { return types.UID(uid) }

func newAPI(t *testing.T, pods ...*corev1.Pod) *fake.Clientset {
	t.Helper()
	client, err := kubetest.NewClient(pods...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func newController(t *testing.T, client kubernetes.Interface, log io.Writer) *Controller {
	t.Helper()
	c, err := New(Config{
		Client: client, Node: testNode, Names: testNames(), Volume: testVolume,
		Log: slog.New(slog.NewJSONHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// stored returns the Pod as the API holds it, and its facts.
func stored(t *testing.T, client kubernetes.Interface, name string) (*corev1.Pod, plan.Pod) {
	t.Helper()
	p, err := client.CoreV1().Pods("runtimes").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p, PodFromAPI(p, testNames(), testVolume)
}

// failing makes every request of the verb fail.
func failing(client *fake.Clientset, verb string, err error) {
	client.PrependReactor(verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

func TestAnAnswerIsOneMergePatchBoundToThePodAndItsVersion(t *testing.T) {
	for _, c := range []struct {
		name  string
		ready *string
		body  string
	}{
		{"written", ptr.To(`{"hash":"h"}`), `{"metadata":{"uid":"uid-1","resourceVersion":"41","annotations":{"runtime-pools.datalayer.io/node-mount-gateway-ready":"{\"hash\":\"h\"}"}}}`},
		{"removed", nil, `{"metadata":{"uid":"uid-1","resourceVersion":"41","annotations":{"runtime-pools.datalayer.io/node-mount-gateway-ready":null}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			type request struct{ method, uri, contentType, body string }
			var got []request
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got = append(got, request{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), string(body)})
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"runtimes","name":"sandbox","uid":"uid-1"}}`)
			}))
			defer server.Close()
			client, err := Connect(kubeconfig(t, server.URL), "test")
			if err != nil {
				t.Fatal(err)
			}
			pod := plan.Pod{UID: "uid-1", Namespace: "runtimes", Name: "sandbox", ResourceVersion: "41"}
			if err := newController(t, client, io.Discard).Answer(t.Context(), pod, c.ready); err != nil {
				t.Fatal(err)
			}
			want := []request{{"PATCH", "/api/v1/namespaces/runtimes/pods/sandbox?fieldManager=node-mounts-agent", "application/merge-patch+json", c.body}}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestAnAnswerTouchesNoOtherAnnotation(t *testing.T) {
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	c := newController(t, client, io.Discard)
	before, pod := stored(t, client, "sandbox")
	if err := c.Answer(t.Context(), pod, ptr.To("{}")); err != nil {
		t.Fatal(err)
	}
	after, pod := stored(t, client, "sandbox")
	if pod.Ready == nil || *pod.Ready != "{}" {
		t.Errorf("the answer is %v", pod.Ready)
	}
	if err := c.Answer(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	removed, _ := stored(t, client, "sandbox")
	if !reflect.DeepEqual(removed.Annotations, before.Annotations) {
		t.Errorf("annotations are %v, were %v", removed.Annotations, before.Annotations)
	}
	if !equality.Semantic.DeepEqual(after.Spec, before.Spec) || !equality.Semantic.DeepEqual(after.Status, before.Status) {
		t.Error("the answer changed more than an annotation")
	}
}

func TestARefusedAnswerSaysWhetherToLookAgainOrThatThePodIsGone(t *testing.T) {
	ctx := context.Background()
	pods := schema.GroupResource{Resource: "pods"}
	invalid := func(path *field.Path) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "sandbox", field.ErrorList{field.Invalid(path, "x", "wrong")})
	}
	for _, c := range []struct {
		name   string
		change func(t *testing.T, client *fake.Clientset)
		want   error // nil: neither
	}{
		{"the Pod changed", func(t *testing.T, client *fake.Clientset) {
			p, _ := stored(t, client, "sandbox")
			p.Annotations["other"] = "new"
			if _, err := client.CoreV1().Pods("runtimes").Update(ctx, p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}, agent.ErrConflict},
		{"the Pod was deleted", func(t *testing.T, client *fake.Clientset) {
			if err := client.CoreV1().Pods("runtimes").Delete(ctx, "sandbox", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, agent.ErrGone},
		{"another Pod has its name", func(t *testing.T, client *fake.Clientset) {
			if err := client.CoreV1().Pods("runtimes").Delete(ctx, "sandbox", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.CoreV1().Pods("runtimes").Create(ctx, runtimePod("sandbox", "uid-2"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}, agent.ErrGone},
		{"the uid is immutable", func(_ *testing.T, client *fake.Clientset) {
			failing(client, "patch", invalid(field.NewPath("metadata", "uid")))
		}, agent.ErrGone},
		{"the answer is invalid", func(_ *testing.T, client *fake.Clientset) {
			failing(client, "patch", invalid(field.NewPath("metadata", "annotations")))
		}, nil},
		{"a conflict, and then the API is gone", func(_ *testing.T, client *fake.Clientset) {
			failing(client, "patch", apierrors.NewConflict(pods, "sandbox", errors.New("modified")))
			failing(client, "get", errors.New("connection refused"))
		}, agent.ErrConflict},
		{"forbidden", func(_ *testing.T, client *fake.Clientset) {
			failing(client, "patch", apierrors.NewForbidden(pods, "sandbox", errors.New("policy")))
		}, nil},
		{"the API is gone", func(_ *testing.T, client *fake.Clientset) {
			failing(client, "patch", errors.New("connection refused"))
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := newAPI(t, runtimePod("sandbox", "uid-1"))
			_, pod := stored(t, client, "sandbox")
			c.change(t, client)
			err := newController(t, client, io.Discard).Answer(ctx, pod, ptr.To("{}"))
			if err == nil {
				t.Fatal("the answer was written")
			}
			for _, sentinel := range []error{agent.ErrConflict, agent.ErrGone} {
				if got, want := errors.Is(err, sentinel), errors.Is(c.want, sentinel); got != want {
					t.Errorf("errors.Is(%v, %v) = %v", err, sentinel, got)
				}
			}
			if now, err := client.CoreV1().Pods("runtimes").Get(ctx, "sandbox", metav1.GetOptions{}); err == nil {
				if _, ok := now.Annotations[testNames().Ready]; ok {
					t.Error("a refused answer was stored")
				}
			}
		})
	}
}

func TestAnAnswerWithoutAVersionIsNotSent(t *testing.T) {
	client := newAPI(t, runtimePod("sandbox", "uid-1"))
	c := newController(t, client, io.Discard)
	_, pod := stored(t, client, "sandbox")
	client.ClearActions()
	for _, p := range []plan.Pod{
		{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		{Namespace: pod.Namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion},
	} {
		if err := c.Answer(t.Context(), p, nil); err == nil {
			t.Errorf("Answer(%+v) succeeded", p)
		}
	}
	if n := len(client.Actions()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestAbsenceIsConfirmedByTheAPIAndNeverByAFailure(t *testing.T) {
	refused := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "sandbox", errors.New("rbac"))
	named := plan.Ref{UID: "uid-1", Namespace: "runtimes", Name: "sandbox"}
	for _, c := range []struct {
		name      string
		ref       plan.Ref
		verb      string // which request fails
		err       error
		found, ok bool // ok: known
	}{
		{name: "it exists", ref: named, found: true, ok: true},
		{name: "nothing has the name", ref: plan.Ref{UID: "uid-1", Namespace: "runtimes", Name: "other"}, ok: true},
		{name: "nothing has the namespace", ref: plan.Ref{UID: "uid-1", Namespace: "other", Name: "sandbox"}, ok: true},
		{name: "another Pod has the name", ref: plan.Ref{UID: "uid-0", Namespace: "runtimes", Name: "sandbox"}, ok: true},
		{name: "the API is gone", ref: named, verb: "get", err: refused},
		{name: "forbidden", ref: named, verb: "get", err: forbidden},
		{name: "found by uid", ref: plan.Ref{UID: "uid-1"}, found: true, ok: true},
		{name: "found by uid without a namespace", ref: plan.Ref{UID: "uid-1", Name: "sandbox"}, found: true, ok: true},
		{name: "no such uid", ref: plan.Ref{UID: "uid-0"}, ok: true},
		{name: "no such uid on this node", ref: plan.Ref{UID: "uid-elsewhere"}, ok: true},
		{name: "a failing list", ref: plan.Ref{UID: "uid-0"}, verb: "list", err: refused},
		{name: "a forbidden list", ref: plan.Ref{UID: "uid-0"}, verb: "list", err: forbidden},
		{name: "no uid", ref: plan.Ref{Namespace: "runtimes", Name: "sandbox"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			elsewhere := runtimePod("elsewhere", "uid-elsewhere")
			elsewhere.Spec.NodeName = "node-b"
			client := newAPI(t, runtimePod("sandbox", "uid-1"), elsewhere)
			if c.err != nil {
				failing(client, c.verb, c.err)
			}
			pod, found, err := newController(t, client, io.Discard).Confirm(t.Context(), c.ref)
			if found != c.found || (err == nil) != c.ok {
				t.Fatalf("Confirm = %v, %v", found, err)
			}
			if c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("%v does not wrap %v", err, c.err)
			}
			if found && (pod.UID != "uid-1" || pod.Grant == nil || pod.ResourceVersion == "") {
				t.Errorf("confirmed %+v", pod)
			}
			for _, a := range client.Actions() {
				if get, ok := a.(clienttesting.GetActionImpl); ok && get.GetOptions.ResourceVersion != "" {
					t.Errorf("a read at version %q may come from a cache", get.GetOptions.ResourceVersion)
				}
				if list, ok := a.(clienttesting.ListActionImpl); ok && list.ListOptions.ResourceVersion != "" {
					t.Errorf("a list at version %q may come from a cache", list.ListOptions.ResourceVersion)
				}
			}
		})
	}
}

func TestAnIncompleteListConfirmsNoAbsence(t *testing.T) {
	client := newAPI(t)
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}}, nil
	})
	if _, found, err := newController(t, client, io.Discard).Confirm(t.Context(), plan.Ref{UID: "uid-1"}); found || err == nil {
		t.Errorf("Confirm = %v, %v", found, err)
	}
}

func TestAnAgentThatMayNotWriteAnswersKnowsIt(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	noRight := apierrors.NewForbidden(pods, "sandbox", errors.New(`User "system:serviceaccount:a:b" cannot patch resource "pods" in API group "" in the namespace "runtimes"`))
	for _, c := range []struct {
		name  string
		first error
		then  func(client *fake.Clientset)
		want  bool // that answers cannot be written
	}{
		{"without the right", noRight, nil, true},
		{"with a token that is not accepted", apierrors.NewUnauthorized("expired"), nil, true},
		{"a policy refuses one Pod", apierrors.NewForbidden(pods, "sandbox", errors.New("ValidatingAdmissionPolicy 'p' denied request")), nil, false},
		{"the API is away", errors.New("connection refused"), nil, false},
		{"the right was given", noRight, func(client *fake.Clientset) { client.ReactionChain = client.ReactionChain[1:] }, false},
		{"then a policy refuses", noRight, func(client *fake.Clientset) {
			failing(client, "patch", apierrors.NewForbidden(pods, "sandbox", errors.New("policy")))
		}, false},
		{"then the API is away", noRight, func(client *fake.Clientset) { failing(client, "patch", errors.New("connection refused")) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := newAPI(t, runtimePod("sandbox", "uid-1"))
			_, pod := stored(t, client, "sandbox")
			controller := newController(t, client, io.Discard)
			watched, _ := stored(t, client, "sandbox")
			if err := controller.pods.GetStore().Add(watched); err != nil {
				t.Fatal(err)
			}
			failing(client, "patch", c.first)
			_ = controller.Answer(t.Context(), pod, ptr.To("{}"))
			if c.then != nil {
				c.then(client)
				_ = controller.Answer(t.Context(), pod, ptr.To("{}"))
			}
			err := controller.Answerable()
			if (err != nil) != c.want {
				t.Fatalf("Answerable() = %v", err)
			}
			if err == nil {
				return
			}
			if text := err.Error(); !strings.Contains(text, "runtimes") || !strings.Contains(text, "pods: patch") {
				t.Errorf("it says %q", text)
			}
			if err := controller.pods.GetStore().Delete(watched); err != nil {
				t.Fatal(err)
			}
			if err := controller.Answerable(); err != nil {
				t.Errorf("with the Pod gone: %v", err)
			}
		})
	}
}

// notAnAPIServer are answers that a client reads as "not found" or as an empty
// object, and that no API server gave.
func notAnAPIServer() map[string]http.HandlerFunc {
	page := func(code int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	return map[string]http.HandlerFunc{
		"a load balancer's page":   page(http.StatusNotFound, "text/html", "<html>404 Not Found</html>"),
		"a gateway's JSON":         page(http.StatusNotFound, "application/json", `{"message":"no route matched"}`),
		"a 404 without a word":     page(http.StatusNotFound, "", ""),
		"an empty document":        page(http.StatusOK, "application/json", `{}`),
		"somebody else's document": page(http.StatusOK, "application/json", `{"status":"ok"}`),
		"another Kubernetes object": page(http.StatusNotFound, "application/json",
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":"other","kind":"pods"}}`),
	}
}

func TestAServerThatIsNoAPIServerConfirmsNoAbsence(t *testing.T) {
	for name, answer := range notAnAPIServer() {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answer)
			defer server.Close()
			client, err := Connect(kubeconfig(t, server.URL), "test")
			if err != nil {
				t.Fatal(err)
			}
			c := newController(t, client, io.Discard)
			for _, ref := range []plan.Ref{{UID: "uid-1", Namespace: "runtimes", Name: "sandbox"}, {UID: "uid-1"}} {
				if _, found, err := c.Confirm(t.Context(), ref); found || err == nil {
					t.Errorf("Confirm(%+v) = %v, %v", ref, found, err)
				}
			}
			pod := plan.Pod{UID: "uid-1", Namespace: "runtimes", Name: "sandbox", ResourceVersion: "41"}
			if err := c.Answer(t.Context(), pod, ptr.To("{}")); err == nil || errors.Is(err, agent.ErrGone) {
				t.Errorf("Answer = %v", err)
			}
		})
	}
}

// kubeconfig writes one for the server and returns its path.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	doc := bytes.ReplaceAll([]byte(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: SERVER}}]
users: [{name: test, user: {}}]
`), []byte("SERVER"), []byte(server))
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAClientNeedsAKubeconfigOrACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	if _, err := Connect("", "test"); !errors.Is(err, ErrNoCluster) {
		t.Errorf("without either: %v", err)
	}
	if _, err := Connect(filepath.Join(t.TempDir(), "none"), "test"); err == nil || errors.Is(err, ErrNoCluster) {
		t.Errorf("with a kubeconfig that does not exist: %v", err)
	}
	config := kubeconfig(t, "http://127.0.0.1:1")
	if _, err := Connect(config, "test"); err != nil {
		t.Errorf("with a kubeconfig: %v", err)
	}
	if _, err := Connect(filepath.Join(t.TempDir(), "none")+string(filepath.ListSeparator)+config, "test"); err != nil {
		t.Errorf("with a list of which one exists: %v", err)
	}
}
