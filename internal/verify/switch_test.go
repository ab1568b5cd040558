package verify_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/datalayer/node-mounts/internal/verify"
)

// switches are values of the variable: on, off, or neither.
func switches() (on, off, neither []string) {
	return []string{"true", "True", "TRUE", "tRuE", "1", " true\n", "t"},
		[]string{"false", "False", "0", " FALSE ", "f"},
		[]string{"", "yes", "on", "2", "-1", "true false"}
}

func says(value string) corev1.Container {
	return corev1.Container{Name: "says", Env: []corev1.EnvVar{{Name: "OTHER", Value: "true"}, {Name: verify.EnabledVariable, Value: value}}}
}

func TestAnOperatorIsOnWhereOneOfItsContainersSaysSo(t *testing.T) {
	silent := corev1.Container{Name: "silent"}
	on, off, neither := switches()
	for _, value := range on {
		for where, pod := range map[string]corev1.PodSpec{
			"the only container": {Containers: []corev1.Container{says(value)}},
			"the second":         {Containers: []corev1.Container{silent, says(value)}},
			"an init container":  {InitContainers: []corev1.Container{says(value)}, Containers: []corev1.Container{silent}},
			"one of two":         {Containers: []corev1.Container{says("false"), says(value)}},
		} {
			if !verify.OperatorOn(pod) {
				t.Errorf("%s says %q, and the half is off", where, value)
			}
		}
	}
	for _, value := range append(off, neither...) {
		if verify.OperatorOn(corev1.PodSpec{InitContainers: []corev1.Container{says(value)}, Containers: []corev1.Container{says(value)}}) {
			t.Errorf("%q, and the half is on", value)
		}
	}
	if verify.OperatorOn(corev1.PodSpec{}) {
		t.Error("nothing is said, and the half is on")
	}
	from := says("")
	from.Env[1].ValueFrom = &corev1.EnvVarSource{}
	if verify.OperatorOn(corev1.PodSpec{Containers: []corev1.Container{from}}) {
		t.Error("the value is somewhere else, and the half is on")
	}
}

// judgedBySwitch are the two checks that look at the DaemonSet's switch, where it says
// this. No agent tells of its node, for else that counts.
func judgedBySwitch(value string) []verify.Result {
	f := healthy()
	c := &f.DaemonSets.Value[0].Spec.Template.Spec.Containers[0]
	c.Env = append(c.Env, corev1.EnvVar{Name: verify.EnabledVariable, Value: value})
	noDocuments(&f)
	var rows []verify.Result
	for _, r := range verify.Judge(f) {
		if r.Check == enabled || r.Check == agree {
			rows = append(rows, r)
		}
	}
	return rows
}

func TestADaemonSetIsOffWhereItSaysSoInAnySpelling(t *testing.T) {
	on, off, neither := switches()
	for _, value := range off {
		want := fmt.Sprintf("says %s=%s", verify.EnabledVariable, strings.TrimSpace(value))
		rows := judgedBySwitch(value)
		for _, r := range rows {
			if r.Status != verify.Fail || !strings.Contains(r.Detail, want) {
				t.Errorf("%q: %+v, want %q", value, r, want)
			}
		}
		if len(rows) != 2 {
			t.Errorf("%q: two checks look at it, and not %+v", value, rows)
		}
	}
	for _, value := range append(on, neither...) {
		for _, r := range judgedBySwitch(value) {
			if strings.Contains(r.Detail, verify.EnabledVariable) {
				t.Errorf("%q is taken for off: %+v", value, r)
			}
		}
	}
}
