package verify_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/internal/verify/verifytest"
)

// tellers are agents that answer so.
type tellers struct {
	answers []verify.NodeAnswer
	err     error
}

func (a tellers) Nodes(context.Context) ([]verify.NodeAnswer, error) { return a.answers, a.err }

// gathersWhatIsThere: what is gathered of a healthy cluster is judged healthy, and a
// change of what is there changes one row.
func gathersWhatIsThere(t *testing.T, api testAPI) {
	c := verify.Cluster{API: api.admin, Agents: tellers{answers: healthy().Answers.Value}}
	f := verify.Gather(t.Context(), c)
	expect(t, verify.Judge(f), map[string]verify.Status{runtimeGrants: verify.Warn})
	silent := verify.Gather(t.Context(), verify.Cluster{API: api.admin, Agents: tellers{answers: []verify.NodeAnswer{{Node: "one"}}}})
	if found := of(verify.Judge(silent), enabled); verify.Worst(found) != verify.Fail {
		t.Errorf("an agent that tells nothing, without an error: %+v", found)
	}
	if len(f.Pods.Value) != 1 || f.Pods.Value[0].Name != "sandbox" {
		t.Errorf("the Pods are %v", stillThere(f.Pods.Value))
	}
	if len(f.API.Value) < 2 || f.Handlers.Value["safe"] != "kata-qemu" {
		t.Errorf("the API server is at %v, the handlers are %v (%v)", f.API.Value, f.Handlers.Value, f.Handlers.Err)
	}

	must(t, verifytest.Allow(t.Context(), api.admin, "secrets", agentAccount.Namespace, agentAccount.Name, "secrets", "get"))
	rest := map[string]verify.Status{runtimeGrants: verify.Warn, secretAccess: verify.Fail}
	expect(t, verify.Judge(verify.Gather(t.Context(), c)), rest)

	must(t, api.admin.RbacV1().RoleBindings(runtimes).Delete(t.Context(), "agent", metav1.DeleteOptions{}))
	rest[mayPatch] = verify.Fail
	expect(t, verify.Judge(verify.Gather(t.Context(), c)), rest)

	must(t, api.admin.CoreV1().ServiceAccounts(runtimes).Delete(t.Context(), runtimeAccount.Name, metav1.DeleteOptions{}))
	rest[runtimeGrants] = verify.Fail
	expect(t, verify.Judge(verify.Gather(t.Context(), c)), rest)

	must(t, api.admin.CoreV1().PersistentVolumeClaims(agentNamespace).Delete(t.Context(), "datalayer-shared-fs", metav1.DeleteOptions{}))
	rest[claim] = verify.Warn // in use, by its finalizer
	expect(t, verify.Judge(verify.Gather(t.Context(), c)), rest)
}

// gathersWhatItMay: an account that may list DaemonSets and nothing else.
func gathersWhatItMay(t *testing.T, api testAPI) {
	reader, _ := api.User(t, "reader", rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"list"}})
	f := verify.Gather(t.Context(), verify.Cluster{API: reader, Agents: tellers{err: errors.New("pods is forbidden")}})
	if f.DaemonSets.Err != nil {
		t.Errorf("the DaemonSets: %v", f.DaemonSets.Err)
	}
	for what, err := range map[string]error{
		"nodes": f.Nodes.Err, "pods": f.Pods.Err, "deployments": f.Operators.Err, "classes": f.Handlers.Err, "policies": f.Policies.Err, "services": f.API.Err, "agents": f.Answers.Err,
	} {
		if err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, r := range verify.Judge(f) {
		if r.Status == verify.OK && r.Check != daemonSet {
			t.Errorf("what could not be read is ok: %+v", r)
		}
	}
}

// expect fails the test for every row that is not OK, or not what rest says.
func expect(t *testing.T, results []verify.Result, rest map[string]verify.Status) {
	t.Helper()
	for _, c := range verify.Checks() {
		want, ok := rest[c.Name]
		if !ok {
			want = verify.OK
		}
		if found := of(results, c.Name); verify.Worst(found) != want || len(found) == 0 {
			t.Errorf("want %s: %+v", want, found)
		}
	}
	if slices.ContainsFunc(results, func(r verify.Result) bool { return r.Check == "" }) {
		t.Error("a result of no check")
	}
}
