package system_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
)

// cluster is the API server that tests share, and everybody's rights in it.
type cluster struct {
	server *servertest.Server
	admin  kubernetes.Interface
	names  grant.Names
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := servertest.Start(t)
	// The tests play kubelet and the operators of many nodes, and must not wait
	// for their own client's limit.
	cfg := rest.CopyConfig(s.Admin)
	cfg.QPS, cfg.Burst = 1000, 1000
	admin, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	return &cluster{server: s, admin: admin, names: grant.NamesFor("")}
}

// podRules are all that the agent needs.
func podRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "patch"}}}
}

// agentRules are all that it has: it also writes events where it may.
func agentRules() []rbacv1.PolicyRule {
	return append(podRules(), rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
}

// namespace makes a namespace, and a user who may do in it what the rules say. It
// returns the user's kubeconfig.
func (c *cluster) namespace(t *testing.T, name string, rules []rbacv1.PolicyRule) (kubeconfig string) {
	t.Helper()
	ctx := t.Context()
	_, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	meta := metav1.ObjectMeta{Name: "agent", Namespace: name}
	user := "agent-" + name
	_, err = c.admin.RbacV1().Roles(name).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.admin.RbacV1().RoleBindings(name).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	must(t, err)
	return c.server.Kubeconfig(t, user)
}

// allow changes what the namespace's user may do in it.
func (c *cluster) allow(t *testing.T, namespace string, rules []rbacv1.PolicyRule) {
	t.Helper()
	_, err := c.admin.RbacV1().Roles(namespace).Update(t.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: namespace}, Rules: rules}, metav1.UpdateOptions{})
	must(t, err)
}

// configOf reads a kubeconfig.
func configOf(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	return cfg
}

// plainKubeconfig is a kubeconfig for a server without TLS that asks for nobody's
// name: a proxy of the test, which has credentials of its own.
func plainKubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q}}]
users: [{name: test, user: {}}]
`, url)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
