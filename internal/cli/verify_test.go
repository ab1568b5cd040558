package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/internal/fleet/fleettest"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/internal/verify/verifytest"
)

// verified is a cluster as verify sees it: a real API server, in front of which
// commands in the agents' containers are answered.
type verified struct {
	*servertest.Server
	kubeconfig string

	mu   sync.Mutex
	told map[string]nodeview.Node // by the agent's Pod; one that is missing serves none
}

func newVerified(t *testing.T) *verified {
	t.Helper()
	v := &verified{Server: servertest.Start(t), told: map[string]nodeview.Node{}}
	must(t, verifytest.Install(t.Context(), v.Client(t)))
	for _, node := range []string{"one", "two"} {
		v.tells(node, func(*nodeview.Node) {})
	}
	transport, err := rest.TransportFor(v.Admin)
	must(t, err)
	to, err := url.Parse(v.Admin.Host)
	must(t, err)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/exec") {
			fleettest.Exec(w, r, v.exec)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	v.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, writeKubeconfig(&rest.Config{Host: server.URL}, "default", v.kubeconfig))
	return v
}

func (v *verified) exec(path, container string, command []string) fleettest.Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	parts := strings.Split(path, "/")
	document, ok := v.told[parts[len(parts)-2]]
	if !ok || container != "driver" || !slices.Equal(command, []string{"node-mounts-agent", "gateway"}) {
		return fleettest.Result{Code: 1, Stderr: "error: ask the agent: connection refused\n"}
	}
	text, err := json.Marshal(document)
	if err != nil {
		return fleettest.Result{Code: 1, Stderr: err.Error()}
	}
	return fleettest.Result{Stdout: string(text)}
}

// tells changes what the agent of a healthy node tells.
func (v *verified) tells(node string, change func(*nodeview.Node)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := verifytest.Document(node)
	change(d)
	v.told["agent-"+node] = *d
}

func (v *verified) run(t *testing.T, args ...string) ran {
	t.Helper()
	got := run(t, append([]string{"verify", "--kubeconfig", v.kubeconfig}, args...)...)
	if !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "json") || a == "yaml" }) {
		got.out = regexp.MustCompile(" {2,}").ReplaceAllString(got.out, "  ") // columns are as wide as they must be
	}
	return got
}

func TestVerify(t *testing.T) {
	v := newVerified(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *verified)
	}{
		{"a healthy cluster ends with status 0 and a warning", healthyIsOK},
		{"a failed check ends with status 3 in every form", failureEndsWithThree},
		{"an agent that serves no gateway is told apart from one that cannot be asked", noGateway},
		{"the agent's half alone is what may be asked for", agentOnly},
		{"an account that may not ask agents is told so", mayNotExec},
		{"a probe says what it cannot do, and leaves no Pod", probeCannot},
		{"a probe that is interrupted is no verdict", probeInterrupted},
		{"a node that is not there is not probed", probeOfNoNode},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, v) })
	}
}

func healthyIsOK(t *testing.T, v *verified) {
	got := v.run(t)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	for _, part := range []string{
		"CHECK  STATUS  NODE  DETAIL\n",
		"\nNode driver DaemonSet  ok  -  2/2 ready\n",
		"\nMount propagation (rshared)  ok  2 nodes  shared\n",
		"\nKernel supports mount_setattr (5.12+)  ok  2 nodes  6.8.0-1057-aws\n",
		"\nOperator and agent agree  ok  -  both halves on\n",
		"\nShared filesystem claim  ok  -  datalayer-shared-fs\n",
		"\nA runtime may NOT grant itself a mount  warn  -  datalayer-runtimes-sa can patch pods: yes; its token is not in any container that runs user code\n",
		"\nAgent Secret access matches config  ok  -  can-i get secrets: no; credentials off\n",
		"\nNo leaked mounts  ok  2 nodes  0 mount(s) would not unmount\n",
		"\n22 checks: 21 ok, 1 warn, 0 fail, 0 skip\n",
	} {
		if !strings.Contains(got.out, part) {
			t.Errorf("no %q in\n%s", part, got.out)
		}
	}
	if !strings.HasPrefix(got.err, "hint: A runtime may NOT grant itself a mount: ") || strings.Contains(got.err, "error:") {
		t.Errorf("on standard error: %s", got.err)
	}
	v.documents(t, 0, func(d document) {
		if !d.OK || d.Summary["ok"] != 21 || d.Summary["warn"] != 1 {
			t.Errorf("%+v", d)
		}
	})
}

