// Package operator is for programs that grant: it writes the grant annotation of
// a Pod and waits for the answer to exactly that set.
//
// Three rules make it safe to have several writers and to reuse names:
//
//   - A write carries the uid and the resource version that were read. Of two
//     writers at once one is told to look again, and none loses anything.
//   - A Pod that was made again under its name is another Pod. What was meant for
//     the first is never granted to the second.
//   - A write removes the old answer. Two equal sets in a row have the same hash,
//     and without that the answer to the first would pass for one to the second.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/absence"
)

// Errors of this package. Those of the API are wrapped, as they came.
var (
	// ErrGone: the Pod does not exist, or another one has its name.
	ErrGone = errors.New("the Pod does not exist")
	// ErrEnding: the Pod is being deleted or has finished. It gets no new mounts
	// and no new answer.
	ErrEnding = errors.New("the Pod is ending and gets no new mounts")
	// ErrNoGrant: the Pod has no grant annotation, so nothing will be answered.
	ErrNoGrant = errors.New("the Pod has no grant annotation")
	// ErrUnreadable: what the Pod asks for cannot be read, so nothing can be added to
	// it or taken from it. It wraps a [*grant.Refusal]. Grant writes it anew.
	ErrUnreadable = errors.New("what the Pod asks for cannot be read")
	// ErrSuperseded: another set has been written since. The answer will be to
	// that one.
	ErrSuperseded = errors.New("another set has been written since")
)

// NotGrantedError says that Remove was given targets that are not granted.
type NotGrantedError struct {
	Targets []string
}

// Error lists the targets.
func (e *NotGrantedError) Error() string {
	return "not granted: " + strings.Join(e.Targets, ", ")
}

// Client grants on Pods. It needs get and patch on pods, and watch for Wait. It
// is safe for concurrent use.
type Client struct {
	pods  corev1client.PodsGetter
	names grant.Names
}

// New makes a Client for the annotations that the deployment uses.
func New(pods corev1client.PodsGetter, names grant.Names) *Client {
	return &Client{pods: pods, names: names}
}

// Pod says which Pod is meant.
type Pod struct {
	Namespace, Name string
	// UID binds the name to one Pod. Without it the Pod that has the name when the
	// call begins is meant.
	UID types.UID
}

// Asked is a set that a Pod asks for, and that is to be answered.
type Asked struct {
	Pod
	// Hash is what the answer carries.
	Hash string
	// Annotation is the grant annotation itself. The hash leaves out the kinds, so
	// it does not tell every two sets apart.
	Annotation string
}

// Grant asks for exactly this set; an empty one asks for no mounts. Errors: a
// [*grant.Refusal] before anything is sent, ErrGone, ErrEnding, that of ctx, or
// the API's, a conflict at last where ctx has no deadline.
func (c *Client) Grant(ctx context.Context, pod Pod, mounts ...grant.Mount) (Asked, error) {
	text, err := grant.Encode(mounts)
	if err != nil {
		return Asked{}, err
	}
	e := edit{op: granting, change: func(*string) (*string, error) { return &text, nil }}
	if len(mounts) == 0 {
		e.op, e.ends = revoking, true
	}
	return c.edit(ctx, pod, e)
}

// Add asks for the mounts beside what is granted already. A mount takes the place
// of one with the same target. Errors as of Grant, and ErrUnreadable; also a
// [*grant.Refusal] where the set becomes too large.
func (c *Client) Add(ctx context.Context, pod Pod, mounts ...grant.Mount) (Asked, error) {
	if _, err := grant.Encode(mounts); err != nil {
		return Asked{}, err
	}
	return c.edit(ctx, pod, edit{op: granting, change: func(now *string) (*string, error) { return merge(now, mounts) }})
}

// Remove asks for what is granted without these targets. When one of them is not
// granted it writes nothing and returns a [*NotGrantedError]. Other errors as of
// Add, but for ErrEnding: an ending Pod can still lose its mounts.
func (c *Client) Remove(ctx context.Context, pod Pod, targets ...string) (Asked, error) {
	return c.edit(ctx, pod, edit{op: revoking, ends: true, change: func(now *string) (*string, error) {
		if missing := notGranted(now, targets); len(missing) > 0 {
			return nil, &NotGrantedError{Targets: missing}
		}
		return merge(now, nil, targets...)
	}})
}

// Clear removes the annotation and the answer: the agent releases the Pod. There
// is nothing to wait for; Grant with an empty set is answered.
func (c *Client) Clear(ctx context.Context, pod Pod) error {
	_, err := c.edit(ctx, pod, edit{op: revoking, ends: true, change: func(*string) (*string, error) { return nil, nil }})
	return err
}

// Asked is the set that the Pod asks for now, for Wait. Errors: ErrGone,
// ErrNoGrant, that of ctx, or the API's.
func (c *Client) Asked(ctx context.Context, pod Pod) (Asked, error) {
	p, err := c.get(ctx, pod)
	if err != nil {
		return Asked{}, failed("read the grant of", pod, err)
	}
	a, ok := c.asked(p)
	if !ok {
		return a, failed("read the grant of", pod, ErrNoGrant)
	}
	return a, nil
}

