package install

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/internal/verify"
)

// right is something that the caller needs.
type right struct {
	verb, group, resource, subresource, namespace string
}

func (r right) String() string {
	what := r.resource
	if r.subresource != "" {
		what += "/" + r.subresource
	}
	if r.group != "" {
		what += "." + r.group
	}
	where := "in all namespaces"
	if r.namespace != "" {
		where = "in " + r.namespace
	}
	return fmt.Sprintf("%s %s %s", r.verb, what, where)
}

// checkRights asks the API server whether the caller may do everything that the
// installation and the probe will do.
func (c Cluster) checkRights(ctx context.Context, r Request, t *todo) ([]Row, error) {
	needed, unserved, err := c.rights(t)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, kind := range unserved {
		rows = append(rows, rowOf(rowRights, "", verify.Fail, "the API server does not serve "+kind, "switch off the value of the chart that makes one"))
	}
	for _, verb := range []string{"get", "list", "create", "update", "delete"} { // a release is a Secret
		needed[right{verb, "", "secrets", "", r.Namespace}] = true
	}
	for _, verb := range []string{"list", "create", "delete"} { // the probe
		needed[right{verb, "", "pods", "", r.Namespace}] = true
	}
	if r.Operator != nil {
		for _, verb := range []string{"get", "patch"} {
			needed[right{verb, "apps", "deployments", "", r.Operator.Namespace}] = true
		}
	}
	var missing []string
	for need := range needed {
		may, err := c.may(ctx, need)
		if err != nil {
			return rows, err
		}
		if !may {
			missing = append(missing, need.String())
		}
	}
	granted, err := c.mayGrant(ctx, t.objects)
	if err != nil {
		return rows, err
	}
	missing = append(missing, granted...)
	if len(missing) == 0 {
		return append(rows, Row{Check: rowRights, Status: verify.OK, Detail: fmt.Sprintf("%d asked for", len(needed))}), nil
	}
	slices.Sort(missing)
	return append(rows, rowOf(
		rowRights, "", verify.Fail, "you may not "+strings.Join(slices.Compact(missing), ", "),
		"install as an administrator of the cluster: `kubectl auth can-i --list` shows what your account may do",
	)), nil
}

// rights are what applying the objects and taking them away again needs, and the
// kinds that the server does not know.
func (c Cluster) rights(t *todo) (map[right]bool, []string, error) {
	mapper, err := c.Helm.connection.ToRESTMapper()
	if err != nil {
		return nil, nil, err
	}
	needed := map[right]bool{}
	unserved := map[string]bool{}
	for _, o := range t.objects {
		m, err := mapper.RESTMapping(o.kind.GroupKind(), o.kind.Version)
		if meta.IsNoMatchError(err) {
			unserved[o.kind.String()] = true
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("asking which resource a %s is: %w", o.kind.Kind, err)
		}
		namespace := o.namespace
		if m.Scope.Name() == meta.RESTScopeNameRoot {
			namespace = ""
		}
		for _, verb := range []string{"get", "create", "patch", "delete"} {
			needed[right{verb, m.Resource.Group, m.Resource.Resource, "", namespace}] = true
		}
	}
	return needed, slices.Sorted(maps.Keys(unserved)), nil
}

// mayGrant lists what the roles among the objects grant and the caller does not
// have: the API server refuses such a role, unless its maker may escalate.
func (c Cluster) mayGrant(ctx context.Context, objects []object) ([]string, error) {
	var missing []string
	for _, o := range objects {
		if o.kind.Kind != "Role" && o.kind.Kind != "ClusterRole" {
			continue
		}
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := o.into(&role); err != nil {
			return nil, err
		}
		namespace, resource := o.namespace, "roles"
		if o.kind.Kind == "ClusterRole" {
			namespace, resource = "", "clusterroles"
		}
		escalates, err := c.may(ctx, right{"escalate", rbacv1.GroupName, resource, "", namespace})
		if err != nil {
			return nil, err
		}
		if escalates {
			continue
		}
		for _, need := range grants(role.Rules, namespace) {
			may, err := c.may(ctx, need)
			if err != nil {
				return nil, err
			}
			if !may {
				missing = append(missing, need.String()+" (the agent's role grants it, and you cannot grant what you do not have)")
			}
		}
	}
	return missing, nil
}

// grants are the rights in rules.
func grants(rules []rbacv1.PolicyRule, namespace string) []right {
	var out []right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				name, sub, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					out = append(out, right{verb, group, name, sub, namespace})
				}
			}
		}
	}
	return out
}

func (c Cluster) may(ctx context.Context, r right) (bool, error) {
	review, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.namespace, Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking what you may do: %w", err)
	}
	return review.Status.Allowed, nil
}