// document is what -o json and -o yaml print.
type document struct {
	OK      bool            `json:"ok"`
	Summary map[string]int  `json:"summary"`
	Results []verify.Result `json:"results"`
	Probe   []verify.Result `json:"probe"`
}

// documents runs verify in each structured form.
func (v *verified) documents(t *testing.T, status int, look func(document)) {
	t.Helper()
	for _, form := range [][]string{{"-o", "json"}, {"--json"}, {"-o", "yaml"}} {
		got := v.run(t, form...)
		var d document
		if err := yaml.UnmarshalStrict([]byte(got.out), &d); err != nil || got.status != status {
			t.Errorf("%v: status %d, %v: %+v", form, got.status, err, got)
		}
		if isJSON := json.Valid([]byte(got.out)); isJSON == slices.Contains(form, "yaml") {
			t.Errorf("%v: JSON: %t", form, isJSON)
		}
		look(d)
	}
}

func failureEndsWithThree(t *testing.T, v *verified) {
	v.tells("two", func(n *nodeview.Node) { n.Facts.KubeletPropagation = nodeview.Private })
	defer v.tells("two", func(*nodeview.Node) {})
	got := v.run(t)
	for _, part := range []string{
		"\nMount propagation (rshared)  ok  one  shared\n",
		"\nMount propagation (rshared)  fail  two  kubelet's folder /var/lib/kubelet is private\n",
		", 1 fail, ",
	} {
		if !strings.Contains(got.out, part) {
			t.Errorf("no %q in\n%s", part, got.out)
		}
	}
	if want := "error: Mount propagation (rshared): two: kubelet's folder /var/lib/kubelet is private\nhint: Run `mount --make-rshared /`"; got.status != 3 || !strings.Contains(got.err, want) {
		t.Errorf("status %d: %s", got.status, got.err)
	}
	v.documents(t, 3, func(d document) {
		i := slices.IndexFunc(d.Results, func(r verify.Result) bool { return r.Status == verify.Fail })
		if d.OK || d.Summary["fail"] != 1 || i < 0 || d.Results[i].Node != "two" || d.Results[i].Hint == "" {
			t.Errorf("%+v", d)
		}
	})
}

func noGateway(t *testing.T, v *verified) {
	v.mu.Lock()
	delete(v.told, "agent-two")
	v.mu.Unlock()
	defer v.tells("two", func(*nodeview.Node) {})
	got := v.run(t)
	for _, part := range []string{
		"fail  two  the agent runs and does not serve /gateway: ask the agent in its container: ask the agent: connection refused",
		"\nEvery node asked  ok  -  2 nodes\n",
	} {
		if !strings.Contains(got.out, part) {
			t.Errorf("no %q in\n%s", part, got.out)
		}
	}
	if got.status != 3 {
		t.Errorf("status %d", got.status)
	}
}

func agentOnly(t *testing.T, v *verified) {
	deployments := v.Client(t).AppsV1().Deployments(verifytest.OperatorNamespace)
	op := verifytest.OperatorDeployment()
	must(t, deployments.Delete(t.Context(), op.Name, metav1.DeleteOptions{}))
	op.Spec.Template.Spec.Containers[0].Env = nil
	_, err := deployments.Create(t.Context(), &op, metav1.CreateOptions{})
	must(t, err)
	if got := v.run(t); got.status != 3 || !strings.Contains(got.err, "error: Operator and agent agree: the Operator's half is off") {
		t.Errorf("%+v", got)
	}
	if got := v.run(t, "--agent-only"); got.status != 0 {
		t.Errorf("%+v", got)
	}
	must(t, deployments.Delete(t.Context(), op.Name, metav1.DeleteOptions{}))
}

