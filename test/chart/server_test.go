package chart

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
)

var names = grant.NamesFor("")

const (
	nodeOne, nodeTwo = "node-1", "node-2"
	operatorUser     = "system:serviceaccount:ops:operator"
)

// judge is a real API server with the policies of the chart in force.
type judge struct {
	admin   kubernetes.Interface
	config  *rest.Config
	podList int
}

// newJudge starts one. Everybody may do everything as far as RBAC is concerned: what
// is refused, the policies refuse.
func newJudge(t *testing.T, values ...string) *judge {
	t.Helper()
	server := servertest.Start(t)
	j := &judge{admin: server.Client(t), config: server.Admin}
	ctx := t.Context()
	for _, name := range []string{namespace, runtimes, "elsewhere"} {
		_, err := j.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		ok(t, err)
	}
	_, err := j.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everybody"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
	}, metav1.CreateOptions{})
	ok(t, err)
	j.apply(t, must(t, append([]string{least}, values...)...))
	return j
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// apply creates the policies of a rendering, or puts them in the place of those
// before, and waits until each is in force.
func (j *judge) apply(t *testing.T, r rendered) {
	t.Helper()
	ctx, api := t.Context(), j.admin.AdmissionregistrationV1()
	for _, p := range all[*admissionv1.ValidatingAdmissionPolicy](r.objects) {
		_ = api.ValidatingAdmissionPolicies().Delete(ctx, p.Name, metav1.DeleteOptions{})
		_, err := api.ValidatingAdmissionPolicies().Create(ctx, p, metav1.CreateOptions{})
		ok(t, err)
	}
	for _, b := range all[*admissionv1.ValidatingAdmissionPolicyBinding](r.objects) {
		_ = api.ValidatingAdmissionPolicyBindings().Delete(ctx, b.Name, metav1.DeleteOptions{})
		_, err := api.ValidatingAdmissionPolicyBindings().Create(ctx, b, metav1.CreateOptions{})
		ok(t, err)
	}
	j.await(t, "the grants' policy", func(ctx context.Context) error {
		p := pod("sentinel-ready")
		p.Annotations = map[string]string{names.Ready: "{}"}
		return j.create(ctx, j.as(t, user{}), runtimes, p, true)
	})
	_, err := j.admin.CoreV1().Pods(namespace).Create(ctx, pod(fullname+"-sentinel"), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	j.await(t, "the agents' policy", func(ctx context.Context) error {
		return j.as(t, serviceAccount(runtimes, "datalayer-runtimes-sa", "")).CoreV1().Pods(namespace).Delete(ctx, fullname+"-sentinel", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	})
	j.await(t, "the Pods' policy", func(ctx context.Context) error {
		p := gatewayPod()
		p.Spec.Volumes[0].EmptyDir.Medium = ""
		return j.create(ctx, j.as(t, user{}), runtimes, p, true)
	})
}

// await waits until a request is refused, by a policy unless by says otherwise.
func (j *judge) await(t *testing.T, what string, refused func(context.Context) error, by ...func(error) bool) {
	t.Helper()
	by = append(by, isPolicy)
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := refused(ctx)
		if ctx.Err() == nil {
			last = err
		}
		return by[0](err), nil
	})
	if err != nil {
		t.Fatalf("%s is not in force: %v; the last answer: %v", what, err, last)
	}
}

func (j *judge) until(t *testing.T, what string, allowed func(context.Context) error) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return allowed(ctx) == nil, nil
	})
	if err != nil {
		t.Fatalf("never seen: %s: %v", what, err)
	}
}

func forbidden(err error) bool { return apierrors.IsForbidden(err) }

// isPolicy says whether a request was refused by a policy and nothing else.
func isPolicy(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") && !strings.Contains(err.Error(), "resulted in error")
}

// user is somebody who asks; the zero value is the administrator.
type user struct {
	name   string
	groups []string
	node   string // the node of a token that is bound to a Pod
}

