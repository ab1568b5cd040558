package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/verify"
)

// findings are the document of a verification.
type findings struct {
	OK      bool            `json:"ok"`
	Summary tally           `json:"summary"`
	Results []verify.Result `json:"results"`
	Probe   []verify.Result `json:"probe,omitempty"`
}

// tally counts checks, each by its worst result.
type tally struct {
	OK   int `json:"ok"`
	Warn int `json:"warn"`
	Fail int `json:"fail"`
	Skip int `json:"skip"`
}

func reported(results []verify.Result) *findings { return &findings{Results: results} }

func (f *findings) count() {
	byCheck := map[string][]verify.Result{}
	for _, r := range append(append([]verify.Result{}, f.Results...), f.Probe...) {
		byCheck[r.Check] = append(byCheck[r.Check], r)
	}
	for _, results := range byCheck {
		switch verify.Worst(results) {
		case verify.Fail:
			f.Summary.Fail++
		case verify.Warn:
			f.Summary.Warn++
		case verify.Skip:
			f.Summary.Skip++
		default:
			f.Summary.OK++
		}
	}
	f.OK = f.Summary.Fail == 0
}

func (f *findings) write(out, errOut io.Writer, form output) error {
	if form.structured() {
		return writeDocument(out, form, f)
	}
	var rows [][]string
	for _, r := range together(f.Results) {
		rows = append(rows, []string{r.Check, string(r.Status), r.on(), r.Detail})
	}
	if err := writeTable(out, []string{"CHECK", "STATUS", "NODE", "DETAIL"}, rows); err != nil {
		return err
	}
	if len(f.Probe) > 0 {
		rows = nil
		for _, r := range f.Probe {
			rows = append(rows, []string{r.Node, r.Check, string(r.Status), r.Detail})
		}
		fmt.Fprintln(out)
		if err := writeTable(out, []string{"NODE", "PROBE", "STATUS", "DETAIL"}, rows); err != nil {
			return err
		}
	}
	s := f.Summary
	fmt.Fprintf(out, "\n%d checks: %d ok, %d warn, %d fail, %d skip\n", s.OK+s.Warn+s.Fail+s.Skip, s.OK, s.Warn, s.Fail, s.Skip)
	for _, r := range together(f.Results) {
		if r.Status == verify.Warn {
			fmt.Fprintf(errOut, "hint: %s: %s\n", r.Check, advice.Plain(r.Hint))
		}
	}
	return nil
}

// group is one result of several nodes.
type group struct {
	verify.Result
	nodes []string
}

// together makes one line of the nodes that say the same of one check.
func together(results []verify.Result) []group {
	var groups []group
	at := map[verify.Result]int{}
	for _, r := range results {
		key := r
		key.Node = ""
		i, there := at[key]
		if !there {
			i = len(groups)
			at[key] = i
			groups = append(groups, group{Result: key})
		}
		if r.Node != "" {
			groups[i].nodes = append(groups[i].nodes, r.Node)
		}
	}
	return groups
}

// on names the nodes. What is well on many needs no names.
func (g group) on() string {
	const few = 3
	switch n := len(g.nodes); {
	case n <= few && g.Status != verify.OK, n == 1:
		return strings.Join(g.nodes, ",")
	case g.Status != verify.OK:
		return fmt.Sprintf("%s and %d more", strings.Join(g.nodes[:few], ","), n-few)
	case n == 0:
		return ""
	default:
		return fmt.Sprintf("%d nodes", n)
	}
}

// failed is an error for each check that failed.
func (f *findings) failed() advice.Several {
	var failed advice.Several
	for _, r := range together(append(append([]verify.Result{}, f.Results...), f.Probe...)) {
		if r.Status != verify.Fail {
			continue
		}
		what := r.Detail
		if on := r.on(); on != "" {
			what = on + ": " + what
		}
		failed = append(failed, advice.With(failedCheck{fmt.Sprintf("%s: %s", r.Check, what)}, r.Hint))
	}
	return failed
}

// leftBehind is an error for each step that failed of a probe that was interrupted. It
// is none of the checks': they were not all made.
func leftBehind(probe []verify.Result) advice.Several {
	var errs advice.Several
	for _, r := range probe {
		if r.Status == verify.Fail {
			errs = append(errs, advice.With(fmt.Errorf("%s: %s: %s", r.Check, r.Node, r.Detail), r.Hint))
		}
	}
	return errs
}

// allOf adds what failed to an error that came before.
func allOf(first error, failed advice.Several) error {
	switch {
	case first != nil:
		return append(advice.Several{first}, failed...)
	case len(failed) > 0:
		return failed
	}
	return nil
}

// failedCheck is something that is not as it must be.
type failedCheck struct{ what string }

func (f failedCheck) Error() string { return f.what }
func (failedCheck) Unwrap() error   { return verify.ErrFailed }
