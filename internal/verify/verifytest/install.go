package verifytest

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Install makes the cluster in an API server: two nodes "one" and "two" with an agent
// each, one sandbox, and the rights that an installation gives. No controller runs, so
// their parts are written too.
func Install(ctx context.Context, api kubernetes.Interface) error {
	for _, ns := range []string{AgentNamespace, OperatorNamespace, Runtimes} {
		if _, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return errors.Join(agents(ctx, api), others(ctx, api), claim(ctx, api), rights(ctx, api), pods(ctx, api))
}

func agents(ctx context.Context, api kubernetes.Interface) error {
	ds := AgentDaemonSet()
	status := ds.Status
	made, err := api.AppsV1().DaemonSets(ds.Namespace).Create(ctx, &ds, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status, made.Status.ObservedGeneration = status, made.Generation
	if _, err := api.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	for _, name := range []string{"one", "two"} {
		n := Node(name)
		if _, err := api.CoreV1().Nodes().Create(ctx, &n, metav1.CreateOptions{}); err != nil {
			return err
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ds.Namespace, Name: "agent-" + name, Labels: AgentLabels()}, Spec: ds.Spec.Template.Spec}
		p.Spec.NodeName = name
		status := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		if err := pod(ctx, api, p, status); err != nil {
			return err
		}
	}
	return nil
}

// pod makes a Pod as kubelet would have it.
func pod(ctx context.Context, api kubernetes.Interface, p *corev1.Pod, status corev1.PodStatus) error {
	made, err := api.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = status
	_, err = api.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// pods are the sandbox, one that has finished, and one that is nobody's concern.
func pods(ctx context.Context, api kubernetes.Interface) error {
	running, done := Sandbox(), Sandbox()
	done.Name = "done"
	other := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Runtimes, Name: "other"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
	return errors.Join(
		pod(ctx, api, &running, corev1.PodStatus{Phase: corev1.PodRunning}),
		pod(ctx, api, &done, corev1.PodStatus{Phase: corev1.PodSucceeded}),
		pod(ctx, api, &other, corev1.PodStatus{Phase: corev1.PodRunning}))
}

func others(ctx context.Context, api kubernetes.Interface) error {
	op := OperatorDeployment()
	_, err := api.AppsV1().Deployments(op.Namespace).Create(ctx, &op, metav1.CreateOptions{})
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: AgentNamespace, Name: "watch"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: AgentLabels()},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, Egress: []networkingv1.NetworkPolicyEgressRule{{}},
		},
	}
	_, policyErr := api.NetworkingV1().NetworkPolicies(AgentNamespace).Create(ctx, policy, metav1.CreateOptions{})
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "safe"}, Handler: "kata-qemu"}
	_, classErr := api.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{})
	return errors.Join(err, policyErr, classErr)
}

func claim(ctx context.Context, api kubernetes.Interface) error {
	claims := api.CoreV1().PersistentVolumeClaims(AgentNamespace)
	made, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "datalayer-shared-fs"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Phase = corev1.ClaimBound
	_, err = claims.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// rights are the agents' and the runtimes' roles.
func rights(ctx context.Context, api kubernetes.Interface) error {
	_, err := api.CoreV1().ServiceAccounts(Runtimes).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: RuntimeAccount().Name}, AutomountServiceAccountToken: ptr.To(false),
	}, metav1.CreateOptions{})
	return errors.Join(err,
		Allow(ctx, api, "agent", AgentAccount().Namespace, AgentAccount().Name, "pods", "get", "list", "watch", "patch"),
		Allow(ctx, api, "runtime", RuntimeAccount().Namespace, RuntimeAccount().Name, "pods", "get", "patch", "delete"))
}

// Allow lets a service account do something in the runtimes' namespace, by a Role of
// that name.
func Allow(ctx context.Context, api kubernetes.Interface, role, namespace, account, what string, verbs ...string) error {
	meta := metav1.ObjectMeta{Name: role, Namespace: Runtimes}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{what}, Verbs: verbs}}
	if _, err := api.RbacV1().Roles(Runtimes).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := api.RbacV1().RoleBindings(Runtimes).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	return err
}
