package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestProseIsAsWideAsItMayBe(t *testing.T) {
	full, more := strings.Repeat("é", columns), strings.Repeat("é", columns+1)
	for name, test := range map[string]struct {
		text string
		wide []int
	}{
		"a line that is full":       {full + "\n", nil},
		"a wider one":               {"# Title\n\n" + more + "\n", []int{3}},
		"the item of a list":        {"- " + full, []int{1}},
		"the row of a table":        {"| " + more + " |\n  | " + more + " |", nil},
		"code":                      {"```sh\n" + more + "\n```\n" + more, []int{4}},
		"code in a list":            {"- one:\n\n  ```\n" + more + "\n  ```\n" + more, []int{6}},
		"the target of a link":      {"see [it](" + more + ") there", nil},
		"the words around a link":   {"[it](there) " + full, []int{1}},
		"a link whose text is wide": {"[" + more + "](there)", []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tooWide(test.text); !slices.Equal(got, test.wide) {
				t.Errorf("lines %v, want %v", got, test.wide)
			}
		})
	}
}

func TestAWideLineIsNamedByPageAndNumber(t *testing.T) {
	page := filepath.Join(t.TempDir(), "a.md")
	if err := os.WriteFile(page, []byte("short\n"+strings.Repeat("long ", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkProse([]string{page}); err == nil || !strings.Contains(err.Error(), page+":2 is wider than 120 columns") {
		t.Errorf("got %v", err)
	}
}
