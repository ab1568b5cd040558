package main

import (
	"strings"
	"testing"
)

const someValues = `# About the file.

# Its name.
name: a

# What it does.
work:
  # How often.
  times: 3
  # The limits.
  limits:
    cpu: 1
  deeper:
    # Or not.
    really: true
list: [] # beside it
`

func TestValuesAreReadWithTheirComments(t *testing.T) {
	_, err := readValues(someValues)
	if err == nil || !strings.Contains(err.Error(), "list is explained by no comment") {
		t.Fatalf("a value without a comment: %v", err)
	}
	values, err := readValues(strings.ReplaceAll(someValues, "list:", "# Some.\nlist:"))
	if err != nil {
		t.Fatal(err)
	}
	page := valuesPage(values)
	for _, part := range []string{
		"\n## work\n\nWhat it does.\n",
		"\n| `work.times` | `3` | How often. |\n",
		"\n| `work.limits` | `{\"cpu\":1}` | The limits. |\n",
		"\n| `work.deeper.really` | `true` | Or not. |\n",
		"\n| `name` | `\"a\"` | Its name. |\n",
		"\n| `list` | `[]` | Some. |\n",
	} {
		if !strings.Contains(page, part) {
			t.Errorf("no %q in\n%s", part, page)
		}
	}
	if strings.Contains(page, "About the file") || strings.Contains(page, "| `work.deeper` |") || strings.Contains(page, "work.limits.cpu") {
		t.Errorf("what is no value is there:\n%s", page)
	}
}

func TestTheChartsValuesAreAllExplained(t *testing.T) {
	page, err := chartPage()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nodeMountGateway.sharedFilesystemClaim", "apiServer.port", "monitoring.prometheusRule", "registrar.image.tag", "tolerations"} {
		if !strings.Contains(page, "\n| `"+name+"` | ") {
			t.Errorf("no row for %s", name)
		}
	}
}

func TestCompareLeavesOtherFilesAlone(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir, []page{{"README.md", "a\n"}, {"values.yaml", "b\n"}}); err != nil {
		t.Fatal(err)
	}
	if err := compare(dir, []page{{"README.md", "a\n"}}); err != nil {
		t.Errorf("got %v", err)
	}
	if err := compare(dir, []page{{"README.md", "c\n"}}); err == nil {
		t.Error("a stale page is not seen")
	}
}
