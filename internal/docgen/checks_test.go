package main

import (
	"strings"
	"testing"

	nodechecks "github.com/datalayer/node-mounts/internal/verify"
)

func TestEveryCheckAndStepHasALine(t *testing.T) {
	text := checksPage(nodechecks.Checks(), nodechecks.ProbeSteps())
	for _, c := range nodechecks.Checks() {
		if !strings.Contains(text, "\n| "+c.Name+" | "+c.What+" | ") {
			t.Errorf("no row for %q", c.Name)
		}
	}
	for _, s := range nodechecks.ProbeSteps() {
		if !strings.Contains(text, ". "+s+"\n") {
			t.Errorf("no line for %q", s)
		}
	}
}
