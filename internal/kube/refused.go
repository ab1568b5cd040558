package kube

import (
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusals are the namespaces in which the agent may not write answers. Whoever
// grants there sees nothing at all, so the agent has to say it elsewhere.
type refusals struct {
	mu sync.Mutex
	in map[string]refused // by namespace
}

// refused is the last answer that was refused.
type refused struct {
	uid string
	err error
}

// note takes the end of a patch of a Pod. Everything but the word of the API
// server's authorizer shows that the agent may write there.
func (r *refusals) note(namespace, uid string, err error) {
	if !unauthorized(err) && err != nil && apierrors.ReasonForError(err) == "" {
		return // nobody answered: nothing is known
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !unauthorized(err) {
		delete(r.in, namespace)
		return
	}
	if r.in == nil {
		r.in = make(map[string]refused)
	}
	r.in[namespace] = refused{uid, err}
}

// unauthorized tells the authorizer's refusal from that of an admission policy,
// which is Forbidden too and is about one Pod.
func unauthorized(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot patch resource ")
}

// Answerable says why answers cannot be written, nil where as far as is known they
// can. A refusal counts until the Pod that met it has gone: another Pod meets the
// next one.
func (c *Controller) Answerable() error {
	c.refused.mu.Lock()
	defer c.refused.mu.Unlock()
	for namespace, r := range c.refused.in {
		if found, err := c.pods.GetIndexer().ByIndex(uidIndex, r.uid); err == nil && len(found) == 0 {
			delete(c.refused.in, namespace)
			continue
		}
		return fmt.Errorf("answers cannot be written in the namespace %s: the agent's role has to allow pods: patch there: %w", namespace, r.err)
	}
	return nil
}
