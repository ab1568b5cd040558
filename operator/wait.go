package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/absence"
)

// Wait returns the answer to the set, as soon as it is there. An answer that
// reports failures is no error: look at its State.
//
// It waits through the end of a watch and through an API that is away for a
// while, until ctx ends. Errors: ErrGone, ErrEnding, ErrSuperseded, that of ctx
// (with the API's last one, if that was failing), or the API's where it refuses.
// Give ctx a deadline: where no agent runs, nothing is ever answered.
func (c *Client) Wait(ctx context.Context, asked Asked) (grant.Status, error) {
	w := waiter{c: c, asked: asked}
	var trouble error
	for pause := pauses(); ; {
		began := time.Now()
		st, done, err := w.follow(ctx)
		switch {
		case done && err == nil:
			return st, nil
		case done:
			return grant.Status{}, failed("wait for", asked.Pod, err)
		case ctx.Err() != nil:
		case absence.Unsent(err): // nobody was asked: what was wrong before still is
			err = trouble
		case err != nil && (!w.looked || !passes(err)):
			return grant.Status{}, failed("wait for", asked.Pod, err)
		}
		trouble = err
		if time.Since(began) > pause.Cap {
			pause = pauses()
		}
		if ended := sleep(ctx, pause.Step()); ended != nil {
			if trouble != nil && !errors.Is(trouble, ended) {
				ended = fmt.Errorf("%w: %w", ended, trouble)
			}
			return grant.Status{}, failed("wait for", asked.Pod, ended)
		}
	}
}

// waiter is one call of Wait.
type waiter struct {
	c     *Client
	asked Asked
	// looked: the API has answered once. What fails before that is a client that
	// is set up wrongly, and no use waiting for.
	looked bool
}

// follow looks at the Pod and watches it until the answer is there (done), there
// will be none (done, with an error), or the watch ends. Watches do end.
func (w *waiter) follow(ctx context.Context) (st grant.Status, done bool, err error) {
	p, err := w.c.get(ctx, w.asked.Pod)
	if err != nil {
		return st, errors.Is(err, ErrGone), err
	}
	w.looked = true
	if st, done, err := w.answer(p); done {
		return st, done, err
	}
	events, err := w.c.pods.Pods(p.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, p.Name).String(),
		ResourceVersion: p.ResourceVersion,
	})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return st, false, nil
	}
	if err != nil {
		return st, false, err
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return st, false, nil
		case e, ok := <-events.ResultChan():
			if !ok || e.Type == watch.Error {
				return st, false, nil // the next look tells what is wrong, if anything is
			}
			p, isPod := e.Object.(*corev1.Pod)
			switch {
			case !isPod: // a bookmark, at most
			case e.Type == watch.Deleted:
				return st, true, ErrGone
			default:
				if st, done, err := w.answer(p); done {
					return st, done, err
				}
			}
		}
	}
}

// answer reads the Pod's answer if it is one to the set, and says whether there
// is anything left to wait for.
func (w *waiter) answer(p *corev1.Pod) (st grant.Status, done bool, err error) {
	if p.UID != w.asked.UID {
		return st, true, ErrGone
	}
	if now := annotation(p, w.c.names.Mounts); now == nil || *now != w.asked.Annotation {
		return st, true, ErrSuperseded
	}
	if text := annotation(p, w.c.names.Ready); text != nil {
		// What cannot be read is not the agent's.
		if st, err := grant.DecodeStatus(*text); err == nil && st.Hash == w.asked.Hash {
			return st, true, nil
		}
	}
	if ending(p) {
		return st, true, ErrEnding
	}
	return st, false, nil
}

// passes tells whether an error of the API may pass by waiting: nobody answered,
// or the server says that it is not well. One that refuses goes on refusing.
func passes(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsUnexpectedServerError(err) {
		return true // not an API server's word: a load balancer between two of them, say
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}