func (c *Client) asked(p *corev1.Pod) (Asked, bool) {
	a := Asked{Pod: Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
	text, ok := p.Annotations[c.names.Mounts]
	if ok {
		a.Hash, a.Annotation = grant.Decode(text).Hash, text
	}
	return a, ok
}

// get reads the Pod that is meant. ErrGone where another one has its name.
func (c *Client) get(ctx context.Context, pod Pod) (*corev1.Pod, error) {
	p, err := absence.Pod(ctx, c.pods, pod.Namespace, pod.Name)
	switch {
	case absence.PodSaid(err, pod.Name):
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		return nil, err
	case pod.UID != "" && p.UID != pod.UID:
		return nil, fmt.Errorf("%w: its name belongs to another Pod now (uid %s)", ErrGone, p.UID)
	}
	return p, nil
}

// What a change is called in errors.
const (
	granting = "grant on"
	revoking = "revoke on"
)

// edit is one change of the grant annotation.
type edit struct {
	op string
	// change makes the new annotation of the one that is there, nil for none.
	change func(now *string) (*string, error)
	// ends: it takes mounts away, which an ending Pod can still have done.
	ends bool
}

// contested is how long a change is tried whose context has no deadline.
const contested = time.Minute

// edit changes the annotation of the Pod as it was read, and reads again when
// somebody else was faster, until ctx ends. One of the writers always wins, so
// all of them come through; but for those who write in a loop, without reading.
func (c *Client) edit(ctx context.Context, pod Pod, e edit) (Asked, error) {
	var lost error // the last conflict
	began := time.Now()
	for pause := pauses(); ; {
		a, err := c.try(ctx, &pod, e)
		switch {
		case err == nil:
			return a, nil
		case apierrors.IsConflict(err):
			lost = err
		case lost != nil && absence.Unsent(err): // nobody was asked, and time will not be left for it
		case lost != nil && ctx.Err() != nil: // the conflicts are why it has taken so long
			return Asked{}, failed(e.op, pod, fmt.Errorf("%w: %w", err, lost))
		default:
			return Asked{}, failed(e.op, pod, err)
		}
		if _, bounded := ctx.Deadline(); !bounded && time.Since(began) >= contested {
			return Asked{}, failed(e.op, pod, fmt.Errorf("others changed the Pod before each attempt of %s: %w", contested, lost))
		}
		if ended := sleep(ctx, pause.Step()); ended != nil {
			return Asked{}, failed(e.op, pod, fmt.Errorf("%w: %w", ended, lost))
		}
	}
}

// try is one attempt. It binds the name to the Pod that it finds.
func (c *Client) try(ctx context.Context, pod *Pod, e edit) (Asked, error) {
	p, err := c.get(ctx, *pod)
	if err != nil {
		return Asked{}, err
	}
	pod.UID = p.UID // whoever has the name at the next attempt
	if ending(p) && !e.ends {
		return Asked{}, ErrEnding
	}
	text, err := e.change(annotation(p, c.names.Mounts))
	if err != nil {
		return Asked{}, err
	}
	p, err = c.patch(ctx, p, text)
	if absence.PodSaid(err, pod.Name) {
		return Asked{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return Asked{}, err
	}
	a, _ := c.asked(p)
	return a, nil
}

// patch writes the annotation, or removes it where text is nil, and removes the
// answer with it.
func (c *Client) patch(ctx context.Context, p *corev1.Pod, text *string) (*corev1.Pod, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.UID, "resourceVersion": p.ResourceVersion,
		"annotations": map[string]*string{c.names.Mounts: text, c.names.Ready: nil},
	}})
	if err != nil {
		return nil, err
	}
	return c.pods.Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{})
}

// ending tells whether the agent has stopped granting to the Pod.
func ending(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func annotation(p *corev1.Pod, name string) *string {
	if text, ok := p.Annotations[name]; ok {
		return &text
	}
	return nil
}

func merge(now *string, add []grant.Mount, remove ...string) (*string, error) {
	was := ""
	if now != nil {
		was = *now
	}
	if was != "" {
		if refusal := grant.Decode(was).Whole; refusal != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnreadable, refusal)
		}
	}
	text, err := grant.Merge(was, add, remove...)
	return &text, err
}

// notGranted are the targets that the annotation has no entry for, not even a
// refused one.
func notGranted(now *string, targets []string) []string {
	var granted []string
	if now != nil {
		set := grant.Decode(*now)
		if set.Whole != nil {
			return nil // Merge says what is wrong
		}
		granted = set.Targets()
	}
	return slices.DeleteFunc(slices.Clone(targets), func(t string) bool { return slices.Contains(granted, t) })
}

func failed(op string, pod Pod, err error) error {
	return fmt.Errorf("%s Pod %s/%s: %w", op, pod.Namespace, pod.Name, err)
}

// pauses grow from 10 ms to a second, each of them random by half: writers that
// met once should not meet again.
func pauses() *wait.Backoff {
	return &wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: time.Second}
}

// sleep waits for d, or until ctx ends and returns its error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
