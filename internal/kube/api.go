package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/kube/absence"
	"github.com/datalayer/node-mounts/internal/plan"
)

// The Controller is what the agent sees of Kubernetes.
var _ agent.API = (*Controller)(nil)

// requestTimeout bounds one request, so that an API server that accepts
// connections and answers nothing costs a worker this long and not for ever.
const requestTimeout = 20 * time.Second

// fieldManager names the agent in the Pod's managedFields.
const fieldManager = "node-mounts-agent"

// Confirm asks the API, past every cache, whether the Pod exists: (pod, true)
// when it does, (zero, false) when it does not or when another Pod has its name.
// An error means that it is not known. Where the namespace or the name is not
// known, it looks through the node's Pods.
func (c *Controller) Confirm(ctx context.Context, ref plan.Ref) (plan.Pod, bool, error) {
	if ref.UID == "" {
		return plan.Pod{}, false, errors.New("kube: confirm a pod: no uid")
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	find := c.get
	if ref.Namespace == "" || ref.Name == "" {
		find = c.search
	}
	p, err := find(ctx, ref)
	if err != nil {
		return plan.Pod{}, false, fmt.Errorf("kube: confirm pod %s: %w", ref.UID, err)
	}
	if p == nil {
		return plan.Pod{}, false, nil
	}
	return PodFromAPI(p, c.cfg.Names, c.cfg.Volume), true, nil
}

// get returns the Pod of this name and UID, nil when there is none.
func (c *Controller) get(ctx context.Context, ref plan.Ref) (*corev1.Pod, error) {
	p, err := absence.Pod(ctx, c.cfg.Client.CoreV1(), ref.Namespace, ref.Name)
	switch {
	case absence.PodSaid(err, ref.Name):
		return nil, nil
	case err != nil:
		return nil, err
	case string(p.UID) != ref.UID:
		return nil, nil
	}
	return p, nil
}

// search is get for a Pod of which only the UID is known.
func (c *Controller) search(ctx context.Context, ref plan.Ref) (*corev1.Pod, error) {
	// One page: a list that continues may expire between two, and a node holds
	// few hundred Pods.
	list, err := c.cfg.Client.CoreV1().Pods(c.cfg.Namespace).List(ctx, metav1.ListOptions{FieldSelector: c.onNode()})
	if err != nil {
		return nil, err
	}
	if list.ResourceVersion == "" { // every API server's list has one
		return nil, absence.ErrNotIt
	}
	for i := range list.Items {
		if string(list.Items[i].UID) == ref.UID {
			return &list.Items[i], nil
		}
	}
	if list.Continue != "" {
		return nil, errors.New("the list of the node's pods is incomplete")
	}
	return nil, nil
}

// answer is the merge patch of Answer. The UID and the resource version make it
// a conditional write.
type answer struct {
	Metadata struct {
		UID             string             `json:"uid"`
		ResourceVersion string             `json:"resourceVersion"`
		Annotations     map[string]*string `json:"annotations"`
	} `json:"metadata"`
}

// Answer writes the ready annotation of the Pod as it was read, or removes it
// when ready is nil, and writes nothing else. agent.ErrConflict: the Pod has
// changed since, its grant perhaps too. agent.ErrGone: there is no such Pod any
// more. Other errors are the API's.
func (c *Controller) Answer(ctx context.Context, pod plan.Pod, ready *string) error {
	if pod.UID == "" || pod.ResourceVersion == "" {
		// Empty, either would be read as "any".
		return fmt.Errorf("kube: answer pod %s/%s: its uid or resource version is not known", pod.Namespace, pod.Name)
	}
	var a answer
	a.Metadata.UID = pod.UID
	a.Metadata.ResourceVersion = pod.ResourceVersion
	a.Metadata.Annotations = map[string]*string{c.cfg.Names.Ready: ready}
	body, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("kube: answer pod %s: %w", pod.UID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now, err := c.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	c.refused.note(pod.Namespace, pod.UID, err)
	if err != nil {
		return fmt.Errorf("kube: answer pod %s: %w", pod.UID, c.refusal(ctx, pod, err))
	}
	if !absence.Is(now, pod.Namespace, pod.Name) {
		return fmt.Errorf("kube: answer pod %s: %w", pod.UID, absence.ErrNotIt)
	}
	return nil
}

// refusal says what a refused patch means. The API server compares resource
// versions first, so a Pod made again under the same name answers 409 like one
// that has only changed: the name is asked whose it is now. Were the versions
// equal, another uid would be 422, an immutable field.
func (c *Controller) refusal(ctx context.Context, pod plan.Pod, err error) error {
	switch {
	case absence.PodSaid(err, pod.Name), immutableUID(err):
		return fmt.Errorf("%w: %w", agent.ErrGone, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", absence.ErrNotSaid, err)
	case apierrors.IsConflict(err):
		now, getErr := c.get(ctx, pod.Ref())
		if getErr == nil && now == nil {
			return fmt.Errorf("%w: %w", agent.ErrGone, err)
		}
		return fmt.Errorf("%w: %w", agent.ErrConflict, err)
	}
	return err
}

// immutableUID tells whether err refuses to change metadata.uid, and not, say,
// an annotation that is too long.
func immutableUID(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
