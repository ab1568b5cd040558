// Package chart holds the chart to what it promises: rendered by Helm's own
// library, decoded as the API server would, read by the agent's own parser, and
// its policies judged by a real API server.
package chart

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/charts"
)

const (
	fullname  = "datalayer-node-mounts"
	namespace = "datalayer-system" // of the release
	runtimes  = "datalayer-runtimes"
)

// least is the smallest set of values that the chart accepts.
const least = "nodeMountGateway: {enabled: true, sharedFilesystemClaim: shared-fs}"

// the returns the chart as programs get it.
func the(t testing.TB) *chartv2.Chart {
	t.Helper()
	files, err := charts.NodeMounts()
	if err != nil {
		t.Fatal(err)
	}
	var all []*archive.BufferedFile
	err = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		all = append(all, &archive.BufferedFile{Name: name, Data: data})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.LoadFiles(all)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// rendered is what one set of values makes.
type rendered struct {
	notes   string
	objects []runtime.Object // the release's
	hooks   []runtime.Object
	rules   *prometheusRule
	text    string
}

// cluster is where the chart is rendered for.
type cluster struct{ version string }

// render makes a release of the values over the defaults. Later values win.
func render(t testing.TB, values ...string) (rendered, error) {
	t.Helper()
	return renderFor(t, cluster{"v1.37.0"}, values...)
}

func renderFor(t testing.TB, where cluster, values ...string) (rendered, error) {
	t.Helper()
	merged := map[string]any{}
	for _, text := range values {
		var m map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		merged = loader.MergeMaps(merged, m)
	}
	version, err := common.ParseKubeVersion(where.version)
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(action.NewConfiguration())
	install.DryRunStrategy = action.DryRunClient
	install.ReleaseName, install.Namespace = "nm", namespace
	install.KubeVersion = version
	made, err := install.Run(the(t), merged)
	if err != nil {
		return rendered{}, err
	}
	release, ok := made.(*releasev1.Release)
	if !ok {
		t.Fatalf("a release is a %T", made)
	}
	r := rendered{notes: release.Info.Notes, text: release.Manifest}
	r.objects = r.decode(t, release.Manifest)
	for _, hook := range release.Hooks {
		r.hooks = append(r.hooks, r.decode(t, hook.Manifest)...)
		r.text += "---\n# hook\n" + hook.Manifest + "\n"
	}
	return r, nil
}

// must renders what has to be accepted.
func must(t testing.TB, values ...string) rendered {
	t.Helper()
	r, err := render(t, values...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// decode reads every document with the API's own types. A field they do not know
// is an error: the API server would drop it in silence.
func (r *rendered) decode(t testing.TB, manifest string) []runtime.Object {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for _, text := range strings.Split("\n"+manifest, "\n---") {
		if bare(text) == "" {
			continue
		}
		if strings.Contains(text, "\nkind: PrometheusRule\n") {
			r.rules = &prometheusRule{}
			if err := yaml.UnmarshalStrict([]byte(text), r.rules); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
			continue
		}
		object, _, err := strict.Decode([]byte(text), nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
			continue
		}
		all = append(all, object)
	}
	return all
}

// bare is a document without comments and empty lines.
func bare(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// all returns the objects of one type.
func all[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, o := range objects {
		if typed, ok := o.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// named returns the object of a type that has the name.
func named[T interface {
	runtime.Object
	GetName() string
}](t testing.TB, objects []runtime.Object, name string) T {
	t.Helper()
	for _, o := range all[T](objects) {
		if o.GetName() == name {
			return o
		}
	}
	var none T
	t.Fatalf("no %T is named %s", none, name)
	return none
}

func agents(t testing.TB, r rendered) *appsv1.DaemonSet {
	t.Helper()
	for _, set := range all[*appsv1.DaemonSet](r.objects) {
		if set.Labels["app.kubernetes.io/component"] == "agent" {
			return set
		}
	}
	t.Fatal("no DaemonSet is the agents'")
	return nil
}

// The operator's CRD, as far as the chart uses it.
type prometheusRule struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func (p *prometheusRule) alerts() []alert {
	var every []alert
	for _, g := range p.Spec.Groups {
		every = append(every, g.Rules...)
	}
	return every
}

// TestAnUnknownFieldFailsADecoding: the check of all other renderings can fail.
func TestAnUnknownFieldFailsADecoding(t *testing.T) {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	_, _, err := strict.Decode([]byte("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\nautomountToken: false\n"), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "automountToken") {
		t.Errorf("got %v", err)
	}
	if !runtime.IsStrictDecodingError(errors.Unwrap(fmt.Errorf("%w", err))) {
		t.Errorf("%v is no strict decoding error", err)
	}
}
