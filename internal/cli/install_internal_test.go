package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/install"
	"github.com/datalayer/node-mounts/internal/verify"
)

func TestAReportIsTablesWithWhatToDoBeneath(t *testing.T) {
	report := install.Report{
		Release: "r", Namespace: "n", Revision: 2, Change: install.Upgraded, Operator: "o/d",
		Preflight: []install.Row{
			{Check: "Claim", Status: verify.OK, Detail: "homes"},
			{Check: "Node", Node: "one", Status: verify.Warn, Detail: "silent", Hint: "repeat"},
		},
		Rollout: []install.Row{{Check: "Agent", Node: "two", Status: verify.OK, Hint: "not told: it is well"}},
	}
	var out strings.Builder
	r := releasing{form: readable}
	if err := r.writeReport(&out, report, nil); err != nil {
		t.Fatal(err)
	}
	want := `PREFLIGHT   STATUS   NODE   DETAIL
Claim       ok       -      homes
Node        warn     one    silent
What to do:
  Node, one: repeat

ROLLOUT   STATUS   NODE   DETAIL
Agent     ok       two    -

Upgraded: revision 2 of r in n, and every node has its agent.
The operator's half is on: o/d.
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := r.writeReport(&out, report, errors.New("it failed")); err != nil || strings.Contains(out.String(), "Upgraded") {
		t.Errorf("a failure says that all is well (%v):\n%s", err, out.String())
	}
}

func TestAnInstallationEndsWithTheStatusOfWhatStoppedIt(t *testing.T) {
	late := fmt.Errorf("two nodes: %w", install.ErrTimeout)
	check := fmt.Errorf("one row: %w", verify.ErrFailed)
	for name, test := range map[string]struct {
		err    error
		status int
		lines  int
	}{
		"nothing":                           {nil, advice.StatusOK, 0},
		"a node that is late":               {late, advice.StatusTimeout, 1},
		"a check":                           {check, advice.StatusChecks, 1},
		"a check, with the operator on":     {advice.Several{check, errors.New("it is on")}, advice.StatusChecks, 2},
		"a late node, with the operator on": {advice.Several{late, errors.New("it is on")}, advice.StatusTimeout, 2},
	} {
		err := test.err
		var told strings.Builder
		report(&told, programName, err)
		if got := exitStatus(err); got != test.status || strings.Count(told.String(), "error: ") != test.lines {
			t.Errorf("%s: %d\n%s", name, got, told.String())
		}
	}
}
