package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/test/node"
)

// TestVerifyFindsEachFault makes one thing wrong at a time, on a cluster that is
// well before and after.
func TestVerifyFindsEachFault(t *testing.T) {
	// The policy would keep the Pods of a bad shape out.
	w := newWorld(t, setup{set: []string{"admission.pods.enabled=false"}})
	w.policyIsGone(t)
	w.run(t, pooled(t, "usual", nil))
	w.wantGreen(t)
	for _, story := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"the Operator's half is off", operatorsHalfOff},
		{"the agent's half is off", agentsHalfOff},
		{"the agent may read Secrets", agentReadsSecrets},
		{"the agent is to read Secrets, and may not", agentMayNotReadSecrets},
		{"a program keeps what was revoked", programKeepsMount},
		{"a Pod's volume is on the disk", volumeOnDisk},
		{"a Pod's volume does not propagate", volumeDoesNotPropagate},
		{"the node's mounts do not propagate", mountsDoNotPropagate}, // last: it breaks the Pods that run
	} {
		t.Run(story.name, func(t *testing.T) { story.run(t, w) })
	}
}

// verdict is the document of one verification.
type verdict struct {
	OK      bool
	Summary struct{ OK, Warn, Fail, Skip int }
	Results []verify.Result
	exit    int
	stderr  string
}

// verify runs the command as a pipeline does.
func (w *world) judge(ctx context.Context, args ...string) (verdict, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(commandsEnv), "node-mounts"), append([]string{"verify", "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Kubeconfig())
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	v := verdict{exit: exitCode(err), stderr: problems.String()}
	if err := json.Unmarshal(out, &v); err != nil {
		return v, fmt.Errorf("status %d: %w: %s%s", v.exit, err, out, problems.String())
	}
	if want := map[bool]int{true: 0, false: 3}[v.OK]; v.exit != want {
		return v, fmt.Errorf("it ended with %d, and says ok=%v", v.exit, v.OK)
	}
	return v, nil
}

// failed are the rows that failed, a line each.
func (v verdict) failed() string {
	var lines []string
	for _, r := range v.Results {
		if r.Status == verify.Fail {
			lines = append(lines, fmt.Sprintf("%s [%s]: %s (%s)", r.Check, r.Node, r.Detail, r.Hint))
		}
	}
	return strings.Join(lines, "\n")
}

// wantGreen waits until no row fails.
func (w *world) wantGreen(t *testing.T, args ...string) {
	t.Helper()
	must(t, node.Until(within(t, 2*time.Minute), "verify to find nothing wrong", func(ctx context.Context) error {
		v, err := w.judge(ctx, args...)
		if err == nil && !v.OK {
			err = errors.New(v.failed())
		}
		return err
	}))
}

// wantRed waits until the row fails with these words, and checks that a person is
// told of it too, with what to do. Other rows may fail with it where also says so;
// where nothing does, the row is the only one.
func (w *world) wantRed(t *testing.T, check, onNode string, words []string, also ...string) {
	t.Helper()
	var v verdict
	must(t, node.Until(within(t, 2*time.Minute), "verify to find a fault in \""+check+"\"", func(ctx context.Context) error {
		var err error
		if v, err = w.judge(ctx); err != nil {
			return err
		}
		for _, r := range v.Results {
			if r.Check != check || r.Status != verify.Fail || r.Node != onNode {
				continue
			}
			for _, word := range words {
				if !strings.Contains(r.Detail, word) {
					return fmt.Errorf("the row does not say %q: %s", word, r.Detail)
				}
			}
			if r.Hint == "" {
				return errors.New("the row does not say what to do")
			}
			return nil
		}
		return fmt.Errorf("it does not; what fails: %q", v.failed())
	}))
	t.Logf("red: %s", v.failed())
	for _, r := range v.Results {
		if r.Status == verify.Fail && r.Check != check && !slices.Contains(also, r.Check) {
			t.Errorf("another row fails with it: %s: %s", r.Check, r.Detail)
		}
	}
	out, err := w.command(within(t, time.Minute), "verify")
	if exitCode(err) != 3 {
		t.Errorf("for people it ends with %d: %v", exitCode(err), err)
	}
	for _, want := range append([]string{"error: " + check, "hint: "}, words...) {
		if !strings.Contains(out, want) {
			t.Errorf("people are not told %q:\n%s", want, out)
		}
	}
}

// operatorDeployment is an Operator of which nothing runs: what its Deployment says
// is what verify goes by.
func (w *world) operatorDeployment(t *testing.T, enabled string) {
	t.Helper()
	ctx, api, labels := within(t, time.Minute), w.api.AppsV1().Deployments(system), map[string]string{"app": "operator"}
	_ = api.Delete(ctx, verify.DefaultOperator, metav1.DeleteOptions{}) // the one of before, if there is one
	_, err := api.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: verify.DefaultOperator},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "operator", Image: sandboxImage, Env: []corev1.EnvVar{{Name: verify.EnabledVariable, Value: enabled}}}},
			}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