// mayNotExec goes to the API server itself, as an account with the rights that the
// documentation lists but for pods/exec.
func mayNotExec(t *testing.T, v *verified) {
	_, reader := v.User(t, "reader", readerRules()...)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, writeKubeconfig(reader, "default", kubeconfig))
	got := run(t, "verify", "--kubeconfig", kubeconfig)
	if got.status != 3 || !strings.Contains(got.err, "error: Every node asked: one,two: could not be asked: you may not run commands in the agents' Pods") {
		t.Errorf("%+v", got)
	}
	if strings.Contains(got.out, "could not be checked") {
		t.Errorf("the account lacks another right:\n%s", got.out)
	}
	_, stranger := v.User(t, "stranger")
	must(t, writeKubeconfig(stranger, "default", kubeconfig))
	if got := run(t, "verify", "--kubeconfig", kubeconfig); got.status != 3 || !strings.Contains(got.err, "forbidden") || strings.Contains(got.out, " ok ") {
		t.Errorf("%+v", got)
	}
}

func probeCannot(t *testing.T, v *verified) {
	got := v.run(t, "--probe", "--node", "one", "--probe-timeout", "2s")
	for _, part := range []string{
		"\nNODE  PROBE  STATUS  DETAIL\n",
		"\none  a Pod runs  fail  the Pod does not run: ",
		"\none  a folder is granted  skip  not reached\n",
		"\none  the Pod is deleted in time  ok  ",
	} {
		if !strings.Contains(got.out, part) {
			t.Errorf("no %q in\n%s", part, got.out)
		}
	}
	if got.status != 3 || !strings.Contains(got.err, "Probing one in namespace datalayer-runtimes.\n") || !strings.Contains(got.err, "error: a Pod runs: one: ") {
		t.Errorf("status %d: %s", got.status, got.err)
	}
	list, err := v.Client(t).CoreV1().Pods(verifytest.Runtimes).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=probe"})
	must(t, err)
	if len(list.Items) > 0 {
		t.Errorf("a Pod is left: %s", list.Items[0].Name)
	}
}

func probeInterrupted(t *testing.T, v *verified) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pods, err := v.Client(t).CoreV1().Pods(verifytest.Runtimes).Watch(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=probe"})
	must(t, err)
	go func() {
		<-pods.ResultChan() // the Pod is made
		cancel()
	}()
	got := runUntil(ctx, "verify", "--kubeconfig", v.kubeconfig, "--probe", "--node", "one")
	if got.status != 1 || !strings.Contains(got.err, "error: interrupted\n") || strings.Count(got.err, "error: ") != 1 ||
		!strings.Contains(got.err, "one: a Pod runs: skip (interrupted)\none: the Pod is deleted in time: ok (") || strings.Contains(got.out, " fail ") {
		t.Errorf("%+v", got)
	}
}

func probeOfNoNode(t *testing.T, v *verified) {
	got := v.run(t, "--probe", "--node", "onee")
	if got.status != 1 || !strings.Contains(got.err, "error: there is no node \"onee\"\nhint: did you mean \"one\"?\n") || strings.Contains(got.err, "Probing") {
		t.Errorf("%+v", got)
	}
}

func TestVerifyOfAClusterThatDoesNotAnswerIsNoVerdict(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, writeKubeconfig(&rest.Config{Host: "http://127.0.0.1:1"}, "default", kubeconfig))
	got := run(t, "verify", "--kubeconfig", kubeconfig)
	if got.status != 1 || got.out != "" || !strings.HasPrefix(got.err, "error: list the agents' DaemonSets: ") || !strings.Contains(got.err, "hint: ") {
		t.Errorf("%+v", got)
	}
}

func TestVerifyRefusesWhatItCannotUnderstand(t *testing.T) {
	for _, args := range [][]string{
		{"--json", "-o", "yaml"}, {"-o", "xml"}, {"--node", "x"}, {"--probe-image", "x"}, {"--probe", "--probe-timeout", "0s"}, {"now"}, {"--annotation-prefix", "A B"},
	} {
		if got := run(t, append([]string{"verify"}, args...)...); got.status != 2 {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// readerRules are what docs/tasks/verify.md lists, without pods/exec.
func readerRules() []rbacv1.PolicyRule {
	reads := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list"}}
	}
	return []rbacv1.PolicyRule{
		reads("", "nodes", "pods", "services", "serviceaccounts", "persistentvolumeclaims"),
		reads("apps", "daemonsets", "deployments"),
		reads("networking.k8s.io", "networkpolicies"),
		reads("discovery.k8s.io", "endpointslices"),
		reads("node.k8s.io", "runtimeclasses"),
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	}
}