func (u user) String() string {
	if u.name == "" {
		return "an administrator"
	}
	if u.node != "" {
		return u.name + " on " + u.node
	}
	return u.name
}

func serviceAccount(namespace, name, node string) user {
	return user{"system:serviceaccount:" + namespace + ":" + name, []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}, node}
}

func (j *judge) as(t testing.TB, u user) kubernetes.Interface {
	t.Helper()
	cfg := rest.CopyConfig(j.config)
	cfg.QPS = -1
	if u.name != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: u.name, Groups: append([]string{"system:authenticated"}, u.groups...)}
		if u.node != "" {
			cfg.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {u.node}}
		}
	}
	c, err := kubernetes.NewForConfig(cfg)
	ok(t, err)
	return c
}

func (j *judge) create(ctx context.Context, client kubernetes.Interface, namespace string, p *corev1.Pod, dry bool) error {
	opts := metav1.CreateOptions{}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	_, err := client.CoreV1().Pods(namespace).Create(ctx, p, opts)
	return err
}

// put makes a Pod in the cluster as it is, whatever the policies think of it: an
// administrator may write grants, the agent answers.
func (j *judge) put(t *testing.T, namespace string, p *corev1.Pod, answer string) *corev1.Pod {
	t.Helper()
	j.podList++
	p.Name = fmt.Sprintf("pod-%d", j.podList)
	made, err := j.admin.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
	ok(t, err)
	if answer != "" {
		ok(t, j.patch(t.Context(), j.as(t, agentOn(p.Spec.NodeName)), made, annotations(names.Ready, answer)))
	}
	return made
}

func agentOn(node string) user { return serviceAccount(namespace, fullname, node) }

// pod is one that nobody grants to.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:   nodeOne,
			Containers: []corev1.Container{{Name: "main", Image: "sandbox"}},
		},
	}
}

// gatewayPod is a pooled Pod as the reference describes it.
func gatewayPod() *corev1.Pod {
	p := pod("sandbox")
	p.Labels = map[string]string{names.Label: "true"}
	p.Spec = corev1.PodSpec{
		NodeName:                     nodeOne,
		ServiceAccountName:           "datalayer-runtimes-sa",
		AutomountServiceAccountToken: ptr.To(false),
		SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		InitContainers: []corev1.Container{{
			Name: "block-cloud-metadata", Image: "route",
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
		}},
		Containers: []corev1.Container{{
			Name: "runtime", Image: "sandbox",
			VolumeMounts: []corev1.VolumeMount{{
				Name: "node-mount-gateway", MountPath: "/mnt/datalayer",
				MountPropagation: ptr.To(corev1.MountPropagationHostToContainer),
			}},
		}, {
			Name: "companion", Image: "companion",
			VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/companion", ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{{
			Name: "node-mount-gateway",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
				Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi")),
			}},
		}, {
			Name: "token",
			VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
				ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"},
			}}}},
		}},
	}
	return p
}

// verdict wants a request refused with the text, or allowed where it is "".
func verdict(t *testing.T, err error, says string) {
	t.Helper()
	switch {
	case says == "" && err != nil:
		t.Errorf("it is refused: %v", err)
	case says != "" && err == nil:
		t.Errorf("it is allowed; want it refused with %q", says)
	case says != "" && (!isPolicy(err) || !strings.Contains(err.Error(), says)):
		t.Errorf("it is refused with %q; want %q by a policy", err, says)
	case says != "" && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err):
		t.Errorf("refused with a %T: %v", err, err)
	}
}

func runtimeClasses(t *testing.T, j *judge, classes ...string) {
	t.Helper()
	for _, name := range classes {
		_, err := j.admin.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "runc"}, metav1.CreateOptions{})
		ok(t, err)
		j.until(t, "the runtime class "+name, func(ctx context.Context) error {
			p := pod("sentinel")
			p.Spec.RuntimeClassName = &name
			return j.create(ctx, j.admin, "elsewhere", p, true)
		})
	}
}
