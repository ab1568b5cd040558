package cli_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/fleet/fleettest"
)

// agents are what stands in for the containers of agents: an API server without nodes
// can run no command in one. It is a proxy before the server, which answers what a node
// would; everything else goes to the server, as a user with these rights.
type agents struct {
	w     *world
	proxy *httptest.Server

	mu sync.Mutex
	// views and logs are what the container of a Pod answers, by its namespace and name.
	views, logs map[string]string
}

func newAgents(w *world, user *rest.Config) (*agents, error) {
	server, err := url.Parse(user.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(user)
	if err != nil {
		return nil, err
	}
	a := &agents{w: w, views: map[string]string{}, logs: map[string]string{}}
	through := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) }}
	a.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := regexp.MustCompile(`\A/api/v1/namespaces/([^/]+)/pods/([^/]+)/(exec|log)\z`).FindStringSubmatch(r.URL.Path)
		switch {
		case at == nil:
			through.ServeHTTP(w, r)
		case at[3] == "log":
			_, _ = w.Write([]byte(a.text(a.logs, at[1]+"/"+at[2])))
		default:
			fleettest.Exec(w, r, func(string, string, []string) fleettest.Result {
				if view := a.text(a.views, at[1]+"/"+at[2]); view != "" {
					return fleettest.Result{Stdout: view}
				}
				return fleettest.Result{Code: 1, Stderr: "error: ask the agent: connection refused\nhint: is it there?\n"}
			})
		}
	}))
	return a, nil
}

func (a *agents) text(of map[string]string, pod string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return of[pod]
}

// kubeconfig is one that leads through the proxy.
func (a *agents) kubeconfig(namespace, path string) error {
	return writeKubeconfig(&rest.Config{Host: a.proxy.URL}, namespace, path)
}

// driver NODE [VIEW [LOG]]: an agent runs on the node, and answers with the file, in
// which UID(NAME) is the uid of a Pod and NAMESPACE the script's. Without one it cannot
// be asked.
func (a *agents) driver(ts *testscript.TestScript, _ bool, args []string) {
	ns := namespaceOf(ts)
	p, err := a.w.api.CoreV1().Pods(ns).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + args[0], Labels: map[string]string{
			"app.kubernetes.io/name": "node-mounts", "app.kubernetes.io/component": "agent", "app.kubernetes.io/version": "v0.3.0",
		}},
		Spec: corev1.PodSpec{NodeName: args[0], Containers: []corev1.Container{{
			Name: "driver", Image: "agent", Args: []string{"--log-level=debug", "--other=CANARY-agent"}, Env: []corev1.EnvVar{{Name: "X", Value: "CANARY-agent-env"}},
		}}},
	}, metav1.CreateOptions{})
	ts.Check(err)
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	a.w.phase(ts, p, corev1.PodRunning)
	if len(args) == 1 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.views[ns+"/"+p.Name] = a.fill(ts, args[1])
	if len(args) > 2 {
		a.logs[ns+"/"+p.Name] = a.fill(ts, args[2])
	}
}

// keeper NODE LOG: a keeper runs on the node, and the file is its log.
func (a *agents) keeper(ts *testscript.TestScript, _ bool, args []string) {
	ns := namespaceOf(ts)
	p, err := a.w.api.CoreV1().Pods(ns).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "keeper-" + args[0], Labels: map[string]string{
			"app.kubernetes.io/name": "node-mounts", "app.kubernetes.io/component": "keeper",
		}},
		Spec: corev1.PodSpec{NodeName: args[0], Containers: []corev1.Container{{Name: "keeper", Image: "agent", Args: []string{"--other=CANARY-keeper"}}}},
	}, metav1.CreateOptions{})
	ts.Check(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.logs[ns+"/"+p.Name] = a.fill(ts, args[1])
}

func (a *agents) fill(ts *testscript.TestScript, file string) string {
	text := strings.ReplaceAll(ts.ReadFile(file), "NAMESPACE", namespaceOf(ts))
	return regexp.MustCompile(`UID\(([a-z-]+)\)`).ReplaceAllStringFunc(text, func(m string) string {
		p, err := a.w.api.CoreV1().Pods(namespaceOf(ts)).Get(context.Background(), m[4:len(m)-1], metav1.GetOptions{})
		ts.Check(err)
		return string(p.UID)
	})
}

// leaky NAME NODE: there is a pooled Pod with something that is for nobody else
// wherever a Pod can have it, and an event that repeats it.
func (a *agents) leaky(ts *testscript.TestScript, _ bool, args []string) {
	ns, names := namespaceOf(ts), grant.NamesFor("")
	p, err := a.w.api.CoreV1().Pods(ns).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: args[0], Labels: map[string]string{names.Label: "true"},
			Annotations: map[string]string{
				"example.org/note": "CANARY-annotation",
				names.Mounts: `{"hash":"h","extra":"CANARY-field","mounts":[{"source":"home/users/ada","target":"ada","password":"CANARY-field"},` +
					`{"kind":"git","source":"https://u:CANARY-userinfo@example.org/r?k=CANARY-query","revision":"0123456789abcdef0123456789abcdef01234567","target":"r"}]}`,
			},
		},
		Spec: corev1.PodSpec{
			NodeName: args[1],
			Containers: []corev1.Container{{
				Name: "runtime", Image: "sandbox",
				Env:     []corev1.EnvVar{{Name: "TOKEN", Value: "CANARY-env"}, {Name: "URL", Value: "https://u:CANARY-userinfo@example.org/?q=CANARY-query"}},
				Command: []string{"CANARY-command"}, Args: []string{"--password", "CANARY-args"},
				Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"CANARY-hook"}}}},
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
					Port: intstr.FromInt32(80), HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: "CANARY-header"}},
				}}},
			}},
			Volumes: []corev1.Volume{
				{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d", VolumeAttributes: map[string]string{"k": "CANARY-attribute"}}}},
				{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "name-of-a-secret"}}},
			},
		},
	}, metav1.CreateOptions{})
	ts.Check(err)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "runtime", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "CANARY-termination"}},
	}}
	a.w.phase(ts, p, corev1.PodRunning)
	_, err = a.w.api.CoreV1().Events(ns).Create(context.Background(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: args[0] + ".1", Namespace: ns},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: args[0], UID: p.UID},
		Source:         corev1.EventSource{Component: "kubelet"}, ReportingController: "kubelet",
		Type: "Warning", Reason: "Failed", Message: `exec: "CANARY-command": not found; pulled from https://u:CANARY-userinfo@example.net/?q=CANARY-query; TOKEN=CANARY-env`,
	}, metav1.CreateOptions{})
	ts.Check(err)
}

// nowhere TEXT DIR: no file beneath the folder has the text.
func nowhere(ts *testscript.TestScript, _ bool, args []string) {
	files := 0
	err := filepath.WalkDir(ts.MkAbs(args[1]), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		if i := strings.Index(string(text), args[0]); i >= 0 {
			err = errors.Join(err, fmt.Errorf("%s has %q", path, text[max(i-80, 0):min(i+80, len(text))]))
		}
		return err
	})
	ts.Check(err)
	if files == 0 {
		ts.Fatalf("there is no file in %s", args[1])
	}
}
