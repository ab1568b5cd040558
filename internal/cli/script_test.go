package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/cli"
	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// rewriteEnv writes what the commands print into the scripts. Commit only what
// you understand.
const rewriteEnv = "CLI_TEST_REWRITE"

func TestMain(m *testing.M) {
	simnode.Main()
	commands := map[string]func(){"node-mounts": program, "kubectl-node_mounts": program, "kubectl_complete-node_mounts": program}
	if commands[filepath.Base(os.Args[0])] == nil {
		if err := simnode.Enter(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	testscript.Main(m, commands)
}

// program is what main is.
func program() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := cli.Run(ctx, cli.Invocation{Args: os.Args, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Version: "v1.2.3"})
	stop()
	os.Exit(status)
}

func TestScripts(t *testing.T) {
	s := servertest.Start(t)
	_, user := s.User(t, "writer",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list"}})
	_, stranger := s.User(t, "stranger")
	_, reader := s.User(t, "reader",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}})
	_, asker := s.User(t, "asker",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "events", "nodes"}, Verbs: []string{"get", "list"}},
		rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"list"}})
	_, secretary := s.User(t, "secretary",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "create", "patch"}})
	_, namespaced := s.User(t, "namespaced")
	w := &world{api: s.Client(t)}
	drivers, err := newAgents(w, asker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drivers.proxy.Close)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/scripts",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv(rewriteEnv) != "",
		Setup: func(env *testscript.Env) error {
			ns := "script-" + strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
			env.Values["namespace"] = ns
			env.Setenv("NAMESPACE", ns)
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "kubeconfig"))
			env.Setenv("PATH", env.Getenv("PATH")+":"+os.Getenv("KUBEBUILDER_ASSETS"))
			_, err := w.api.CoreV1().Namespaces().Create(context.Background(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
			_, bound := w.api.RbacV1().RoleBindings(ns).Create(context.Background(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "namespaced"},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "namespaced"}},
			}, metav1.CreateOptions{})
			return errors.Join(err, bound,
				writeKubeconfig(namespaced, ns, filepath.Join(env.WorkDir, "namespaced")),
				writeKubeconfig(user, ns, env.Getenv("KUBECONFIG")),
				writeKubeconfig(stranger, ns, filepath.Join(env.WorkDir, "stranger")),
				writeKubeconfig(secretary, ns, filepath.Join(env.WorkDir, "secretary")),
				writeKubeconfig(reader, ns, filepath.Join(env.WorkDir, "stranger-reader")),
				drivers.kubeconfig(ns, filepath.Join(env.WorkDir, "asker")))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "shows": shows, "pod": w.pod, "agent": w.agent, "annotate": w.annotate, "finish": w.finish, "end": w.end, "delete": w.delete,
			"driver": drivers.driver, "keeper": drivers.keeper, "leaky": drivers.leaky, "nowhere": nowhere,
		},
	})
}

func writeKubeconfig(cfg *rest.Config, namespace, path string) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["test"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos["user"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	c.Contexts["here"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user", Namespace: namespace}
	c.Contexts["there"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user", Namespace: "default"}
	c.CurrentContext = "here"
	return clientcmd.WriteToFile(*c, path)
}

// exits STATUS PROGRAM ARG...: the program ends with this status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// shows FILE: the last output is the file, but for uids and ages, which the file
// has as UID and AGE.
func shows(ts *testscript.TestScript, _ bool, args []string) {
	got := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).ReplaceAllString(ts.ReadFile("stdout"), "UID")
	got = regexp.MustCompile(`(?m) [0-9]+s$`).ReplaceAllString(got, " AGE")
	if want := ts.ReadFile(args[0]); got != want {
		ts.Fatalf("the output is\n%s\nwant %s:\n%s", got, args[0], want)
	}
}

// world is what the scripts' commands act on: the API with every right.
type world struct {
	api kubernetes.Interface
}

func namespaceOf(ts *testscript.TestScript) string {
	ns, _ := ts.Value("namespace").(string)
	return ns
}

// pod NAME [NODE]: there is a pooled Pod, running where there is a node.
func (w *world) pod(ts *testscript.TestScript, _ bool, args []string) {
	names := grant.NamesFor("")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: args[0], Labels: map[string]string{names.Label: "true"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "runtime", Image: "sandbox"}}},
	}
	if len(args) > 1 {
		p.Spec.NodeName = args[1]
	}
	pods := w.api.CoreV1().Pods(namespaceOf(ts))
	p, err := pods.Create(context.Background(), p, metav1.CreateOptions{})
	ts.Check(err)
	if p.Spec.NodeName != "" {
		w.phase(ts, p, corev1.PodRunning)
	}
}

