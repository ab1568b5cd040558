package install

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/verify"
)

// Operator is the Deployment that is the other half: it writes the grants.
type Operator struct {
	Namespace, Name string
	// Container is the one to set the variable of; "" is the only one, or the one that
	// has it.
	Container string
}

func (o Operator) String() string { return o.Namespace + "/" + o.Name }

// ParseOperator reads NAMESPACE/DEPLOYMENT, or NAMESPACE/DEPLOYMENT/CONTAINER.
func ParseOperator(text string) (Operator, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 {
		parts = append(parts, "")
	}
	valid := len(parts) == 3
	for i, p := range parts {
		optional := i == 2 && p == "" && strings.Count(text, "/") == 1
		valid = valid && (optional || len(validation.IsDNS1123Subdomain(p)) == 0)
	}
	if !valid {
		return Operator{}, advice.Usage(fmt.Errorf("--operator %.80q names no Deployment", text), "write NAMESPACE/DEPLOYMENT, or NAMESPACE/DEPLOYMENT/CONTAINER")
	}
	return Operator{parts[0], parts[1], parts[2]}, nil
}

// half is the operator's half as it was found.
type half struct {
	Operator
	// on is whether it writes grants; says, whether the container that the variable is
	// for does so by its own word; elsewhere, whether its value comes from somewhere else,
	// a ConfigMap for one, and is not known.
	on, says, elsewhere bool
}

// half finds the Deployment and which of its containers the variable is for.
func (c Cluster) half(ctx context.Context, o Operator) (*half, error) {
	d, err := c.Client.AppsV1().Deployments(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("looking for the operator's Deployment %s: %w", o, err)
	}
	spec := d.Spec.Template.Spec
	if o.Container, err = chooseContainer(spec.Containers, o); err != nil {
		return nil, err
	}
	h := &half{Operator: o, on: verify.OperatorOn(spec)}
	for _, c := range spec.Containers {
		if c.Name == o.Container {
			h.says = verify.ContainerOn(c)
			h.elsewhere = slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == gatewayVariable && e.ValueFrom != nil })
		}
	}
	return h, nil
}

func chooseContainer(all []corev1.Container, o Operator) (string, error) {
	var names, has []string
	for _, c := range all {
		names = append(names, c.Name)
		if c.Name == o.Container {
			return c.Name, nil
		}
		for _, e := range c.Env {
			if e.Name == gatewayVariable {
				has = append(has, c.Name)
			}
		}
	}
	switch {
	case o.Container != "":
		return "", advice.Usage(fmt.Errorf("%s has no container %q", o, o.Container), "it has "+strings.Join(names, ", "))
	case len(has) == 1:
		return has[0], nil
	case len(names) == 1:
		return names[0], nil
	}
	return "", advice.Usage(fmt.Errorf("which container of %s is the operator?", o), fmt.Sprintf("add it: --operator %s/CONTAINER, one of %s", o, strings.Join(names, ", ")))
}

// turn sets the variable. The Deployment replaces its Pods itself.
func (c Cluster) turn(ctx context.Context, h *half, to bool) error {
	if h.on == to && h.says == to && !h.elsewhere { // another container may be what is on
		c.tell("%s: %s is %t already", h.Operator, gatewayVariable, to)
		return nil
	}
	// valueFrom goes: where a ConfigMap gave the value, both would be refused.
	env := map[string]any{"name": gatewayVariable, "value": fmt.Sprint(to), "valueFrom": nil}
	containers := []any{map[string]any{"name": h.Container, "env": []any{env}}}
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": containers}}}})
	if err != nil {
		return fmt.Errorf("writing the patch: %w", err)
	}
	_, err = c.Client.AppsV1().Deployments(h.Namespace).Patch(ctx, h.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("setting %s=%t on the operator's Deployment %s: %w", gatewayVariable, to, h.Operator, err)
	}
	c.tell("%s: %s is %t now", h.Operator, gatewayVariable, to)
	return nil
}

// Switch is the command that turns the operator's half on or off by hand.
func (o Operator) Switch(to bool) string {
	command := fmt.Sprintf("kubectl -n %s set env deployment/%s %s=%t", o.Namespace, o.Name, gatewayVariable, to)
	if o.Container != "" {
		command += " -c " + o.Container
	}
	return command
}

// DefaultOperator is who is meant where nobody says.
func DefaultOperator() Operator {
	return Operator{Namespace: "NAMESPACE", Name: verify.DefaultOperator}
}

// onHalves are the operator's Deployments that are on: the one that was named, or
// those of its name in all namespaces. Who may not look finds none.
func (c Cluster) onHalves(ctx context.Context, named *Operator) ([]Operator, error) {
	if named != nil {
		h, err := c.half(ctx, *named)
		if err != nil || !h.on {
			return nil, err
		}
		return []Operator{h.Operator}, nil
	}
	list, err := c.Client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + verify.DefaultOperator})
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the operator: %w", err)
	}
	var out []Operator
	for i := range list.Items {
		if d := &list.Items[i]; verify.OperatorOn(d.Spec.Template.Spec) {
			out = append(out, Operator{Namespace: d.Namespace, Name: d.Name})
		}
	}
	return out, nil
}

// withHalf adds to an installation's failure that the operator's half is on: its
// Pods carry the volume and wait for mounts that nobody makes.
func (c Cluster) withHalf(ctx context.Context, named *Operator, failure error) error {
	if advice.Status(failure) == advice.StatusUsage {
		return failure // nothing was looked at
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanupBound)
	defer stop()
	halves, err := c.onHalves(ctx, named)
	if err != nil {
		return failure // it has a cause that matters more
	}
	errs := advice.Several{failure}
	for _, o := range halves {
		errs = append(errs, advice.With(
			fmt.Errorf("THE OPERATOR'S HALF IS ON (%s) and the agents' half has failed: where no agent runs, Pods wait for mounts that nobody makes", o),
			"until the agents are ready, turn it off: `"+o.Switch(false)+"`",
		))
	}
	if len(errs) == 1 {
		return failure
	}
	return errs
}
