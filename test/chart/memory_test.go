package chart

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/datalayer/node-mounts/internal/agentcmd"
)

// limit is the agent's memory limit, "none" without one.
func limit(t testing.TB, r rendered) string {
	t.Helper()
	q, ok := driver(t, r).Resources.Limits["memory"]
	if !ok {
		return "none"
	}
	return resource.NewQuantity(q.Value(), resource.BinarySI).String()
}

const repositories = "nodeMountGateway: {repositories: true}"

// needed is what the agent may take beside its own 512Mi where git's processes may take
// so much each.
func needed(t testing.TB, each string) string {
	t.Helper()
	own, git := resource.MustParse("512Mi"), resource.MustParse(each)
	return resource.NewQuantity(own.Value()+agentcmd.GitProcesses*git.Value(), resource.BinarySI).String()
}

func TestTheMemoryLimitIsWhatTenantsCanMakeTheAgentTake(t *testing.T) {
	for name, c := range map[string]struct {
		values []string
		want   string
	}{
		"without repositories":        {nil, "512Mi"},
		"git's memory alone":          {[]string{"nodeMountGateway: {git: {memory: 1Gi}}"}, "512Mi"},
		"with repositories":           {[]string{repositories}, needed(t, "256Mi")},
		"with less for git":           {[]string{repositories, "nodeMountGateway: {git: {memory: 128Mi}}"}, needed(t, "128Mi")},
		"with git's memory in bytes":  {[]string{repositories, `nodeMountGateway: {git: {memory: "134217728"}}`}, needed(t, "128Mi")},
		"a limit that is set":         {[]string{repositories, "driver: {resources: {limits: {memory: 8Gi}}}"}, "8Gi"},
		"a limit that is set, small":  {[]string{"driver: {resources: {limits: {memory: 128Mi}}}"}, "128Mi"},
		"a limit in bytes":            {[]string{repositories, "driver: {resources: {limits: {memory: 8589934592}}}"}, "8Gi"},
		"another limit is set":        {[]string{repositories, "driver: {resources: {limits: {cpu: 2}}}"}, needed(t, "256Mi")},
		"an empty limit of processor": {[]string{`driver: {resources: {limits: {cpu: ""}}}`}, "512Mi"},
		"no limit":                    {[]string{repositories, "driver: {resources: {limits: {memory: null}}}"}, "none"},
		"no limits":                   {[]string{repositories, "driver: {resources: {limits: null}}"}, "none"},
		"no resources":                {[]string{repositories, "driver: {resources: null}"}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			r := must(t, append([]string{least}, c.values...)...)
			if got := limit(t, r); got != c.want {
				t.Errorf("the limit is %s, expected %s", got, c.want)
			}
			if cpu, ok := driver(t, r).Resources.Limits["cpu"]; ok && cpu.IsZero() {
				t.Error("the processor's limit is nothing")
			}
			if strings.Contains(r.notes, "limits.memory") {
				t.Errorf("there is nothing to tell: %s", r.notes)
			}
		})
	}
}

func TestAMemoryLimitThatTenantsCanReachIsTold(t *testing.T) {
	for name, c := range map[string]struct{ set, git string }{
		"in Gi": {"2Gi", "256Mi"}, "with a point": {"1.6Gi", "256Mi"}, "of a thousand": {"2G", "256Mi"}, "in bytes": {"2147483648", "256Mi"},
		"almost": {"4607Mi", "256Mi"}, "with more for git": {"8Gi", "1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			r := must(t, least, repositories, "driver: {resources: {limits: {memory: "+c.set+"}}}", "nodeMountGateway: {git: {memory: "+c.git+"}}")
			want := resource.MustParse(needed(t, c.git))
			if given := driver(t, r).Resources.Limits["memory"]; !strings.Contains(r.notes, "may take "+mebibytes(want)) || given.Cmp(resource.MustParse(c.set)) != 0 {
				t.Errorf("the limit is %s, and the notes say %q", limit(t, r), r.notes)
			}
		})
	}
	enough := must(t, least, repositories, "driver: {resources: {limits: {memory: 4608Mi}}}")
	if strings.Contains(enough.notes, "limits.memory") {
		t.Errorf("there is nothing to tell: %s", enough.notes)
	}
}

func TestAMemoryThatCredentialsDoNotFitIsRefused(t *testing.T) {
	for _, git := range []string{"127Mi", "32Mi", `"134217727"`} {
		_, err := render(t, least, repositories, "nodeMountGateway: {git: {memory: "+git+"}}")
		if err == nil || !strings.Contains(err.Error(), "give it 128Mi or more") {
			t.Errorf("%s: %v", git, err)
		}
		must(t, least, "nodeMountGateway: {git: {memory: "+git+"}}") // no git runs
	}
}

func mebibytes(q resource.Quantity) string {
	return resource.NewQuantity(q.Value()>>20, resource.DecimalSI).String() + "Mi"
}

func TestAMemoryLimitThatOneRepositoryReachesIsRefused(t *testing.T) {
	for _, set := range []string{"512Mi", "1535Mi", "1.4Gi", "1000000000", "1G", "1500000000000m"} {
		_, err := render(t, least, repositories, "driver: {resources: {limits: {memory: "+set+"}}}")
		if err == nil || !strings.Contains(err.Error(), "is less than one repository may take (1536Mi)") {
			t.Errorf("%s: %v", set, err)
		}
	}
	must(t, least, repositories, "driver: {resources: {limits: {memory: 1536Mi}}}")
}
