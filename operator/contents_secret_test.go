package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/secret"
	"github.com/datalayer/node-mounts/operator"
)

const canary = "canary-5d0b7e"

// owning is an operator with no right but the three, and a Pod.
type owning struct {
	api, admin kubernetes.Interface
	pod        operator.Pod
}

func (o owning) own(t *testing.T, name, value string) error {
	t.Helper()
	return operator.OwnSecret(t.Context(), o.api.CoreV1(), o.pod, name, map[string][]byte{"token": []byte(value)})
}

func (o owning) get(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	s, err := o.admin.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return s
}

func (o owning) has(t *testing.T, name, value string, owners ...metav1.OwnerReference) {
	t.Helper()
	_, err := o.admin.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}, Data: map[string][]byte{"token": []byte(value)},
	}, metav1.CreateOptions{})
	must(t, err)
}

func TestASecretIsOwnedOnARealAPIServer(t *testing.T) {
	s := servertest.Start(t)
	_, cfg := s.User(t, "owner", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create", "get", "update"}})
	cfg.QPS = -1 // no limit: the tests are many in a moment
	api, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	i := 0
	for name, test := range map[string]func(*testing.T, owning){
		"it is the Pod's and the agent accepts it": itIsThePods,
		"its values are replaced":                  itsValuesAreReplaced,
		"one of anybody else is left alone":        othersSecretsAreLeftAlone,
		"writers at once all come through":         writersOfASecretComeThrough,
		"a refusal comes through without a value":  refusalsHaveNoValue,
	} {
		t.Run(name, func(t *testing.T) {
			i++
			p := newPod(t, s.Client(t), fmt.Sprintf("owner-%d", i))
			p.UID = p.now().UID
			test(t, owning{api: api, admin: p.api, pod: p.Pod})
		})
	}
}

func itIsThePods(t *testing.T, o owning) {
	must(t, o.own(t, "session", canary))
	got := o.get(t, "session")
	want := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: o.pod.Name, UID: o.pod.UID}
	if len(got.OwnerReferences) != 1 || got.OwnerReferences[0] != want || string(got.Data["token"]) != canary || got.Type != corev1.SecretTypeOpaque {
		t.Errorf("owners %+v, type %s", got.OwnerReferences, got.Type)
	}
	reader := secret.Reader{Source: kube.Secrets{Client: o.admin}}
	ref := secret.Ref{Namespace: namespace, PodUID: string(o.pod.UID), Name: "session"}
	data, err := reader.Current(t.Context(), ref, "token")
	if v, _ := data.Value("token"); err != nil || string(v) != canary {
		t.Errorf("the agent: %v", err)
	}
	ref.PodUID = "another"
	var refused *secret.RefusedError
	if _, err := reader.Current(t.Context(), ref, "token"); !errors.As(err, &refused) {
		t.Errorf("for another Pod: %v", err)
	}
}

func itsValuesAreReplaced(t *testing.T, o owning) {
	must(t, o.own(t, "renewed", "first"))
	labeled := o.get(t, "renewed")
	labeled.Labels = map[string]string{"other": "stays"}
	labeled.Data["old"] = []byte("goes")
	_, err := o.admin.CoreV1().Secrets(namespace).Update(t.Context(), labeled, metav1.UpdateOptions{})
	must(t, err)
	must(t, o.own(t, "renewed", "second"))
	got := o.get(t, "renewed")
	if len(got.Data) != 1 || string(got.Data["token"]) != "second" || got.Labels["other"] != "stays" || len(got.OwnerReferences) != 1 {
		t.Errorf("it has %d values and the labels %v", len(got.Data), got.Labels)
	}
	must(t, o.own(t, "renewed", "second"))
	if again := o.get(t, "renewed"); again.ResourceVersion != got.ResourceVersion {
		t.Error("equal values were written again")
	}
}

