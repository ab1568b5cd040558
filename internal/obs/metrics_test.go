package obs

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/datalayer/node-mounts/grant"
)

// families gathers the metrics, by name.
func families(t *testing.T, r *Recorder) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := r.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

// exercise calls every method, with values inside and outside the tables.
func exercise(r *Recorder) {
	for _, k := range grant.Kinds() {
		r.Granted(k.Kind, time.Millisecond)
	}
	r.Granted("/a/path/of/somebody", time.Second)
	for _, c := range grant.Codes() {
		r.Failed(c.Code)
	}
	r.Failed("https://a.url/of/somebody")
	r.Revoked()
	r.Released()
	r.Leaked()
	r.SetMounts(3)
	r.SetPods(2)
	r.SetLeaked(1)
	r.Ready(time.Second)
	r.Ready(-time.Second) // a clock that went back
}

func TestTheTableOfMetricsIsWhatIsServed(t *testing.T) {
	got := families(t, NewRecorder("v1", "6.1.0"))
	for _, want := range Metrics() {
		f := got[want.Name]
		if f == nil {
			t.Errorf("%s is not served", want.Name)
			continue
		}
		if !strings.HasPrefix(want.Name, prefix) {
			t.Errorf("%s lacks the prefix", want.Name)
		}
		if typ := strings.ToLower(f.GetType().String()); typ != want.Type {
			t.Errorf("%s is a %s, the table says %s", want.Name, typ, want.Type)
		}
		if want.Help == "" || f.GetHelp() != want.Help {
			t.Errorf("%s: help is %q, the table says %q", want.Name, f.GetHelp(), want.Help)
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		declared := slices.Sorted(slices.Values(want.Labels))
		if !reflect.DeepEqual(labels, declared) {
			t.Errorf("%s has labels %v, the table says %v", want.Name, labels, declared)
		}
		delete(got, want.Name)
	}
	for name := range got {
		if strings.HasPrefix(name, prefix) || !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s is served and not in the table", name)
		}
	}
}

func TestTheExpositionPassesTheLinter(t *testing.T) {
	r := NewRecorder("v1", "6.1.0")
	exercise(r)
	problems, err := promlint.NewWithMetricFamilies(slices.Collect(maps.Values(families(t, r)))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestEveryCodeAndKindIsThereFromTheStartAndNoOtherLabelEver(t *testing.T) {
	series := func(r *Recorder) []string {
		var all []string
		for name, f := range families(t, r) {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			for _, m := range f.GetMetric() {
				all = append(all, fmt.Sprint(name, m.GetLabel()))
			}
		}
		slices.Sort(all)
		return all
	}
	r := NewRecorder("v1", "6.1.0")
	before := series(r)
	exercise(r)
	if after := series(r); !reflect.DeepEqual(after, before) {
		t.Errorf("use made series:\n%v\nbefore:\n%v", after, before)
	}
	got := families(t, r)
	if n := len(got[failedTotal].GetMetric()); n != len(grant.Codes()) {
		t.Errorf("%d codes, want %d", n, len(grant.Codes()))
	}
	if n := len(got[grantDuration].GetMetric()); n != len(grant.Kinds()) {
		t.Errorf("%d kinds, want %d", n, len(grant.Kinds()))
	}
	if !slices.ContainsFunc(got[grantDuration].GetMetric(), func(m *dto.Metric) bool { return m.GetLabel()[0].GetValue() == "plain" }) {
		t.Error(`the kind "" has no label "plain"`)
	}
}

func TestWhatIsRecordedIsServed(t *testing.T) {
	r := NewRecorder("v1", "6.1.0")
	exercise(r)
	kinds := len(grant.Kinds())
	want := fmt.Sprintf(`
# HELP datalayer_mount_gateway_build_info Always 1. The labels say what runs.
# TYPE datalayer_mount_gateway_build_info gauge
datalayer_mount_gateway_build_info{goversion=%q,kernel="6.1.0",version="v1"} 1
# HELP datalayer_mount_gateway_granted_total Grants mounted since the agent started.
# TYPE datalayer_mount_gateway_granted_total counter
datalayer_mount_gateway_granted_total %d
# HELP datalayer_mount_gateway_leaked Mounts that should be gone and are not, now.
# TYPE datalayer_mount_gateway_leaked gauge
datalayer_mount_gateway_leaked 1
# HELP datalayer_mount_gateway_leaked_total Mounts that would not unmount, or that a process still held when they were revoked. Each may keep its Pod in Terminating.
# TYPE datalayer_mount_gateway_leaked_total counter
datalayer_mount_gateway_leaked_total 1
# HELP datalayer_mount_gateway_mounts Grants mounted now.
# TYPE datalayer_mount_gateway_mounts gauge
datalayer_mount_gateway_mounts 3
# HELP datalayer_mount_gateway_pods Pods that have a tree on this node now.
# TYPE datalayer_mount_gateway_pods gauge
datalayer_mount_gateway_pods 2
# HELP datalayer_mount_gateway_released_total Pods released since the agent started.
# TYPE datalayer_mount_gateway_released_total counter
datalayer_mount_gateway_released_total 1
# HELP datalayer_mount_gateway_revoked_total Grants revoked since the agent started.
# TYPE datalayer_mount_gateway_revoked_total counter
datalayer_mount_gateway_revoked_total 1
`, runtime.Version(), kinds+1)
	got := families(t, r)
	var exposed strings.Builder
	for _, name := range []string{buildInfo, grantedTotal, leaked, leakedTotal, mounts, pods, releasedTotal, revokedTotal} {
		if _, err := expfmt.MetricFamilyToText(&exposed, got[name]); err != nil {
			t.Fatal(err)
		}
	}
	if exposed.String() != strings.TrimPrefix(want, "\n") {
		t.Errorf("exposed:\n%s\nwant:\n%s", exposed.String(), want)
	}
	for _, m := range got[failedTotal].GetMetric() {
		want := 1.0
		if m.GetLabel()[0].GetValue() == string(grant.CodeMountFailed) {
			want = 2 // and the failure whose code is not in the table
		}
		if m.GetCounter().GetValue() != want {
			t.Errorf("%v failed %v times, want %v", m.GetLabel(), m.GetCounter().GetValue(), want)
		}
	}
	for _, m := range got[grantDuration].GetMetric() {
		if h := m.GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 0.001 {
			t.Errorf("%v: %v", m.GetLabel(), h)
		}
	}
	if h := got[readySeconds].GetMetric()[0].GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 1 {
		t.Errorf("ready: %v", h)
	}
}

func TestRecordersShareNothing(t *testing.T) {
	a, b := NewRecorder("v1", "6.1.0"), NewRecorder("v1", "6.1.0")
	a.Leaked()
	if v := families(t, b)[leakedTotal].GetMetric()[0].GetCounter().GetValue(); v != 0 {
		t.Errorf("the other recorder counts %v", v)
	}
}

func TestTheKernelSaysItsRelease(t *testing.T) {
	if k := KernelRelease(); k == "unknown" || !strings.Contains(k, ".") || strings.ContainsRune(k, 0) {
		t.Errorf("the release is %q", k)
	}
}