func (w *world) phase(ts *testscript.TestScript, p *corev1.Pod, phase corev1.PodPhase) {
	p.Status.Phase = phase
	_, err := w.api.CoreV1().Pods(p.Namespace).UpdateStatus(context.Background(), p, metav1.UpdateOptions{})
	ts.Check(err)
}

// finish NAME: the Pod's containers have ended.
func (w *world) finish(ts *testscript.TestScript, _ bool, args []string) {
	p, err := w.api.CoreV1().Pods(namespaceOf(ts)).Get(context.Background(), args[0], metav1.GetOptions{})
	ts.Check(err)
	w.phase(ts, p, corev1.PodSucceeded)
}

// end NAME: the Pod is being deleted, and nothing ends its containers.
func (w *world) end(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(w.api.CoreV1().Pods(namespaceOf(ts)).Delete(context.Background(), args[0], metav1.DeleteOptions{}))
}

// delete NAME: the Pod is gone.
func (w *world) delete(ts *testscript.TestScript, _ bool, args []string) {
	now := int64(0)
	ts.Check(w.api.CoreV1().Pods(namespaceOf(ts)).Delete(context.Background(), args[0], metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// annotate NAME mounts|ready TEXT: somebody writes an annotation by hand, and
// removes it with "-".
func (w *world) annotate(ts *testscript.TestScript, _ bool, args []string) {
	names := grant.NamesFor("")
	key := map[string]string{"mounts": names.Mounts, "ready": names.Ready}[args[1]]
	var text *string
	if args[2] != "-" {
		text = &args[2]
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{key: text}}})
	ts.Check(err)
	_, err = w.api.CoreV1().Pods(namespaceOf(ts)).Patch(context.Background(), args[0], types.MergePatchType, body, metav1.PatchOptions{})
	ts.Check(err)
}

// agent NODE: something answers on this node until the script ends, as an agent
// would. It mounts nothing.
func (w *world) agent(ts *testscript.TestScript, _ bool, args []string) {
	c, err := kube.New(kube.Config{
		Client: w.api, Node: args[0], Namespace: namespaceOf(ts), Names: grant.NamesFor(""), Volume: grant.DefaultVolumeName,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, standIn{c}) }()
	ts.Defer(func() {
		cancel()
		if err := <-ended; err != nil {
			panic(err) // it says nothing that a script could act on
		}
	})
}

type standIn struct {
	api *kube.Controller
}

// fetching is how long after the first answer there is what was not there by it.
const fetching = 500 * time.Millisecond

// Reconcile answers what the Pod asks for: a source with "missing" in its name
// fails, one with "fetched" is there after a first answer that it is not, the others
// are mounted.
func (a standIn) Reconcile(ctx context.Context, uid string) (time.Duration, error) {
	p, ok := a.api.Pod(uid)
	if !ok || p.Finished || p.Terminating || p.Grant == nil && p.Ready == nil {
		return 0, nil
	}
	if p.Grant == nil {
		return 0, a.api.Answer(ctx, p, nil)
	}
	set := grant.Decode(*p.Grant)
	st := grant.Status{Hash: set.Hash, State: grant.StateReady, Failed: map[string]grant.Code{}, Messages: map[string]string{}}
	fail := func(key string, code grant.Code, message string) {
		st.Failed[key], st.Messages[key] = code, message
		st.State = grant.StateDegraded
	}
	first, again := !answers(p.Ready, set.Hash), time.Duration(0)
	for _, m := range set.Mounts {
		if first && strings.Contains(m.Source, "fetched") {
			fail(m.Target, grant.CodeNotReady, "the repository is being fetched")
			again = fetching
			continue
		}
		if strings.Contains(m.Source, "missing") {
			fail(m.Target, grant.CodeMountFailed, "the source does not exist: create it, or grant another one")
			continue
		}
		st.Mounted = append(st.Mounted, m.Target)
	}
	for _, r := range set.Refused {
		fail(r.Key, r.Code, r.Message)
	}
	if set.Whole != nil {
		fail(grant.WholeSet, set.Whole.Code, set.Whole.Message)
	}
	if len(st.Mounted) == 0 && len(st.Failed) > 0 {
		st.State = grant.StateFailed
	}
	text := st.Encode()
	if p.Ready != nil && *p.Ready == text {
		return 0, nil
	}
	return again, a.api.Answer(ctx, p, &text)
}

// answers tells whether a Pod has an answer to the set.
func answers(ready *string, hash string) bool {
	if ready == nil {
		return false
	}
	st, err := grant.DecodeStatus(*ready)
	return err == nil && st.Hash == hash
}
