package install

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/internal/fleet"
)

// object is one object of a manifest.
type object struct {
	kind schema.GroupVersionKind
	// namespace is "" where the manifest says none; whether that is the release's or
	// none at all is the kind's to say.
	namespace, name string
	content         map[string]any
}

// parse reads the objects of a manifest.
func parse(manifest, namespace string) ([]object, error) {
	var out []object
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest)))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the manifest: %w", err)
		}
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(text, &u.Object); err != nil {
			return nil, fmt.Errorf("reading the manifest: %w", err)
		}
		if len(u.Object) == 0 {
			continue
		}
		o := object{kind: u.GroupVersionKind(), namespace: u.GetNamespace(), name: u.GetName(), content: u.Object}
		if o.namespace == "" {
			o.namespace = namespace
		}
		out = append(out, o)
	}
}

// into makes the object a typed one.
func (o object) into(v any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.content, v); err != nil {
		return fmt.Errorf("reading %s %s of the manifest: %w", o.kind.Kind, o.name, err)
	}
	return nil
}

// agentSet is the DaemonSet of the agents.
type agentSet struct {
	appsv1.DaemonSet
}

// findAgent finds the DaemonSet of the agents in a manifest: by its label, or the
// only one there is.
func findAgent(objects []object) (*agentSet, error) {
	var found []*agentSet
	for _, o := range objects {
		if o.kind.Kind != "DaemonSet" {
			continue
		}
		a := &agentSet{}
		if err := o.into(&a.DaemonSet); err != nil {
			return nil, err
		}
		a.Namespace = o.namespace
		if a.Spec.Template.Labels[fleet.ComponentLabel] == fleet.Component {
			return a, nil
		}
		found = append(found, a)
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%d DaemonSets in the chart could be the agents', none has the label %s=%s", len(found), fleet.ComponentLabel, fleet.Component)
	}
	return found[0], nil
}

// pods selects the agents' Pods.
func (a *agentSet) pods() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(a.Spec.Selector)}
}
