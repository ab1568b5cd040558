// Package secret reads the Secrets that grants name.
//
// A grant is an annotation, and whoever may patch the Pod may write any name into
// it. So a Secret is used only where it belongs to the Pod that it is read for:
// it lies in the Pod's own namespace, and an owner reference of it has the Pod's
// uid. That keeps a grant from naming another tenant's credential, or one of the
// platform in the same namespace. It is asked for by its name with get alone:
// list and watch would need, and show, every Secret of the namespace.
package secret

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// PollInterval is how often a Secret in use is read again at least: a rotated value
// takes effect this much later, and one more request, at the latest. It is not watched:
// that would need, and show, every Secret of the namespace.
const PollInterval = 30 * time.Second

// Errors of a Source.
var (
	ErrNotFound  = errors.New("there is no such Secret")
	ErrForbidden = errors.New("the agent may not read it")
)

// ErrUnavailable says that it is not known what the Secret holds: the API did not
// answer. It is no refusal, and is worth another try.
var ErrUnavailable = errors.New("the API could not be asked for the Secret")

// Ref names a Secret by the Pod that it is read for.
type Ref struct {
	Namespace, PodUID string
	Name              string
}

// Owner is one owner reference.
type Owner struct {
	APIVersion, Kind, UID string
}

// Stored is a Secret as the API has it.
type Stored struct {
	Owners []Owner
	Data   Data
}

// Source gets one Secret by its name. Errors: ErrNotFound, ErrForbidden, or those
// of a request that failed.
type Source interface {
	Secret(ctx context.Context, namespace, name string) (Stored, error)
}

// RefusedError says why a Secret was not used, in a sentence for the person who
// named it.
type RefusedError struct {
	Reason string
	cause  error
}

func (e *RefusedError) Error() string { return e.Reason }

func (e *RefusedError) Unwrap() error { return e.cause }

func refuse(cause error, format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...), cause: cause}
}

// Reader reads Secrets for Pods.
type Reader struct {
	Source Source
}

// Current reads the Secret now. keys are those that it must have. Errors:
// *RefusedError, ErrUnavailable.
func (r *Reader) Current(ctx context.Context, ref Ref, keys ...string) (Data, error) {
	if ref.Namespace == "" || ref.PodUID == "" || ref.Name == "" {
		// An empty uid would be matched by an owner reference without one.
		return Data{}, refuse(nil, "the Secret %q cannot be read: the Pod it is for is not known", ref.Name)
	}
	stored, err := r.Source.Secret(ctx, ref.Namespace, ref.Name)
	switch {
	case errors.Is(err, ErrNotFound):
		return Data{}, refuse(err, "the Secret %q does not exist in the Pod's namespace: create it there, owned by the Pod", ref.Name)
	case errors.Is(err, ErrForbidden):
		return Data{}, refuse(err, "the agent may not read Secrets in the Pod's namespace: give its service account secrets: get there (nodeMountGateway.credentials)")
	case err != nil:
		return Data{}, fmt.Errorf("%w %q: %w", ErrUnavailable, ref.Name, err)
	case !owned(stored.Owners, ref.PodUID):
		return Data{}, refuse(nil, "the Secret %q does not belong to this Pod: create it with an owner reference to the Pod", ref.Name)
	}
	for _, k := range keys {
		if _, ok := stored.Data.Value(k); !ok {
			return Data{}, refuse(nil, "the Secret %q has no %q: add that key", ref.Name, k)
		}
	}
	return stored.Data, nil
}

// owned tells whether one of the owners is the Pod with this uid. Whether it is
// the controller is no matter; what kind it is, is: uids of other kinds are given
// out by others.
func owned(owners []Owner, uid string) bool {
	for _, o := range owners {
		if o.APIVersion == "v1" && o.Kind == "Pod" && o.UID == uid {
			return true
		}
	}
	return false
}
