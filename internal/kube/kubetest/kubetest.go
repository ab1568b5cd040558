// Package kubetest is a Kubernetes API in memory that treats Pods as a real API
// server does where the agent depends on it: uids and resource versions are
// assigned, writes that carry old ones are refused with the server's errors, and
// field selectors select. client-go's own fake accepts every write.
package kubetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// NewClient returns a client of a new API in memory that holds pods. Reactors
// that the caller prepends come first, as with any fake clientset.
func NewClient(pods ...*corev1.Pod) (*fake.Clientset, error) {
	client := fake.NewSimpleClientset()
	s := &server{objects: client.Tracker(), version: 1}
	client.PrependReactor("create", "pods", s.create)
	client.PrependReactor("update", "pods", s.update)
	client.PrependReactor("patch", "pods", s.patch)
	client.PrependReactor("list", "pods", s.list)
	client.PrependWatchReactor("pods", s.watch)
	for _, p := range pods {
		if _, err := s.add(p, metav1.NamespaceDefault); err != nil {
			return nil, fmt.Errorf("kubetest: add pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return client, nil
}

// server is the part of an API server that the object tracker lacks. The fake
// clientset runs its reactors one at a time, so it needs no lock.
type server struct {
	objects clienttesting.ObjectTracker
	// version is the resource version given out last. The tracker counts the same
	// way, unseen, and resumes watches by its own count: the two have to agree, so
	// a write that fails takes none.
	version int
}

func podsResource() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("pods")
}

// next returns a copy of p with the next resource version, and with a namespace
// and a uid where it has none.
func (s *server) next(p *corev1.Pod, namespace string) *corev1.Pod {
	p = p.DeepCopy()
	if p.Namespace == "" {
		p.Namespace = namespace
	}
	if p.UID == "" {
		p.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.version+1))
	}
	p.ResourceVersion = strconv.Itoa(s.version + 1)
	return p
}

func (s *server) add(p *corev1.Pod, namespace string) (*corev1.Pod, error) {
	p = s.next(p, namespace)
	if err := s.objects.Create(podsResource(), p, p.Namespace); err != nil {
		return nil, err
	}
	s.version++
	return p, nil
}

func (s *server) create(action clienttesting.Action) (bool, runtime.Object, error) {
	a, ok := action.(clienttesting.CreateAction)
	if !ok || a.GetSubresource() != "" {
		return false, nil, nil
	}
	p, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return false, nil, nil
	}
	p, err := s.add(p, a.GetNamespace())
	return true, p, err
}

func (s *server) update(action clienttesting.Action) (bool, runtime.Object, error) {
	a, ok := action.(clienttesting.UpdateAction)
	if !ok {
		return false, nil, nil
	}
	p, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return false, nil, nil
	}
	return s.replace(a.GetNamespace(), p.Name, func(*corev1.Pod) (*corev1.Pod, error) { return p, nil })
}

func (s *server) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	a, ok := action.(clienttesting.PatchAction)
	if !ok || a.GetPatchType() != types.MergePatchType {
		return true, nil, errors.New("kubetest: merge patches only")
	}
	return s.replace(a.GetNamespace(), a.GetName(), func(now *corev1.Pod) (*corev1.Pod, error) {
		return merge(now, a.GetPatch())
	})
}

// replace stores what change makes of the Pod unless it names another uid or a
// resource version that is not the Pod's: checked in the server's order, so that
// a Pod made again under its old name is a conflict.
func (s *server) replace(namespace, name string, change func(*corev1.Pod) (*corev1.Pod, error)) (bool, runtime.Object, error) {
	obj, err := s.objects.Get(podsResource(), namespace, name)
	if err != nil {
		return true, nil, err
	}
	now, ok := obj.(*corev1.Pod)
	if !ok {
		return true, nil, fmt.Errorf("kubetest: %T is no pod", obj)
	}
	p, err := change(now)
	switch {
	case err != nil:
		return true, nil, apierrors.NewBadRequest(err.Error())
	case p.ResourceVersion != "" && p.ResourceVersion != now.ResourceVersion:
		return true, nil, apierrors.NewConflict(podsResource().GroupResource(), name, errors.New("the object has been modified"))
	case p.UID != "" && p.UID != now.UID:
		return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), name,
			field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), p.UID, "field is immutable")})
	}
	p.UID = now.UID
	p = s.next(p, namespace)
	if err := s.objects.Update(podsResource(), p, namespace); err != nil {
		return true, nil, err
	}
	s.version++
	return true, p, nil
}

func (s *server) list(action clienttesting.Action) (bool, runtime.Object, error) {
	a, ok := action.(clienttesting.ListAction)
	if !ok {
		return false, nil, nil
	}
	obj, err := s.objects.List(podsResource(), corev1.SchemeGroupVersion.WithKind("Pod"), a.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	all, ok := obj.(*corev1.PodList)
	if !ok {
		return true, nil, fmt.Errorf("kubetest: %T is no list of pods", obj)
	}
	some := &corev1.PodList{ListMeta: all.ListMeta}
	for _, p := range all.Items {
		if selects(a.GetListRestrictions().Fields, &p) {
			some.Items = append(some.Items, p)
		}
	}
	return true, some, nil
}

func (s *server) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	a, ok := action.(clienttesting.WatchActionImpl)
	if !ok {
		return false, nil, nil
	}
	w, err := s.objects.Watch(podsResource(), a.GetNamespace(), a.ListOptions)
	if err != nil {
		return true, nil, err
	}
	return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		p, ok := e.Object.(*corev1.Pod)
		return e, !ok || selects(a.WatchRestrictions.Fields, p)
	}), nil
}

func selects(selector fields.Selector, p *corev1.Pod) bool {
	return selector == nil || selector.Matches(fields.Set{
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName,
	})
}

// merge applies a JSON merge patch.
func merge(p *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	doc, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	var target, change map[string]any
	if err := errors.Join(json.Unmarshal(doc, &target), json.Unmarshal(patch, &change)); err != nil {
		return nil, err
	}
	if doc, err = json.Marshal(merged(target, change)); err != nil {
		return nil, err
	}
	out := new(corev1.Pod)
	return out, json.Unmarshal(doc, out)
}

// merged is the recursion of RFC 7396.
func merged(target, patch any) any {
	change, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	fields, ok := target.(map[string]any)
	if !ok {
		fields = make(map[string]any, len(change))
	}
	for k, v := range change {
		if v == nil {
			delete(fields, k)
		} else {
			fields[k] = merged(fields[k], v)
		}
	}
	return fields
}
