// Package operator is for programs that grant: it writes the grant annotation of
// a Pod and waits for the answer to exactly that set.
//
// Writing removes the old answer in the same patch. Two equal sets in a row have
// the same hash, and without that the answer to the first would pass for the
// answer to the second.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/datalayer/node-mounts/grant"
)

// Errors of Wait and of the writers.
var (
	// ErrGone: the Pod does not exist, or another one has its name.
	ErrGone = errors.New("the Pod no longer exists")
	// ErrSuperseded: somebody has written another set since. The answer will be
	// to that one.
	ErrSuperseded = errors.New("another set has been written since")
)

// Client grants on Pods. It needs get, watch and patch on pods.
type Client struct {
	pods  corev1client.PodsGetter
	names grant.Names
}

// New makes a Client for the annotations that the deployment uses.
func New(pods corev1client.PodsGetter, names grant.Names) *Client {
	return &Client{pods: pods, names: names}
}

// Asked is a set that has been written and is to be answered.
type Asked struct {
	Namespace, Name string
	UID             types.UID
	// Hash is what the answer carries.
	Hash string
}

// Grant asks for exactly this set. An empty one asks for no mounts.
func (c *Client) Grant(ctx context.Context, namespace, name string, mounts []grant.Mount) (Asked, error) {
	return c.edit(ctx, namespace, name, func(string) (*string, error) {
		text, err := grant.Encode(mounts)
		return &text, err
	})
}

// Add asks for the mounts beside what is granted already. A mount takes the place
// of one with the same target.
func (c *Client) Add(ctx context.Context, namespace, name string, mounts ...grant.Mount) (Asked, error) {
	return c.edit(ctx, namespace, name, func(now string) (*string, error) {
		text, err := grant.Merge(now, mounts)
		return &text, err
	})
}

// Remove asks for what is granted without these targets.
func (c *Client) Remove(ctx context.Context, namespace, name string, targets ...string) (Asked, error) {
	return c.edit(ctx, namespace, name, func(now string) (*string, error) {
		text, err := grant.Merge(now, nil, targets...)
		return &text, err
	})
}

// Clear removes the annotation: the agent releases the Pod and removes its
// answer. There is nothing to wait for.
func (c *Client) Clear(ctx context.Context, namespace, name string) error {
	_, err := c.edit(ctx, namespace, name, func(string) (*string, error) { return nil, nil })
	return err
}

// Asked is the set that the Pod's annotation asks for now, for Wait.
func (c *Client) Asked(ctx context.Context, namespace, name string) (Asked, error) {
	p, err := c.get(ctx, namespace, name)
	if err != nil {
		return Asked{}, err
	}
	return c.asked(p), nil
}

func (c *Client) asked(p *corev1.Pod) Asked {
	a := Asked{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	if text, ok := p.Annotations[c.names.Mounts]; ok {
		a.Hash = grant.Decode(text).Hash
	}
	return a
}

func (c *Client) get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	p, err := c.pods.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return p, err
}

// edit changes the grant annotation of the Pod as it was read, and reads again
// when somebody else was faster: of two writers at once none loses anything.
// change returns nil to remove the annotation.
func (c *Client) edit(ctx context.Context, namespace, name string, change func(now string) (*string, error)) (Asked, error) {
	var asked Asked
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p, err := c.get(ctx, namespace, name)
		if err != nil {
			return err
		}
		text, err := change(p.Annotations[c.names.Mounts])
		if err != nil {
			return err
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": p.UID, "resourceVersion": p.ResourceVersion,
			"annotations": map[string]any{c.names.Mounts: text, c.names.Ready: nil},
		}})
		if err != nil {
			return err
		}
		p, err = c.pods.Pods(namespace).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
		if err != nil {
			return err
		}
		asked = c.asked(p)
		return nil
	})
	if apierrors.IsNotFound(err) && !errors.Is(err, ErrGone) {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	return asked, err
}

// Wait returns the answer to the set, as soon as it is there. Errors: ErrGone,
// ErrSuperseded, that of ctx, or the API's. An answer that reports failures is no
// error: look at its State.
func (c *Client) Wait(ctx context.Context, asked Asked) (grant.Status, error) {
	for {
		p, err := c.get(ctx, asked.Namespace, asked.Name)
		if err != nil {
			return grant.Status{}, err
		}
		st, done, err := c.answer(p, asked)
		if done || err != nil {
			return st, err
		}
		st, done, err = c.watch(ctx, p.ResourceVersion, asked)
		if done || err != nil {
			return st, err
		}
		// The watch ended, as watches do. Look again from the start.
	}
}

// watch follows the Pod from version until the answer is there or the watch
// ends.
func (c *Client) watch(ctx context.Context, version string, asked Asked) (grant.Status, bool, error) {
	w, err := c.pods.Pods(asked.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, asked.Name).String(),
		ResourceVersion: version,
	})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return grant.Status{}, false, nil
	}
	if err != nil {
		return grant.Status{}, false, err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return grant.Status{}, false, ctx.Err()
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				return grant.Status{}, false, ctx.Err()
			}
			p, isPod := e.Object.(*corev1.Pod)
			if !isPod {
				continue
			}
			if e.Type == watch.Deleted {
				return grant.Status{}, false, ErrGone
			}
			if st, done, err := c.answer(p, asked); done || err != nil {
				return st, done, err
			}
		}
	}
}

// answer reads the Pod's answer if it is one to the set.
func (c *Client) answer(p *corev1.Pod, asked Asked) (grant.Status, bool, error) {
	if p.UID != asked.UID {
		return grant.Status{}, false, ErrGone
	}
	if now := c.asked(p); now.Hash != asked.Hash {
		return grant.Status{}, false, ErrSuperseded
	}
	text, ok := p.Annotations[c.names.Ready]
	if !ok {
		return grant.Status{}, false, nil
	}
	st, err := grant.DecodeStatus(text)
	if err != nil || st.Hash != asked.Hash {
		return grant.Status{}, false, nil // not the agent's, or not to this set
	}
	return st, true, nil
}