func othersSecretsAreLeftAlone(t *testing.T, o owning) {
	mine := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: o.pod.Name, UID: o.pod.UID}
	before := mine // a Pod of the same name that is gone
	before.UID = "before"
	deployment := mine
	deployment.APIVersion, deployment.Kind = "apps/v1", "ReplicaSet"
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "other", UID: "other"}
	for name, owners := range map[string][]metav1.OwnerReference{
		"nobodys": nil, "anothers": {other}, "shared": {mine, other}, "before": {before}, "kind": {deployment},
	} {
		o.has(t, name, "theirs", owners...)
		was := o.get(t, name)
		wants(t, o.own(t, name, canary), operator.ErrNotOwned)
		if now := o.get(t, name); now.ResourceVersion != was.ResourceVersion {
			t.Errorf("%s: it was written", name)
		}
	}
}

func writersOfASecretComeThrough(t *testing.T, o owning) {
	const writers = 8
	errs := make(chan error, writers)
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() { errs <- o.own(t, "contended", fmt.Sprint(i)) })
	}
	group.Wait()
	for range writers {
		must(t, <-errs)
	}
	if got := o.get(t, "contended"); len(got.Data) != 1 {
		t.Errorf("it has %d values", len(got.Data))
	}
}

func refusalsHaveNoValue(t *testing.T, o owning) {
	o.has(t, "fixed", "theirs", metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: o.pod.Name, UID: o.pod.UID})
	fixed := o.get(t, "fixed")
	immutable := true
	fixed.Immutable = &immutable
	_, err := o.admin.CoreV1().Secrets(namespace).Update(t.Context(), fixed, metav1.UpdateOptions{})
	must(t, err)
	long := strings.Repeat(canary, 1<<17)
	for name, err := range map[string]error{
		"immutable":    o.own(t, "fixed", canary),
		"a bad name":   o.own(t, "Not A Name", canary),
		"no name":      o.own(t, "", canary),
		"too large":    o.own(t, "large", long),
		"a bad key":    operator.OwnSecret(t.Context(), o.api.CoreV1(), o.pod, "key", map[string][]byte{"a b": []byte(canary)}),
		"no namespace": operator.OwnSecret(t.Context(), o.api.CoreV1(), operator.Pod{Namespace: "nowhere", Name: "p", UID: "u"}, "s", map[string][]byte{"k": []byte(canary)}),
		"no uid":       operator.OwnSecret(t.Context(), o.api.CoreV1(), operator.Pod{Namespace: namespace, Name: "p"}, "s", map[string][]byte{"k": []byte(canary)}),
	} {
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), canary) {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

// A Secret that somebody keeps from going cannot be made again, and its values are
// nobody's to renew.
func TestASecretThatIsBeingDeletedIsWaitedForUntilTheContextEnds(t *testing.T) {
	p, api := inMemory(t)
	p.UID = p.now().UID
	now := metav1.Now()
	must(t, api.Tracker().Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: "s", Namespace: namespace, UID: "s-1", DeletionTimestamp: &now, Finalizers: []string{"x/y"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}},
	}}))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := operator.OwnSecret(ctx, api.CoreV1(), p.Pod, "s", map[string][]byte{"k": []byte(canary)})
	wants(t, err, context.DeadlineExceeded)
	for _, a := range api.Actions() {
		if a.Matches("update", "secrets") {
			t.Error("it was written")
		}
	}
}

func TestAServerThatIsNoAPIServerHasNotTakenTheSecret(t *testing.T) {
	for name, code := range map[string]int{"an empty document": http.StatusOK, "a page": http.StatusNotFound, "a proxy": http.StatusBadGateway} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte("{}"))
		}))
		api, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
		must(t, err)
		err = operator.OwnSecret(t.Context(), api.CoreV1(), operator.Pod{Namespace: namespace, Name: "p", UID: "u"}, "s", nil)
		if err == nil || apierrors.IsAlreadyExists(err) {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}
