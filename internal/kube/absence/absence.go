// Package absence tells what an API server said does not exist from what somebody
// else's answer only looks like: a load balancer without a backend, a proxy, or a
// server at the wrong address answers 404 too, and a client takes it for NotFound.
package absence

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ErrNotSaid is beside a 404 that is no API server's word on the object.
var ErrNotSaid = errors.New("what answers 404 is not a Kubernetes API server that was asked for this object")

// ErrNotIt is a document that came without an error and is not what was asked for: it
// would be read as an empty object, and must not pass for the word that there is none.
var ErrNotIt = errors.New("what answers is not a Kubernetes API server: its document is not what was asked for")

// pods is how an API server's Status names what it is about.
const pods = "pods"

// Pod reads a Pod. PodSaid tells of its error whether the Pod does not exist; any
// other is ErrNotSaid, ErrNotIt, or the API's, and says nothing of that.
func Pod(ctx context.Context, from corev1client.PodsGetter, namespace, name string) (*corev1.Pod, error) {
	// No resource version: a quorum read. "0" would be any API server's old copy.
	p, err := from.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && !Is(p, namespace, name):
		return nil, ErrNotIt
	case err == nil:
		return p, nil
	case apierrors.IsNotFound(err) && !PodSaid(err, name):
		return nil, fmt.Errorf("%w: %w", ErrNotSaid, err)
	}
	return nil, err
}

// PodSaid is Said of a Pod.
func PodSaid(err error, name string) bool { return Said(err, pods, name) }

// Said tells whether err is an API server's word that this object does not exist:
// a Status that it wrote itself, with the resource and the name in it.
//
// client-go makes the same Status, with both names, of any 404 whose body it cannot
// read. It marks those with a cause.
func Said(err error, resource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || apierrors.IsUnexpectedServerError(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Kind == resource && d.Name == name
}

// Is tells whether an object that came without an error is the one that was asked
// for. JSON of any kind, "{}" for one, is read as an object without a name.
func Is(o metav1.Object, namespace, name string) bool {
	return o.GetUID() != "" && o.GetNamespace() == namespace && o.GetName() == name
}

// Unsent tells whether err is of a request that was never sent: the client's own
// limit would have let it go after the end of its context. It says nothing of the
// server, and must not take the place of what the server said before. client-go has
// no type for it, only these words.
func Unsent(err error) bool {
	return err != nil && strings.Contains(err.Error(), "client rate limiter Wait returned an error")
}
