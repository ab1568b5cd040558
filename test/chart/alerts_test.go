package chart

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/internal/obs"
)

// promtoolVariable names Prometheus's own checker.
const promtoolVariable = "PROMTOOL"

func promtool(t *testing.T, stdin io.Reader, args ...string) {
	t.Helper()
	path := os.Getenv(promtoolVariable)
	if path == "" {
		t.Fatalf("%s is not set: run `make test`, or unpack it with `tools/debs DIR prometheus` and set it to DIR/usr/bin/promtool", promtoolVariable)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = stdin
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// withAlerts are the values for every alert.
const withAlerts = "{monitoring: {prometheusRule: true, runbookBaseUrl: 'https://books.example.org/'}, nodeMountGateway: {" + buckets + "}}"

// ruleFile writes the alerts as Prometheus itself reads them.
func ruleFile(t *testing.T) string {
	t.Helper()
	r := must(t, least, withAlerts)
	text, err := yaml.Marshal(map[string]any{"groups": r.rules.Spec.Groups})
	ok(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	ok(t, os.WriteFile(file, text, 0o600))
	return file
}

func TestPrometheusTakesTheAlerts(t *testing.T) {
	promtool(t, nil, "check", "rules", "--lint=all", "--lint-fatal", ruleFile(t))
}

func TestAlertsFireWhenTheyShould(t *testing.T) {
	file := ruleFile(t)
	text, err := os.ReadFile("testdata/alerts.yaml")
	ok(t, err)
	tests := filepath.Join(filepath.Dir(file), "alerts.yaml")
	ok(t, os.WriteFile(tests, text, 0o600))
	promtool(t, nil, "test", "rules", tests)
}

func TestPrometheusTakesWhatTheAgentServes(t *testing.T) {
	promtool(t, strings.NewReader(exposition(t)), "check", "metrics")
}

func exposition(t *testing.T) string {
	t.Helper()
	handler := obs.Handler(obs.Deps{Registry: obs.NewRecorder("v1.2.3", "6.1").Gatherer()})
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}

var ownMetric = regexp.MustCompile(`datalayer_[a-z_]+`)

// An alert on a metric that nobody serves never fires.
func TestAlertsAskForMetricsThatAreServed(t *testing.T) {
	// The bridges' are those of the CSI driver, which comes later.
	later := []string{"datalayer_local_csi_disconnected"}
	served := exposition(t)
	for _, a := range must(t, least, withAlerts).rules.alerts() {
		for _, name := range ownMetric.FindAllString(a.Expr, -1) {
			if !strings.Contains(served, "\n"+name) && !slices.Contains(later, name) {
				t.Errorf("%s asks for %s", a.Alert, name)
			}
		}
	}
}

func TestEveryAlertHasItsRunbook(t *testing.T) {
	const books = "../../docs/runbooks"
	alerts := must(t, least, "{monitoring: {prometheusRule: true}, nodeMountGateway: {"+buckets+"}}").rules.alerts()
	known := map[string]bool{"README.md": true}
	for _, a := range alerts {
		known[a.Alert+".md"] = true
		if want := "https://github.com/datalayer/node-mounts/blob/main/docs/runbooks/" + a.Alert + ".md"; a.Annotations["runbook_url"] != want {
			t.Errorf("%s sends people to %q", a.Alert, a.Annotations["runbook_url"])
		}
		text, err := os.ReadFile(filepath.Join(books, a.Alert+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.HasPrefix(text, []byte("# "+a.Alert+"\n")) {
			t.Errorf("the page of %s does not begin with its name", a.Alert)
		}
		if a.Labels["severity"] == "" || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s says too little: %+v", a.Alert, a)
		}
	}
	pages, err := os.ReadDir(books)
	ok(t, err)
	for _, p := range pages {
		if !known[p.Name()] {
			t.Errorf("no alert leads to docs/runbooks/%s", p.Name())
		}
	}
}

// Without buckets there is no keeper that could be missing.
func TestNobodyIsWarnedOfAKeeperThatIsNotInstalled(t *testing.T) {
	for _, a := range must(t, least, "monitoring: {prometheusRule: true}").rules.alerts() {
		if strings.Contains(a.Alert+a.Expr, "eeper") {
			t.Errorf("there is %s: %s", a.Alert, a.Expr)
		}
	}
}
