package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// rights lists what the objects let the accounts do: "account: verbs resources
// in namespace".
func rights(t testing.TB, objects []runtime.Object) []string {
	t.Helper()
	var list []string
	give := func(subjects []rbacv1.Subject, where string, rules []rbacv1.PolicyRule) {
		for _, s := range subjects {
			for _, r := range rules {
				if len(r.NonResourceURLs)+len(r.ResourceNames) > 0 || len(r.APIGroups) != 1 {
					t.Errorf("an unusual rule: %+v", r)
				}
				group := ""
				if r.APIGroups[0] != "" {
					group = "." + r.APIGroups[0]
				}
				list = append(list, fmt.Sprintf("%s/%s: %s %s%s in %s", s.Namespace, s.Name, strings.Join(r.Verbs, ","),
					strings.Join(r.Resources, ","), group, where))
			}
		}
	}
	for _, b := range all[*rbacv1.RoleBinding](objects) {
		role := named[*rbacv1.Role](t, objects, b.RoleRef.Name)
		if b.Namespace != role.Namespace || b.RoleRef.Kind != "Role" {
			t.Errorf("the binding %s/%s is of %s %s/%s", b.Namespace, b.Name, b.RoleRef.Kind, role.Namespace, role.Name)
		}
		give(b.Subjects, b.Namespace, role.Rules)
	}
	for _, b := range all[*rbacv1.ClusterRoleBinding](objects) {
		give(b.Subjects, "all namespaces", named[*rbacv1.ClusterRole](t, objects, b.RoleRef.Name).Rules)
	}
	slices.Sort(list)
	return list
}

func TestTheAgentMayDoThisAndNothingElse(t *testing.T) {
	const agent = namespace + "/" + fullname
	for name, test := range map[string]struct {
		values string
		want   []string
	}{
		"in one namespace": {"{}", []string{agent + ": create,patch events in datalayer-runtimes", agent + ": get,list,watch,patch pods in datalayer-runtimes"}},
		"in another":       {"nodeMountGateway: {namespace: other}", []string{agent + ": create,patch events in other", agent + ": get,list,watch,patch pods in other"}},
		"in all":           {`nodeMountGateway: {namespace: ""}`, []string{agent + ": create,patch events in all namespaces", agent + ": get,list,watch,patch pods in all namespaces"}},
		"with credentials": {"nodeMountGateway: {credentials: true}", []string{
			agent + ": create,patch events in datalayer-runtimes", agent + ": get secrets in datalayer-runtimes",
			agent + ": get,list,watch,patch pods in datalayer-runtimes",
		}},
		"with credentials, in all": {`nodeMountGateway: {namespace: "", events: false, credentials: true}`, []string{
			agent + ": get secrets in datalayer-runtimes", agent + ": get,list,watch,patch pods in all namespaces",
		}},
		"with buckets": {"nodeMountGateway: {events: false, buckets: true, credentials: true}", []string{
			agent + ": get secrets in datalayer-runtimes", agent + ": get,list,watch,patch pods in datalayer-runtimes", agent + ": list pods in " + namespace,
		}},
		"without events":                      {"nodeMountGateway: {events: false}", []string{agent + ": get,list,watch,patch pods in datalayer-runtimes"}},
		"with a holder, which may do nothing": {"{nodeMountGateway: {events: false}, claimHolder: {enabled: true}}", []string{agent + ": get,list,watch,patch pods in datalayer-runtimes"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := rights(t, must(t, least, test.values).objects); !slices.Equal(got, test.want) {
				t.Errorf("it may\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestTheTestsRightsAreHooksThatGo(t *testing.T) {
	r := must(t, least)
	const account = namespace + "/" + fullname + "-verify"
	want := []string{
		account + ": create subjectaccessreviews.authorization.k8s.io in all namespaces",
		account + ": get persistentvolumeclaims in " + namespace,
		account + ": get serviceaccounts,services in all namespaces",
		account + ": get,create pods/exec in " + namespace,
		account + ": list daemonsets,deployments.apps in all namespaces",
		account + ": list endpointslices.discovery.k8s.io in all namespaces",
		account + ": list networkpolicies.networking.k8s.io in all namespaces",
		account + ": list nodes,pods in all namespaces",
		account + ": list runtimeclasses.node.k8s.io in all namespaces",
	}
	if got := rights(t, r.hooks); !slices.Equal(got, want) {
		t.Errorf("it may\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	gone := 0
	for _, o := range r.hooks {
		meta, ok := o.(interface {
			GetAnnotations() map[string]string
			GetName() string
		})
		if !ok {
			t.Fatalf("a %T has no annotations", o)
		}
		if meta.GetAnnotations()["helm.sh/hook"] != "test" {
			t.Errorf("%s is there without a test", meta.GetName())
		}
		if strings.Contains(meta.GetAnnotations()["helm.sh/hook-delete-policy"], "hook-succeeded") {
			gone++
		}
	}
	if gone != len(r.hooks)-1 {
		t.Errorf("%d of %d hooks go; all but the Pod, which keeps the log, must", gone, len(r.hooks))
	}
}
