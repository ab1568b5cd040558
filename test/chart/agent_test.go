package chart

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/internal/agentcmd"
)

// usage is the agent's exit status for a setting that it does not take.
const usage = 2

// The agent is started as the DaemonSet starts it, and gets as far as looking for
// its cluster, which is after it has read every setting.
func TestTheAgentTakesItsSettings(t *testing.T) {
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			values, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			status, said := start(t, must(t, string(values)))
			if status == usage || !strings.Contains(said, "kubeconfig") {
				t.Errorf("exit status %d: %s", status, said)
			}
		})
	}
}

func TestASettingThatTheAgentDoesNotTakeIsSeen(t *testing.T) {
	status, said := start(t, must(t, least, "driver: {extraArgs: [--no-such-flag=1]}"))
	if status != usage || !strings.Contains(said, "no-such-flag") {
		t.Errorf("exit status %d: %s", status, said)
	}
}

// Every setting of the agent that its environment may give is one that the chart
// gives, or leaves out for a reason.
func TestTheChartGivesEverySetting(t *testing.T) {
	leftOut := map[string]string{"kubeconfig": "in a cluster the account of the Pod counts"}
	r := must(t, least)
	for _, o := range agentcmd.Options() {
		given := o.Env != "" && env(t, r, o.Env) != "(not there)" || arg(t, r, "--"+o.Flag) != "(not there)"
		if _, out := leftOut[o.Flag]; given == out {
			t.Errorf("--%s: given %v", o.Flag, given)
		}
	}
}

// The defaults of chart and agent are the same.
func TestTheChartsDefaultsAreTheAgents(t *testing.T) {
	r := must(t, least)
	for _, o := range agentcmd.Options() {
		got := arg(t, r, "--"+o.Flag)
		if o.Env != "" {
			got = env(t, r, o.Env)
		}
		if o.Default != "" && got != o.Default {
			t.Errorf("--%s is %q by the chart and %q by the agent", o.Flag, got, o.Default)
		}
	}
}

func start(t *testing.T, r rendered) (status int, said string) {
	t.Helper()
	for _, e := range driver(t, r).Env {
		if e.ValueFrom != nil {
			e.Value = "node-1"
		}
		t.Setenv(e.Name, e.Value)
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "no-kubeconfig"))
	var out, errs bytes.Buffer
	status = agentcmd.Main("test", driver(t, r).Args, &out, &errs)
	return status, errs.String()
}
