package kube_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
	"github.com/datalayer/node-mounts/internal/secret"
)

func TestASecretIsGotWithItsOwnersAndRefusalsAreToldApart(t *testing.T) {
	client, err := kubetest.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Secrets("sandboxes").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "mine", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "uid-1"}}},
		Data:       map[string][]byte{"token": []byte("value")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	source := kube.Secrets{Client: client}
	got, err := source.Secret(t.Context(), "sandboxes", "mine")
	if v, _ := got.Data.Value("token"); err != nil || string(v) != "value" || len(got.Owners) != 1 || got.Owners[0] != (secret.Owner{APIVersion: "v1", Kind: "Pod", UID: "uid-1"}) {
		t.Errorf("got %+v, %v", got.Owners, err)
	}
	for _, where := range [][2]string{{"sandboxes", "other"}, {"other", "mine"}} {
		if _, err := source.Secret(t.Context(), where[0], where[1]); !errors.Is(err, secret.ErrNotFound) {
			t.Errorf("%v: %v", where, err)
		}
	}
	for _, c := range []struct{ api, want error }{
		{apierrors.NewForbidden(corev1.Resource("secrets"), "mine", nil), secret.ErrForbidden},
		{apierrors.NewUnauthorized("token"), nil},
		{context.DeadlineExceeded, nil},
	} {
		client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.api })
		_, err := source.Secret(t.Context(), "sandboxes", "mine")
		if !errors.Is(err, c.api) || c.want != nil && !errors.Is(err, c.want) || c.want == nil && (errors.Is(err, secret.ErrForbidden) || errors.Is(err, secret.ErrNotFound)) {
			t.Errorf("%v is answered by %v", c.api, err)
		}
	}
}
