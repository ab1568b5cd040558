package install

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/datalayer/node-mounts/internal/advice"
)

// goodLabel is the newest revision whose agents were seen ready on every node. Helm
// hands a release's labels on to its next revision, so a failed one knows it too.
const goodLabel = "node-mounts-good-revision"

// pendingBound is how long a release is believed to be at work. What is done while it
// is pending takes seconds: the rollout is waited for afterwards.
const pendingBound = 5 * time.Minute

// pending is what to tell of a release that another one works on, or worked on.
func (h *Helm) pending(last *release.Release) error {
	err := fmt.Errorf("release %s is %s: another installation runs, or one was killed", ReleaseName, last.Info.Status)
	switch {
	case time.Since(last.Info.LastDeployed) < pendingBound:
		return advice.With(err, "wait until it has ended, and repeat this command")
	case last.Info.Status == common.StatusPendingInstall:
		return advice.With(err, fmt.Sprintf("it has not ended in %s, and is the first: `node-mounts uninstall -n %s`, and repeat this command", pendingBound, h.namespace))
	}
	return advice.With(err, fmt.Sprintf("it has not ended in %s: when none runs, %s, and repeat this command", pendingBound, h.rollback(last)))
}

// remember notes that a revision's agents were seen ready. It is for later hints
// alone, so a failure is told and stops nothing.
func (h *Helm) remember(version int, tell func(string, ...any)) {
	good := strconv.Itoa(version)
	found, err := h.cfg.Releases.Get(ReleaseName, version)
	if err == nil {
		var r *release.Release
		if r, err = revision(found); err == nil && r.Labels[goodLabel] != good {
			if r.Labels == nil {
				r.Labels = map[string]string{}
			}
			r.Labels[goodLabel] = good
			err = h.cfg.Releases.Update(r)
		}
	}
	if err != nil {
		tell("warning: that revision %d is good could not be noted: %v", version, err)
	}
}

// rollback is the command that returns to the newest revision that was seen good.
func (h *Helm) rollback(last *release.Release) string {
	if version, err := strconv.Atoi(last.Labels[goodLabel]); err == nil {
		if _, err := h.cfg.Releases.Get(ReleaseName, version); err == nil {
			return fmt.Sprintf("`helm rollback %s %d -n %s`", ReleaseName, version, h.namespace)
		}
	}
	return fmt.Sprintf("`helm rollback %s REVISION -n %s` with one of `helm history %s -n %s` that worked", ReleaseName, h.namespace, ReleaseName, h.namespace)
}

// back says how to return to what was.
func (h *Helm) back(t *todo) string {
	if installed(t.last) {
		return "mend it and repeat this command, or return to what was: " + h.rollback(t.last)
	}
	return fmt.Sprintf("mend it and repeat this command, or take it away: `node-mounts uninstall -n %s`", h.namespace)
}

// afterFailure is what to do when a release could not be applied.
func (h *Helm) afterFailure(t *todo, err error) string {
	said := err.Error()
	switch {
	case errors.Is(err, driver.ErrReleaseExists), strings.Contains(said, "another operation (install/upgrade/rollback) is in progress"),
		strings.Contains(said, "cannot reuse a name that is still in use"):
		return "another installation runs at the same time: wait until it has ended, and repeat this command"
	case apierrors.IsConflict(err):
		return "somebody else has set these fields: put the values into the release (--set), or take the fields back with --force-conflicts; until then " + h.back(t)
	}
	return h.back(t)
}

// same tells whether a release is what would be made, and stands as it was applied.
func (h *Helm) same(ctx context.Context, last, made *release.Release) (bool, error) {
	if last == nil || last.Info.Status != common.StatusDeployed ||
		last.Manifest != made.Manifest || last.Chart.Metadata.Version != made.Chart.Metadata.Version {
		return false, nil
	}
	objects, err := h.cfg.KubeClient.Build(strings.NewReader(last.Manifest), false)
	if err != nil {
		return false, fmt.Errorf("reading the release: %w", err)
	}
	// One after another: a few dozen at most.
	for _, o := range objects {
		if err := h.own(o.Object); err != nil {
			return false, err
		}
		body, err := runtime.Encode(unstructured.UnstructuredJSONScheme, o.Object)
		if err != nil {
			return false, fmt.Errorf("reading the release: %w", err)
		}
		if err := o.Get(); apierrors.IsNotFound(err) {
			return false, nil // somebody has deleted it
		} else if err != nil {
			return false, fmt.Errorf("looking for %s: %w", o.ObjectName(), err)
		}
		force := true // whoever has changed it: what matters is whether it is changed
		would, err := o.Client.Patch(types.ApplyPatchType).
			NamespaceIfScoped(o.Namespace, o.Namespaced()).Resource(o.Mapping.Resource.Resource).Name(o.Name).
			VersionedParams(&metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, Force: &force, FieldManager: kube.ManagedFieldsManager}, scheme.ParameterCodec).
			Body(body).Do(ctx).Get()
		switch {
		case apierrors.IsForbidden(err):
			return false, nil // the preflight says what is missing
		case err != nil:
			return false, fmt.Errorf("comparing %s with the release: %w", o.ObjectName(), err)
		}
		alike, err := alike(o.Object, would)
		if err != nil || !alike {
			return false, err
		}
	}
	return true, nil
}

// own marks an object as Helm marks what it applies.
func (h *Helm) own(o runtime.Object) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return fmt.Errorf("reading the release: %w", err)
	}
	labels, annotations := m.GetLabels(), m.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels["app.kubernetes.io/managed-by"] = "Helm"
	annotations["meta.helm.sh/release-name"], annotations["meta.helm.sh/release-namespace"] = ReleaseName, h.namespace
	m.SetLabels(labels)
	m.SetAnnotations(annotations)
	return nil
}

// alike compares two states of an object, but for what every write changes.
func alike(a, b runtime.Object) (bool, error) {
	var contents [2]map[string]any
	for i, o := range []runtime.Object{a, b} {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return false, fmt.Errorf("comparing with the release: %w", err)
		}
		for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
			unstructured.RemoveNestedField(content, "metadata", field)
		}
		contents[i] = content
	}
	return reflect.DeepEqual(contents[0], contents[1]), nil
}
