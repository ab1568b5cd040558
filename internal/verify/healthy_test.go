package verify_test

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/internal/verify/verifytest"
	"github.com/datalayer/node-mounts/operator"
)

const (
	agentNamespace = verifytest.AgentNamespace
	runtimes       = verifytest.Runtimes
	volume         = grant.DefaultVolumeName
)

var agentAccount, runtimeAccount = verifytest.AgentAccount(), verifytest.RuntimeAccount()

func settings() verify.Settings {
	return verify.Settings{
		Names: grant.NamesFor(""), Volume: volume, Operator: verify.DefaultOperator,
		RuntimeAccount: verify.DefaultRuntimeAccount, Companions: []string{operator.DefaultCompanion},
		SandboxedRuntimes: []string{"gvisor", "kata"},
	}
}

// healthy is a cluster of two nodes with one pooled Pod, as it is right after an
// installation.
func healthy() verify.Facts {
	f := verify.Facts{
		Settings:   settings(),
		DaemonSets: verify.Known[[]appsv1.DaemonSet]{Value: []appsv1.DaemonSet{verifytest.AgentDaemonSet()}},
		Answers: verify.Known[[]verify.NodeAnswer]{Value: []verify.NodeAnswer{
			{Node: "one", Pod: "agent-1", Ready: true, Document: verifytest.Document("one")},
			{Node: "two", Pod: "agent-2", Ready: true, Document: verifytest.Document("two")},
		}},
		Nodes:     verify.Known[[]corev1.Node]{Value: []corev1.Node{verifytest.Node("one"), verifytest.Node("two")}},
		Operators: verify.Known[[]appsv1.Deployment]{Value: []appsv1.Deployment{verifytest.OperatorDeployment()}},
		Pods:      verify.Known[[]corev1.Pod]{Value: []corev1.Pod{verifytest.Sandbox()}},
		API:       verify.Known[[]verify.Address]{Value: addresses()},
		Claim: verify.Known[*corev1.PersistentVolumeClaim]{Value: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "datalayer-shared-fs"},
			Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}},
		Automount: map[verify.Account]verify.Known[*bool]{runtimeAccount: {Value: ptr.To(false)}},
		May:       map[verify.Question]verify.Known[bool]{},
	}
	for _, verb := range []string{"get", "list", "watch", "patch"} {
		may(agentAccount, verb, "pods", "", runtimes, true)(&f)
	}
	for _, ns := range []string{"", agentNamespace, runtimes, "kube-system", "default"} {
		for _, verb := range []string{"get", "list", "watch"} {
			may(agentAccount, verb, "secrets", "", ns, false)(&f)
		}
	}
	for _, verb := range []string{"patch", "update", "create"} {
		may(runtimeAccount, verb, "pods", "", runtimes, verb == "patch")(&f)
		may(runtimeAccount, verb, "pods", "status", runtimes, false)(&f)
	}
	return f
}
