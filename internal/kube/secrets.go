package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/internal/kube/absence"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Secrets gets Secrets by their names, past every cache.
type Secrets struct {
	Client kubernetes.Interface
}

var _ secret.Source = Secrets{}

// Secret implements secret.Source. A request that failed otherwise than by the
// API's word is neither of its errors.
func (s Secrets) Secret(ctx context.Context, namespace, name string) (secret.Stored, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	got, err := s.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case absence.Said(err, "secrets", name):
		err = fmt.Errorf("%w: %w", secret.ErrNotFound, err)
	case apierrors.IsForbidden(err):
		err = fmt.Errorf("%w: %w", secret.ErrForbidden, err)
	}
	if err != nil {
		return secret.Stored{}, fmt.Errorf("kube: get secret: %w", err)
	}
	stored := secret.Stored{Data: secret.NewData(got.Data)}
	for _, o := range got.OwnerReferences {
		stored.Owners = append(stored.Owners, secret.Owner{APIVersion: o.APIVersion, Kind: o.Kind, UID: string(o.UID)})
	}
	return stored, nil
}
