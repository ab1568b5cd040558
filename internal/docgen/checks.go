package main

import (
	"fmt"
	"strings"

	nodechecks "github.com/datalayer/node-mounts/internal/verify"
)

func checksPage(checks []nodechecks.Check, steps []string) string {
	var b strings.Builder
	b.WriteString("# Checks\n\n")
	fmt.Fprintf(&b, generated, "internal/verify/verify.go")
	b.WriteString("What `node-mounts verify` looks at, in its order ([how to use it](../tasks/verify.md)).\n\n")
	table(&b, "Check", "What a failure means", "What to do")
	for _, c := range checks {
		row(&b, c.Name, c.What, c.Do)
	}
	b.WriteString("\nWith `--probe` each node also proves that\n\n")
	for i, s := range steps {
		fmt.Fprintf(&b, "%d. %s\n", i+1, s)
	}
	return b.String()
}
