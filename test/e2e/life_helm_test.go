package e2e_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// helm is Helm as its own command prepares it.
func (w *world) helm(t *testing.T) *action.Configuration {
	t.Helper()
	settings := cli.New()
	settings.KubeConfig = w.Kubeconfig()
	settings.SetNamespace(system)
	kube.ManagedFieldsManager = "helm" // as in its command: the release was applied under that name
	cfg := action.NewConfiguration(action.ConfigurationSetLogger(slog.NewTextHandler(io.Discard, nil)))
	must(t, cfg.Init(settings.RESTClientGetter(), system, "secret"))
	return cfg
}

// helmTest does what `helm test --logs` does.
func (w *world) helmTest(t *testing.T) (log string, err error) {
	t.Helper()
	test := action.NewReleaseTesting(w.helm(t))
	test.Namespace, test.Timeout = system, 2*time.Minute
	_, shutdown, err := test.Run(release)
	ctx, pods := within(t, time.Minute), w.api.CoreV1().Pods(system)
	text, logErr := pods.GetLogs(release+"-verify", &corev1.PodLogOptions{}).DoRaw(ctx)
	must(t, logErr)
	// Where the test failed, what ends it says so once more.
	if endErr := shutdown(); endErr != nil && err == nil {
		t.Error(endErr)
	}
	return string(text), err
}

// testedByHelm has the chart's test pass on a node that is well and fail on one whose
// agent is gone, and leave nobody the rights that it ran with.
func testedByHelm(t *testing.T, w *world) {
	log, err := w.helmTest(t)
	if err != nil || !strings.Contains(log, "propagation") {
		t.Fatalf("helm test: %v\n%s", err, log)
	}
	t.Cleanup(func() { w.startAgentAfter(t) })
	w.stopAgent(t)
	if log, err := w.helmTest(t); err == nil || !strings.Contains(log, "it covers no node") {
		t.Errorf("without an agent, helm test: %v\n%s", err, log)
	}
	w.noRightsLeft(t)
	w.startAgent(t)
	if log, err := w.helmTest(t); err != nil {
		t.Errorf("with the agent again, helm test: %v\n%s", err, log)
	}
	w.noRightsLeft(t)
}

// noRightsLeft fails where the account or the role of the chart's test is still there.
func (w *world) noRightsLeft(t *testing.T) {
	t.Helper()
	ctx := within(t, time.Minute)
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release}
	accounts, err := w.api.CoreV1().ServiceAccounts(system).List(ctx, ours)
	must(t, err)
	for _, a := range accounts.Items {
		if strings.HasSuffix(a.Name, "-verify") {
			t.Errorf("the account %s is left", a.Name)
		}
	}
	bindings, err := w.api.RbacV1().ClusterRoleBindings().List(ctx, ours)
	must(t, err)
	for _, b := range bindings.Items {
		if strings.HasSuffix(b.Name, "-verify") {
			t.Errorf("the rights %s are left", b.Name)
		}
	}
}

// rolledBack has Helm take an upgrade back under a Pod with mounts.
func rolledBack(t *testing.T, w *world) {
	p := w.run(t, pooled(t, "rolled-back", nil))
	w.mustGrant(t, p, home("ada"), dataset("mnist"))
	before := w.insideOnce(t, p, "ada", "mnist")
	env := func() []corev1.EnvVar {
		t.Helper()
		return w.agentPod(within(t, 3*time.Minute), t).Spec.Containers[0].Env
	}
	was := env()
	w.install(t, "driver.extraEnv[0].name=UPGRADED", "driver.extraEnv[0].value=yes")
	if !hasVariable(env(), "UPGRADED") {
		t.Fatal("the upgrade changed no agent")
	}
	w.answered(t, p)

	back := action.NewRollback(w.helm(t))
	back.Timeout, back.WaitStrategy = 3*time.Minute, kube.StatusWatcherStrategy
	must(t, back.Run(release))
	if now := env(); len(now) != len(was) || hasVariable(now, "UPGRADED") {
		t.Errorf("after the rollback the agent's variables are %v, and were %v", now, was)
	}
	w.answered(t, p)
	if after := w.insideOnce(t, p, "ada", "mnist"); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("the rollback mounted anew:\n%q\n%q", before, after)
	}
	// What Helm says of the release is what runs.
	if last, err := w.helm(t).Releases.Last(release); err != nil || last.(*releasev1.Release).Info.Status != "deployed" {
		t.Errorf("the release is %+v, %v", last, err)
	}
	w.remove(t, p)
	w.leftNothing(t, p)
}

func hasVariable(env []corev1.EnvVar, name string) bool {
	for _, e := range env {
		if e.Name == name {
			return true
		}
	}
	return false
}
