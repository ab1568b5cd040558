package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/test/node"
)

// prometheusEnv is a folder: Prometheus as Debian has it, unpacked.
const prometheusEnv = "NODE_MOUNTS_PROMETHEUS"

// TestALeakIsAlertedWhileItLasts scrapes the running agent with a real Prometheus
// that has the chart's own alerts.
func TestALeakIsAlertedWhileItLasts(t *testing.T) {
	bin := filepath.Join(os.Getenv(prometheusEnv), "usr/bin")
	if _, err := os.Stat(filepath.Join(bin, "prometheus")); err != nil {
		t.Fatalf("%s: %v: run `make e2e`", prometheusEnv, err)
	}
	w := newWorld(t, setup{node: func(o *node.Options) { o.Folders = map[string]string{"/opt/prometheus": bin} }})
	p := w.run(t, pooled(t, "watched", nil))
	w.grant(t, p, home("ada"), dataset("none")) // something to count, and a failure
	target := w.agentPod(within(t, time.Minute), t).Status.PodIP + ":9808"

	check := exec.CommandContext(t.Context(), filepath.Join(bin, "promtool"), "check", "metrics")
	exposition, err := fetch(t.Context(), "http://"+target+"/metrics")
	must(t, err)
	check.Stdin = strings.NewReader(exposition)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	prometheus := w.prometheus(t, target)
	prometheus.wantValue(t, `datalayer_mount_gateway_mounts`, "1")
	prometheus.wantValue(t, `datalayer_mount_gateway_build_info`, "1")
	for _, alert := range []string{chartsAlert, quickAlert} {
		if state := prometheus.state(t, alert); state != "inactive" {
			t.Errorf("%s is %s before there is a leak", alert, state)
		}
	}

	leaky, stop := w.leak(t, "leaky")
	for _, alert := range []string{chartsAlert, quickAlert} {
		prometheus.wantState(t, alert, "firing")
	}
	prometheus.wantValue(t, `datalayer_mount_gateway_leaked`, "1")
	stop()
	prometheus.wantValue(t, `datalayer_mount_gateway_leaked`, "0")
	prometheus.wantState(t, quickAlert, "inactive")
	prometheus.wantValue(t, `datalayer_mount_gateway_leaked_total`, "1")
	for _, pod := range []*corev1.Pod{leaky, p} {
		w.remove(t, pod)
		w.leftNothing(t, pod)
	}
}

// The chart's alert looks back ten minutes, so that a leak between two scrapes is
// told of; the end of it would take as long. Its copy looks back 20 s and is the same
// otherwise.
const (
	chartsAlert, lookBack  = "NodeMountLeaked", "10m"
	quickAlert, quickRange = "NodeMountLeakedQuickly", "20s"
)

// watcher is a running Prometheus.
type watcher struct{ url string }

// prometheus runs one in the machine until the test ends.
func (w *world) prometheus(t *testing.T, target string) watcher {
	t.Helper()
	const dir = "/tmp/prometheus"
	must(t, os.MkdirAll(w.Path(dir), 0o755))
	rules := w.rules(t)
	quick := strings.ReplaceAll(strings.ReplaceAll(rules, chartsAlert+"\n", quickAlert+"\n"), lookBack, quickRange)
	quick = strings.ReplaceAll(quick, "name: node-mounts", "name: quick")
	for name, text := range map[string]string{
		"rules.yaml": rules, "quick.yaml": quick,
		"prometheus.yaml": `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [` + dir + `/rules.yaml, ` + dir + `/quick.yaml]
scrape_configs: [{job_name: agent, static_configs: [{targets: ["` + target + `"]}]}]
`,
	} {
		must(t, os.WriteFile(w.Path(dir, name), []byte(text), 0o644))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := w.Run(ctx, "/opt/prometheus/prometheus", "--config.file="+dir+"/prometheus.yaml", "--storage.tsdb.path="+dir+"/data",
			"--web.listen-address=127.0.0.1:9090", "--log.level=warn")
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Prometheus ended by itself: %v", err)
		}
	})
	p := watcher{"http://127.0.0.1:9090"}
	must(t, node.Until(within(t, time.Minute), "Prometheus", func(ctx context.Context) error {
		_, err := fetch(ctx, p.url+"/-/ready")
		return err
	}))
	return p
}

// rules are the chart's alerts as Prometheus reads them.
func (w *world) rules(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(commandsEnv), "node-mounts"),
		"install", "--dry-run", "--claim", claimName, "-n", system, "--set", "monitoring.prometheusRule=true")
	manifests, err := cmd.Output()
	must(t, err)
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		var object struct {
			Kind string
			Spec any
		}
		must(t, yaml.Unmarshal([]byte(document), &object))
		if object.Kind == "PrometheusRule" {
			text, err := yaml.Marshal(object.Spec)
			must(t, err)
			return string(text)
		}
	}
	t.Fatal("the chart makes no PrometheusRule")
	return ""
}

// fetch reads a page.
func fetch(ctx context.Context, page string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", page, resp.Status, text)
	}
	return string(text), err
}

// value is what an expression gives now, "" where that is nothing or several.
func (p watcher) value(ctx context.Context, expression string) (string, error) {
	text, err := fetch(ctx, p.url+"/api/v1/query?query="+url.QueryEscape(expression))
	if err != nil {
		return "", err
	}
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Data.Result) != 1 {
		return "", err
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1]), nil
}

func (p watcher) wantValue(t *testing.T, expression, want string) {
	t.Helper()
	must(t, node.Until(within(t, 2*time.Minute), expression+" to be "+want, func(ctx context.Context) error {
		got, err := p.value(ctx, expression)
		if err == nil && got != want {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	}))
}

// state is that of the alert: inactive, pending or firing.
func (p watcher) state(t *testing.T, alert string) string {
	t.Helper()
	text, err := fetch(t.Context(), p.url+"/api/v1/rules?type=alert")
	must(t, err)
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
	}
	must(t, json.Unmarshal([]byte(text), &answer))
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			if r.Health == "err" {
				t.Errorf("%s cannot be evaluated: %s", r.Name, r.LastError)
			}
			if r.Name == alert {
				return r.State
			}
		}
	}
	t.Fatalf("Prometheus has no alert %s: %s", alert, text)
	return ""
}

func (p watcher) wantState(t *testing.T, alert, want string) {
	t.Helper()
	start := time.Now()
	must(t, node.Until(within(t, 2*time.Minute), alert+" to be "+want, func(context.Context) error {
		if got := p.state(t, alert); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	}))
	t.Logf("%s is %s after %s", alert, want, time.Since(start).Round(100*time.Millisecond))
}
