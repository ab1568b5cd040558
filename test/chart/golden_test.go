package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"sigs.k8s.io/yaml"
)

// rewriteVariable makes the goldens from what is rendered. Commit only what you
// understand.
const rewriteVariable = "CHART_TEST_REWRITE"

// Each file of testdata/values is rendered to the file of its name in
// testdata/golden.
func TestRenderingsAreTheOnesThatWereReadBefore(t *testing.T) {
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			values, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r := must(t, string(values))
			got := r.text + "---\n# NOTES.txt\n" + comment(r.notes)
			golden := filepath.Join("testdata/golden", name)
			if os.Getenv(rewriteVariable) != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if line, have, expected := firstDifference(got, string(want)); line > 0 {
				t.Errorf("%s:%d differs: rendered %q, and there is %q (%s=1 writes it anew)", golden, line, have, expected, rewriteVariable)
			}
		})
	}
}

func comment(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("# " + line)
	}
	return b.String()
}

func firstDifference(a, b string) (line int, inA, inB string) {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(as), len(bs)) {
		var x, y string
		if i < len(as) {
			x = as[i]
		}
		if i < len(bs) {
			y = bs[i]
		}
		if x != y {
			return i + 1, x, y
		}
	}
	return 0, "", ""
}

func TestHelmLintHasNothingToSay(t *testing.T) {
	version, err := common.ParseKubeVersion("v1.37.0")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal([]byte(least), &values); err != nil {
		t.Fatal(err)
	}
	lint := action.NewLint()
	lint.Strict, lint.KubeVersion, lint.Namespace = true, version, namespace
	result := lint.Run([]string{"../../charts/node-mounts"}, values)
	for _, err := range result.Errors {
		t.Error(err)
	}
	if result.TotalChartsLinted != 1 {
		t.Errorf("%d charts were looked at", result.TotalChartsLinted)
	}
}

// The defaults are not a release: nothing says which claim.
func TestEveryDefaultIsOneThatTheSchemaKnows(t *testing.T) {
	var schema, values map[string]any
	c := the(t)
	if err := yaml.UnmarshalStrict(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	values = c.Values
	compare(t, "", schema, values)
}

// compare wants the same keys in a schema and in values, and every object of the
// chart's own closed.
func compare(t *testing.T, at string, schema, values map[string]any) {
	t.Helper()
	properties, ok := schema["properties"].(map[string]any)
	if !ok {
		return // an object of Kubernetes or of the user's
	}
	if schema["additionalProperties"] != false {
		t.Errorf("%q takes keys that nobody reads", at)
	}
	for name, property := range properties {
		value, ok := values[name]
		if !ok && at+name != "global" && !strings.HasPrefix(at, "affinity.") && !strings.Contains(at, "resources.") {
			t.Errorf("%s%s has no default", at, name)
		}
		below, isMap := value.(map[string]any)
		if p, ok := property.(map[string]any); ok && isMap {
			compare(t, at+name+".", p, below)
		}
	}
	for name := range values {
		if _, ok := properties[name]; !ok {
			t.Errorf("%s%s has a default and is not in the schema", at, name)
		}
	}
}
