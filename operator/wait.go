package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/absence"
)

// Wait returns the answer to the set when it is final: everything is there, or
// something has failed. What only takes its time ([grant.Code.Passes]: kubelet has not
// made the volume yet, a repository is being fetched) ends no wait, because the agent
// answers again by itself. With targets only these count, and what is said of the
// whole set: who adds a folder does not wait for those of others. An answer that
// reports failures is no error: look at its State.
//
// It waits through the end of a watch and through an API that is away for a
// while, until ctx ends. Errors: ErrGone, ErrEnding, ErrSuperseded, that of ctx
// (with what is missing by the last answer, and with the API's last error, if that
// was failing), or the API's where it refuses. The Status beside an error is the last
// answer to the set, the zero one where there was none. Give ctx a deadline: where no
// agent runs, nothing is ever answered.
func (c *Client) Wait(ctx context.Context, asked Asked, targets ...string) (grant.Status, error) {
	w := waiter{c: c, asked: asked, missing: func(st grant.Status) []string { return missing(st, targets) }}
	return w.wait(ctx)
}

// WaitFirst is Wait for the first answer, also one that is not final: what it says of
// may be there before long, and whoever shows a progress need not wait for all of it.
func (c *Client) WaitFirst(ctx context.Context, asked Asked) (grant.Status, error) {
	w := waiter{c: c, asked: asked, missing: func(grant.Status) []string { return nil }}
	return w.wait(ctx)
}

// missing are the keys of what is not there yet by an answer that is not final, and
// none by one that is. Where something has failed, waiting for the rest makes nothing
// ready. Without targets all keys count.
func missing(st grant.Status, targets []string) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(st.Failed)) {
		code, mine := st.Failed[key], slices.Contains(targets, key)
		switch {
		case len(targets) > 0 && !mine && key != grant.WholeSet:
		case mine && code == grant.CodeHeld && slices.Contains(st.Mounted, key): // what is held is the mount before
		case !code.Passes():
			return nil
		default:
			out = append(out, fmt.Sprintf("%s (%s)", key, code))
		}
	}
	return out
}

// wait goes on until nothing is missing.
func (w *waiter) wait(ctx context.Context) (grant.Status, error) {
	var trouble error
	for pause := pauses(); ; {
		began := time.Now()
		done, err := w.follow(ctx)
		switch {
		case done && err == nil:
			return w.last, nil
		case done:
			return w.last, failed("wait for", w.asked.Pod, err)
		case ctx.Err() != nil:
		case absence.Unsent(err): // nobody was asked: what was wrong before still is
			err = trouble
		case err != nil && (!w.looked || !passes(err)):
			return w.last, failed("wait for", w.asked.Pod, err)
		}
		trouble = err
		if time.Since(began) > pause.Cap {
			pause = pauses()
		}
		if ended := sleep(ctx, pause.Step()); ended != nil {
			return w.last, failed("wait for", w.asked.Pod, w.unfinished(ended, trouble))
		}
	}
}

// unfinished is the end of a wait's context, with what is missing and what is wrong
// with the API, where something is.
func (w *waiter) unfinished(ended, trouble error) error {
	if errors.Is(trouble, ended) {
		trouble = nil
	}
	if left := w.missing(w.last); len(left) > 0 {
		ended = fmt.Errorf("%w: not there yet: %s", ended, strings.Join(left, ", "))
	}
	if trouble != nil {
		ended = fmt.Errorf("%w: %w", ended, trouble)
	}
	return ended
}

// waiter is one call of Wait.
type waiter struct {
	c     *Client
	asked Asked
	// missing is what an answer leaves to wait for, nothing when it ends the wait.
	missing func(grant.Status) []string
	last    grant.Status // the answer that the Pod had when it was seen last
	// looked: the API has answered once. What fails before that is a client that
	// is set up wrongly, and no use waiting for.
	looked bool
}

// follow looks at the Pod and watches it until the answer is there (done), there
// will be none (done, with an error), or the watch ends. Watches do end.
func (w *waiter) follow(ctx context.Context) (done bool, err error) {
	p, err := w.c.get(ctx, w.asked.Pod)
	if err != nil {
		return errors.Is(err, ErrGone), err
	}
	w.looked = true
	if done, err := w.answer(p); done {
		return done, err
	}
	events, err := w.c.pods.Pods(p.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, p.Name).String(),
		ResourceVersion: p.ResourceVersion,
	})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case e, ok := <-events.ResultChan():
			if !ok || e.Type == watch.Error {
				return false, nil // the next look tells what is wrong, if anything is
			}
			p, isPod := e.Object.(*corev1.Pod)
			switch {
			case !isPod: // a bookmark, at most
			case e.Type == watch.Deleted:
				return true, ErrGone
			default:
				if done, err := w.answer(p); done {
					return done, err
				}
			}
		}
	}
}

// answer reads the Pod's answer if it is one to the set, and says whether there
// is nothing left to wait for.
func (w *waiter) answer(p *corev1.Pod) (done bool, err error) {
	if p.UID != w.asked.UID {
		return true, ErrGone
	}
	if now := annotation(p, w.c.names.Mounts); now == nil || *now != w.asked.Annotation {
		return true, ErrSuperseded
	}
	w.last = grant.Status{}
	if text := annotation(p, w.c.names.Ready); text != nil {
		// What cannot be read is not the agent's.
		if st, err := grant.DecodeStatus(*text); err == nil && st.Hash == w.asked.Hash {
			w.last = st
			if len(w.missing(st)) == 0 {
				return true, nil
			}
		}
	}
	if ending(p) {
		return true, ErrEnding
	}
	return false, nil
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
