package install

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/charts"
	"github.com/datalayer/node-mounts/internal/advice"
)

func isUsage(err error) bool {
	return advice.Status(err) == advice.StatusUsage
}

func chartOf(t *testing.T) fs.FS {
	t.Helper()
	c, err := charts.NodeMounts()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestVariablesSetValuesOfTheChart(t *testing.T) {
	for name, test := range map[string]struct {
		environ []string
		want    map[string]any
	}{
		"nothing":                         {nil, map[string]any{}},
		"an empty one is as good as none": {[]string{gatewayVariable + "=", claimVariable + "="}, map[string]any{}},
		"the gateway and its claim": {
			[]string{"PATH=/bin", enabledVariable + "=1", gatewayVariable + "=true", claimVariable + "=home"},
			map[string]any{"nodeMountGateway": map[string]any{"enabled": true, "sharedFilesystemClaim": "home"}},
		},
		"switches off and on": {
			[]string{"DATALAYER_NODE_MOUNT_GATEWAY_BUCKETS=0", "DATALAYER_NODE_MOUNT_GATEWAY_CREDENTIALS=false", "DATALAYER_NODE_MOUNT_GATEWAY_LOCAL_BRIDGES=1", "DATALAYER_NODE_MOUNT_GATEWAY_REPOSITORIES=true"},
			map[string]any{"nodeMountGateway": map[string]any{"buckets": false, "credentials": false, "localBridges": true, "repositories": true}},
		},
		"a claim whose name looks like a switch is a name": {
			[]string{claimVariable + "=true"},
			map[string]any{"nodeMountGateway": map[string]any{"sharedFilesystemClaim": "true"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, warnings, err := FromEnvironment(test.environ)
			if err != nil || len(warnings) > 0 || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %v, %q, %v; want %v", got, warnings, err, test.want)
			}
		})
	}
}

func TestASwitchThatIsNoSwitchIsAnErrorOfUsage(t *testing.T) {
	for _, entry := range []string{gatewayVariable + "=yes", gatewayVariable + "=True", gatewayVariable + "=2", enabledVariable + "=on", enabledVariable + "=false", enabledVariable + "=0"} {
		if _, _, err := FromEnvironment([]string{entry}); !isUsage(err) {
			t.Errorf("%s: %v, want an error of usage", entry, err)
		}
	}
}

func TestAVariableThatMeansNothingIsWarnedAboutWithTheNearestName(t *testing.T) {
	for name, want := range map[string]string{
		"DATALAYER_NODE_MOUNT_GATEWAY_ENABLE":       "is " + gatewayVariable + " meant",
		"DATALAYER_NODE_MOUNTS_GATEWAY_ENABLED":     "is " + gatewayVariable + " meant",
		"DATALAYER_NODE_MOUNT_ENABLED":              "is " + enabledVariable + " meant",
		"DATALAYER_NODE_MOUNT_GATEWAY_CREDENTIAL":   "is DATALAYER_NODE_MOUNT_GATEWAY_CREDENTIALS meant",
		"DATALAYER_NODE_MOUNT_SOMETHING_ELSE_OF_IT": "--set",
	} {
		_, warnings, err := FromEnvironment([]string{name + "=x"})
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], want) || !strings.HasPrefix(warnings[0], name+" ") {
			t.Errorf("%s: %q, %v; want it to say %q", name, warnings, err, want)
		}
	}
	if _, warnings, _ := FromEnvironment([]string{"DATALAYER_OTHER=1", "HOME=/"}); len(warnings) > 0 {
		t.Errorf("other programs' variables are warned about: %q", warnings)
	}
}

