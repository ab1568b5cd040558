// Package verifytest has a cluster on which every check of verify passes: its
// objects one by one, for a test to spoil, and as a whole in an API server.
package verifytest

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/operator"
)

// Namespaces of the cluster.
const (
	AgentNamespace    = "datalayer-system"
	OperatorNamespace = "datalayer-api"
	Runtimes          = verify.DefaultNamespace
)

// AgentAccount is the agents' service account.
func AgentAccount() verify.Account {
	return verify.Account{Namespace: AgentNamespace, Name: "datalayer-node-mounts"}
}

// RuntimeAccount is the runtimes'.
func RuntimeAccount() verify.Account {
	return verify.Account{Namespace: Runtimes, Name: verify.DefaultRuntimeAccount}
}

// Node is a Linux node.
func Node(name string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
}

// Document is what the agent of a healthy node tells.
func Document(node string) *nodeview.Node {
	return &nodeview.Node{
		Node: node, Namespace: Runtimes, Version: "v1.2.3", Ready: true, KubeletDir: "/var/lib/kubelet",
		Root: nodeview.DefaultRoot, VolumeName: grant.DefaultVolumeName,
		Facts: nodeview.Facts{
			Kernel: "6.8.0-1057-aws", MountSetattr: true, KubeletPropagation: nodeview.Shared, RootPropagation: nodeview.Shared, KubeletFound: true,
			Claim: nodeview.Claim{Path: nodeview.DefaultSharedRoot, Mounted: true, Filesystem: "nfs4", Backing: nodeview.BackedByKernel, Answers: true},
		},
		Serves: []grant.Kind{grant.KindPlain, grant.KindFiles, grant.KindSharedFolder, grant.KindCloudStorage},
		Keeper: &nodeview.Keeper{There: true, Version: "v1.2.3", Instance: "KEEPER", Children: 1},
		Pods:   []nodeview.Pod{{UID: "u", Namespace: Runtimes, Name: "sandbox", Published: true, Tree: "tmpfs"}},
	}
}

// ClaimVolume is a volume of the shared claim.
func ClaimVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "datalayer-shared-fs"},
	}}
}

// AgentDaemonSet is the agents' DaemonSet, ready on two nodes.
func AgentDaemonSet() appsv1.DaemonSet {
	return appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: AgentNamespace, Name: "datalayer-node-mounts", Labels: AgentLabels()},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: AgentLabels()},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: AgentLabels()},
				Spec: corev1.PodSpec{
					ServiceAccountName: "datalayer-node-mounts",
					Volumes:            []corev1.Volume{ClaimVolume("shared")},
					Containers: []corev1.Container{{
						Name: fleet.Container, Image: "example.org/node-mounts:v1.2.3",
						VolumeMounts: []corev1.VolumeMount{{Name: "shared", MountPath: nodeview.DefaultSharedRoot}},
					}},
				},
			},
		},
		Status: appsv1.DaemonSetStatus{NumberReady: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2},
	}
}

// OperatorDeployment is an Operator whose half is on.
func OperatorDeployment() appsv1.Deployment {
	labels := map[string]string{"app": "operator"}
	return appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: OperatorNamespace, Name: verify.DefaultOperator},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "operator", Image: "example.org/operator", Env: []corev1.EnvVar{{Name: verify.EnabledVariable, Value: "true"}},
				}}},
			},
		},
	}
}

// TokenVolume is a projected volume with the account's token.
func TokenVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
	}}}
}

// Sandbox is a pooled Pod as it should be: the one token is the companion's.
func Sandbox() corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Runtimes, Name: "sandbox", Labels: map[string]string{grant.NamesFor("").Label: "true"}},
		Spec: corev1.PodSpec{
			NodeName: "two", ServiceAccountName: verify.DefaultRuntimeAccount,
			SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Volumes: []corev1.Volume{
				{Name: grant.DefaultVolumeName, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
				TokenVolume("token"),
			},
			InitContainers: []corev1.Container{{Name: "block-cloud-metadata", Image: "tools"}},
			Containers: []corev1.Container{
				{Name: "runtime", Image: "sandbox", VolumeMounts: []corev1.VolumeMount{{
					Name: grant.DefaultVolumeName, MountPath: "/mnt/datalayer", MountPropagation: ptr.To(corev1.MountPropagationHostToContainer),
				}}},
				{Name: operator.DefaultCompanion, Image: "companion"},
			},
		},
	}
	MountToken(&p.Spec.Containers[1])
	return p
}

// MountToken mounts the volume "token" where clients look for one.
func MountToken(c *corev1.Container) {
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"})
}

// AgentLabels are what the agents are found by.
func AgentLabels() map[string]string {
	return map[string]string{fleet.NameLabel: fleet.Name, fleet.ComponentLabel: fleet.Component}
}