const halves = "Operator and agent agree"

func operatorsHalfOff(t *testing.T, w *world) {
	w.operatorDeployment(t, "false")
	w.wantRed(t, halves, "", []string{"the Operator's half is off", system + "/" + verify.DefaultOperator, verify.EnabledVariable + "=true"})
	w.wantGreen(t, "--agent-only")
	w.operatorDeployment(t, "true")
	w.wantGreen(t)
}

// agentsHalfOff takes the agents away, and leaves the Operator's half on.
func agentsHalfOff(t *testing.T, w *world) {
	w.operatorDeployment(t, "true")
	ctx := within(t, 3*time.Minute)
	if out, err := w.command(ctx, "uninstall", "-n", system); exitCode(err) != 1 || !strings.Contains(out, "the operator's half is on") {
		t.Errorf("uninstall does what this story is about: %v\n%s", err, out)
	}
	must(t, w.api.AppsV1().DaemonSets(system).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	w.wantRed(t, halves, "", []string{"the agent's half is off", "no DaemonSet"}, "Node driver DaemonSet", "Every node asked")
	w.install(t, "admission.pods.enabled=false")
	w.wantGreen(t)
}

func agentReadsSecrets(t *testing.T, w *world) {
	w.allow(t, "too-much", release, system, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list"}})
	w.wantRed(t, "Agent Secret access matches config", "", []string{system + "/" + release + " may get secrets in " + runtimes, "credentials off"})
	w.disallow(t, "too-much")
	w.wantGreen(t)
}

// agentMayNotReadSecrets takes the chart's own Role away.
func agentMayNotReadSecrets(t *testing.T, w *world) {
	w.install(t, "admission.pods.enabled=false", "nodeMountGateway.credentials=true")
	w.wantGreen(t)
	must(t, w.api.RbacV1().Roles(runtimes).Delete(within(t, time.Minute), release+"-credentials", metav1.DeleteOptions{}))
	w.wantRed(t, "Agent Secret access matches config", "", []string{"credentials are on and " + system + "/" + release + " may not get secrets in " + runtimes, "credentials on"})
	w.install(t, "admission.pods.enabled=false")
	w.wantGreen(t)
}

// programKeepsMount is a leak as users make them: the folder is taken away, and a
// program still has it open.
func programKeepsMount(t *testing.T, w *world) {
	p, stop := w.leak(t, "keeper")
	w.wantRed(t, "No leaked mounts", w.Name(), []string{"1 mount(s)", p.Namespace + "/" + p.Name + ": 1"})
	out, err := w.command(within(t, time.Minute), "status", "-n", p.Namespace)
	if err != nil || !strings.Contains(out, p.Name) {
		t.Errorf("status, where the hint leads: %v\n%s", err, out)
	}
	stop()
	w.wantGreen(t)
	w.remove(t, p)
	w.leftNothing(t, p)
}

// leak has a Pod's program keep a file open in a folder that is revoked then. stop
// ends the program.
func (w *world) leak(t *testing.T, name string) (p *corev1.Pod, stop func()) {
	t.Helper()
	p = w.run(t, pooled(t, name, nil))
	w.mustGrant(t, p, home(name))
	w.in(t, p, "sh", "-c", "echo x >/mnt/datalayer/"+name+"/file; tenant hold-open /mnt/datalayer/"+name+"/file >/tmp/held 2>&1 & echo $! >/tmp/pid")
	must(t, node.Until(within(t, time.Minute), "the program to have the file", func(context.Context) error {
		if got := w.in(t, p, "cat", "/tmp/held"); strings.TrimSpace(got) != "ready" {
			return fmt.Errorf("it says %q", got)
		}
		return nil
	}))
	w.grant(t, p) // whatever the answer is: it is gone from the folder
	if got := w.in(t, p, "ls", "-A", "/mnt/datalayer"); strings.TrimSpace(got) != "" {
		t.Errorf("after the revocation there are: %s", got)
	}
	return p, func() {
		t.Helper()
		w.in(t, p, "sh", "-c", "kill $(cat /tmp/pid)")
	}
}

func volumeOnDisk(t *testing.T, w *world) {
	p := w.run(t, shaped(t, "disk", onDisk))
	w.wantRed(t, "Gateway volume is memory-backed", "", []string{p.Namespace + "/" + p.Name, "on the node's disk"})
	w.remove(t, p)
	w.wantGreen(t)
}

func volumeDoesNotPropagate(t *testing.T, w *world) {
	p := w.run(t, shaped(t, "private", noPropagation))
	w.wantRed(t, "Gateway volume reaches the containers", "", []string{p.Namespace + "/" + p.Name, `container "runtime"`, "HostToContainer"})
	w.remove(t, p)
	w.wantGreen(t)
}

// mountsDoNotPropagate does on the node what the hint undoes. What was private was
// in nobody's peer group any more, so the agent needs a new container: its own binds
// of the node's folders are what propagates.
func mountsDoNotPropagate(t *testing.T, w *world) {
	ctx := within(t, 4*time.Minute)
	p := w.run(t, pooled(t, "unreached", nil)) // no such Pod would start afterwards
	_, err := w.Run(ctx, "mount", "--make-rprivate", "/")
	must(t, err)
	w.wantRed(t, "Mount propagation (rshared)", w.Name(), []string{w.KubeletDir() + " is private", agentRoot + " is private"},
		"Node Mount Gateway enabled on the node", "Node driver DaemonSet")
	// Its container hangs on the agent's own copy of the volume, so this Pod can be
	// served still. What is answered ready is there; new Pods do not even start.
	if got := w.grant(t, p, home("ada")); got.State == grant.StateReady {
		w.in(t, p, "touch", "/mnt/datalayer/ada/there")
	}
	w.mustGrant(t, p)
	w.remove(t, p)

	_, err = w.Run(ctx, "mount", "--make-rshared", "/")
	must(t, err)
	// Shared again, and not with the agent.
	w.wantRed(t, "Mount propagation (rshared)", w.Name(), []string{agentRoot + " is private"}, "Node Mount Gateway enabled on the node", "Node driver DaemonSet")
	agent := w.agentPodAny(ctx, t)
	must(t, w.api.CoreV1().Pods(system).Delete(ctx, agent.Name, metav1.DeleteOptions{}))
	must(t, w.WaitGone(ctx, system, agent.Name))
	w.agentPod(ctx, t)
	w.wantGreen(t)
	p = w.run(t, pooled(t, "again", nil))
	w.mustGrant(t, p, home("ada"))
	w.in(t, p, "touch", "/mnt/datalayer/ada/there")
	w.remove(t, p)
	w.leftNothing(t, p)
}

// agentPodAny is the agent's Pod, Ready or not.
func (w *world) agentPodAny(ctx context.Context, t *testing.T) *corev1.Pod {
	t.Helper()
	pods, err := w.api.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=agent"})
	must(t, err)
	if len(pods.Items) != 1 {
		t.Fatalf("%d agents", len(pods.Items))
	}
	return &pods.Items[0]
}