func TestEveryVariableNamesAValueThatTheChartHas(t *testing.T) {
	c, err := load(chartOf(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range Variables() {
		if v.Value != "" && look(c.Values, v.Value) == nil {
			t.Errorf("%s sets %s, which the chart has no default for", v.Name, v.Value)
		}
	}
}

func TestWhatIsLaterWins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte("nodeMountGateway: {sharedFilesystemClaim: file, maxMountsPerPod: 7, namespace: file}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Settings{
		Environ: []string{claimVariable + "=variable", gatewayVariable + "=false"},
		Files:   []string{file, "-"}, In: strings.NewReader("nodeMountGateway: {namespace: input}\n"),
		Set: []string{"nodeMountGateway.sharedFilesystemClaim=set", "nodeMountGateway.events=false"},
	}
	got, _, err := s.Values()
	want := map[string]any{"nodeMountGateway": map[string]any{
		"enabled": false, "sharedFilesystemClaim": "set", "maxMountsPerPod": float64(7), "namespace": "input", "events": false,
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	s.Claim, s.In = "flag", strings.NewReader("")
	got, _, err = s.Values()
	if err != nil || look(got, claimValue) != "flag" || look(got, enabledValue) != true {
		t.Errorf("--claim: got %v, %v", got, err)
	}
}

func TestSettingsThatCannotBeReadAreErrorsOfUsage(t *testing.T) {
	for name, s := range map[string]Settings{
		"no file":   {Files: []string{"/nonexistent/values.yaml"}},
		"no YAML":   {Files: []string{"-"}, In: strings.NewReader("a: [")},
		"no value":  {Set: []string{"novalue"}},
		"no switch": {Environ: []string{gatewayVariable + "=maybe"}},
	} {
		if _, _, err := s.Values(); !isUsage(err) {
			t.Errorf("%s: %v, want an error of usage", name, err)
		}
	}
}

func TestAGatewayThatCouldMountNothingIsRefusedBeforeAnythingIsSent(t *testing.T) {
	for name, test := range map[string]struct {
		values map[string]any
		says   string
	}{
		"no gateway": {nil, "nothing to install"},
		"no claim":   {map[string]any{"nodeMountGateway": map[string]any{"enabled": true}}, "no claim"},
		"an unknown value": {
			map[string]any{"nodeMountGateway": map[string]any{"enabled": true, "sharedFilesystemClaim": "c"}, "imagine": 1},
			"imagine",
		},
		"what the chart refuses": {
			map[string]any{"nodeMountGateway": map[string]any{"enabled": true, "sharedFilesystemClaim": "c", "root": "/var/lib/kubelet/x"}},
			"lie in one another",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Render(t.Context(), chartOf(t), "n", test.values)
			if !isUsage(err) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want an error of usage that says %q", err, test.says)
			}
			if err != nil && strings.Contains(err.Error(), "execution error") {
				t.Errorf("%v: it speaks of templates", err)
			}
		})
	}
}

func TestTheChartIsRenderedWithoutACluster(t *testing.T) {
	text, err := Render(t.Context(), chartOf(t), "here", map[string]any{"nodeMountGateway": map[string]any{"enabled": true, "sharedFilesystemClaim": "homes"}})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := parse(text, "here")
	if err != nil {
		t.Fatal(err)
	}
	a, err := findAgent(objects)
	if err != nil {
		t.Fatal(err)
	}
	if a.Name != ReleaseName || a.Namespace != "here" {
		t.Errorf("the DaemonSet is %s/%s", a.Namespace, a.Name)
	}
}

func TestAKeyThatTheChartDoesNotHaveIsAskedAbout(t *testing.T) {
	chart := chartOf(t)
	for set, want := range map[string]string{
		"nodeMountGateway.maxMountPerPod=3":     "nodeMountGateway.maxMountPerPod: is nodeMountGateway.maxMountsPerPod meant?",
		"kubletDir=/x":                          "kubletDir: is kubeletDir meant?",
		"maxMountsPerPod=3":                     "maxMountsPerPod: is nodeMountGateway.maxMountsPerPod meant?",
		"xyzzyqrst=1":                           "check --set",
		"nodeMountGateway.maxMountsPerPod=many": "check --set",
	} {
		values, _, err := Settings{Claim: "homes", Set: []string{set}}.Values()
		if err != nil {
			t.Fatal(err)
		}
		err = Sound(chart, values)
		if !isUsage(err) || !strings.Contains(advice.Hint(err), want) {
			t.Errorf("%s: %v, %s", set, err, advice.Hint(err))
		}
	}
}
