package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/datalayer/node-mounts/internal/kube/absence"
)

// ErrNotOwned: there is a Secret of the name that is not this Pod's, or not this
// Pod's alone. It was neither read nor written.
var ErrNotOwned = errors.New("a Secret of this name is there and does not belong to this Pod alone")

var (
	errNoOwner = errors.New("the Pod that is to own it has to be named with its uid")
	// errNoSecret: any JSON object is read as a Secret, one without a name.
	errNoSecret = errors.New("what answers is not a Kubernetes API server: its document is not the Secret")
)

// OwnSecret makes a Secret that the Pod owns, or gives the one that it owns these
// values and no others: a session that was renewed takes effect like this, without
// a new mount. The Pod is named with its uid. The cluster deletes the Secret when
// the Pod is gone, and at once where there is no such Pod.
//
// It needs create, get and update on secrets, and nothing on pods. Agents use a
// Secret for its owner alone, so one that anybody else owns too is left alone:
// [ErrNotOwned]. Other errors are that of ctx, or the API's. None has a value in
// it. The client can: client-go logs the bodies of requests from verbosity 8 on.
func OwnSecret(ctx context.Context, secrets corev1client.SecretsGetter, pod Pod, name string, data map[string][]byte) error {
	err := errNoOwner
	if pod.Namespace != "" && pod.Name != "" && pod.UID != "" {
		err = own(ctx, secrets.Secrets(pod.Namespace), pod, name, data)
	}
	if err != nil {
		return fmt.Errorf("write Secret %q for Pod %s/%s: %w", name, pod.Namespace, pod.Name, err)
	}
	return nil
}

// own creates first: a Secret is mostly new. It looks again where somebody else was
// faster, in making it, changing it or deleting it.
func own(ctx context.Context, secrets corev1client.SecretInterface, pod Pod, name string, data map[string][]byte) error {
	for pause := pauses(); ; {
		made, err := secrets.Create(ctx, owned(pod, name, data), metav1.CreateOptions{})
		if err == nil {
			return isSecret(made, pod, name)
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		again, err := renew(ctx, secrets, pod, name, data)
		if !again {
			return err
		}
		if ended := sleep(ctx, pause.Step()); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// renew writes the values into a Secret that is there. again: it has changed since
// it was read, and err says how.
func renew(ctx context.Context, secrets corev1client.SecretInterface, pod Pod, name string, data map[string][]byte) (again bool, err error) {
	now, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return absence.Said(err, "secrets", name), err
	}
	if err := isSecret(now, pod, name); err != nil {
		return false, err
	}
	switch {
	case !ownedAlone(now.OwnerReferences, pod):
		return false, ErrNotOwned
	case now.DeletionTimestamp != nil:
		return true, errors.New("the Secret of this name is being deleted")
	case maps.EqualFunc(now.Data, data, bytes.Equal):
		return false, nil
	}
	// It goes back with the uid and the resource version that were read: the owner
	// that was seen is the owner of what is written.
	now.Data = data
	written, err := secrets.Update(ctx, now, metav1.UpdateOptions{})
	if err != nil {
		return apierrors.IsConflict(err) || absence.Said(err, "secrets", name), err
	}
	return false, isSecret(written, pod, name)
}

func owned(pod Pod, name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: pod.Namespace,
			// Not the controller, and it blocks nothing: that would need a right on the
			// Pod's finalizers where a cluster enforces it.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}
}

// ownedAlone tells whether the Pod, and nobody else, is the owner. A second Pod
// could be granted with the first one's credential.
func ownedAlone(owners []metav1.OwnerReference, pod Pod) bool {
	return len(owners) > 0 && !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool {
		return o.APIVersion != "v1" || o.Kind != "Pod" || o.UID != pod.UID
	})
}

func isSecret(s *corev1.Secret, pod Pod, name string) error {
	if !absence.Is(s, pod.Namespace, name) {
		return errNoSecret
	}
	return nil
}
