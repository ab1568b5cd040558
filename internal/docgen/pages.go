package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/cli"
	"github.com/datalayer/node-mounts/internal/keepercmd"
	"github.com/datalayer/node-mounts/internal/obs"
	nodechecks "github.com/datalayer/node-mounts/internal/verify"
)

const generated = marker + " from the code. Edit the table in %s instead. -->\n\n"

// marker is in every page that is generated.
const marker = "<!-- Written by `make docs`"

// pages returns everything docs/reference holds.
func pages() []page {
	return []page{
		{"kinds.md", kindsPage(grant.Kinds())},
		{"codes.md", codesPage(grant.Codes())},
		{"agent-flags.md", flagsPage(agentcmd.Options(), agentcmd.Command())},
		{"keeper-flags.md", keeperPage(keepercmd.Command())},
		{"metrics.md", metricsPage(obs.Metrics())},
		{"cli.md", cliPage(cli.Command(), cli.ExitStatuses())},
		{"checks.md", checksPage(nodechecks.Checks(), nodechecks.ProbeSteps())},
	}
}

func kindsPage(kinds []grant.KindInfo) string {
	var b strings.Builder
	b.WriteString("# Kinds\n\n")
	fmt.Fprintf(&b, generated, "grant/kind.go")
	b.WriteString("A grant's `kind` says what is mounted, how its `source` is written and how the agent makes the mount.\n\n")
	table(&b, "Kind", "What it is", "Source", "Delivery", "Missing folder", "Mode", "Chart value that turns it on")
	for _, k := range kinds {
		missing, mode, value := "—", "as granted", "always on"
		switch {
		case k.Creates:
			missing = "made"
		case k.Delivery == grant.DeliveryBind:
			missing = "refused"
		}
		if k.ReadOnly {
			mode = "always `ro`"
		}
		switch {
		case k.Unserved:
			value = "not served by this release"
		case k.Switch != "":
			value = code(k.Switch)
		}
		row(&b, code(quoteEmpty(string(k.Kind))), k.Summary, k.SourceForm, code(string(k.Delivery)), missing, mode, value)
	}
	b.WriteString("\nIn a path, and in the export of `nfs`, repeated slashes count as one and one at the end as none: `h:/a//b/` is\n" +
		"`h:/a/b`. An export that begins with two is refused.\n")
	return b.String()
}

func codesPage(codes []grant.CodeInfo) string {
	var b strings.Builder
	b.WriteString("# Codes\n\n")
	fmt.Fprintf(&b, generated, "grant/code.go")
	b.WriteString("Why something in a mount set is not as it was asked. They appear in the answer's `failed`, by target\n" +
		"([how to read an answer](../tasks/read-an-answer.md)).\n\n")
	table(&b, "Code", "What happened", "What to do", "Final")
	for _, c := range codes {
		final := "yes"
		if c.Passes {
			final = "no"
		}
		row(&b, code(string(c.Code)), c.Meaning, c.Remedy, final)
	}
	b.WriteString("\nAn answer is final for whoever waits (`node-mounts wait`, `--wait`, `Wait` of the package `operator`) when nothing in it\n" +
		"has failed, or something has with a code that is final. By a code that is not, nothing is wrong: it takes its time, and\n" +
		"the agent answers again without being asked. By all the others something is wrong. The agent tries some of them again by\n" +
		"itself too, as the remedy says, and answers again when that helps; but it may never help, so they end a wait. A code\n" +
		"that is not in this table, of a newer agent, counts as final.\n")
	return b.String()
}

func flagsPage(options []agentcmd.Option, root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Flags of the agent\n\n")
	fmt.Fprintf(&b, generated, "internal/agentcmd/options.go")
	b.WriteString("`node-mounts-agent` takes every setting as a flag. A flag wins over its environment variable, and that over the\n" +
		"default. A variable that is set and empty is as good as unset, except where the table says that empty is a value.\n\n")
	table(&b, "Flag", "Variable", "Value", "Default", "What it is")
	for _, o := range options {
		env, value, help := "—", "—", o.Help
		if o.Env != "" {
			env = code(o.Env)
		}
		if o.Default != "" {
			value = code(o.Default)
		}
		if o.EmptyCounts {
			help += " (empty is a value)"
		}
		row(&b, code("--"+o.Flag), env, o.Type, value, help)
	}
	for _, cmd := range shown(root) {
		section(&b, cmd)
	}
	return b.String()
}

func metricsPage(metrics []obs.Info) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n")
	fmt.Fprintf(&b, generated, "internal/obs/metrics.go")
	b.WriteString("Served in the Prometheus text format at `/metrics` of the agent, beside the Go runtime's own (`go_*`, `process_*`).\n" +
		"Every value of a label is there from the start, at 0: an alert on an increase sees the first one. No label holds a uid,\n" +
		"a path or a URL.\n\n")
	table(&b, "Metric", "Type", "Labels", "What it counts")
	for _, m := range metrics {
		labels := "—"
		if len(m.Labels) > 0 {
			labels = code(strings.Join(m.Labels, "`, `"))
		}
		row(&b, code(m.Name), m.Type, labels, m.Help)
	}
	return b.String()
}

// table writes the head of a Markdown table.
func table(b *strings.Builder, head ...string) {
	row(b, head...)
	b.WriteString("|" + strings.Repeat("---|", len(head)) + "\n")
}

// row writes one line of it. A bar would end the cell, a line break the row.
func row(b *strings.Builder, cells ...string) {
	escape := strings.NewReplacer("|", `\|`, "\n", " ")
	b.WriteString("|")
	for _, c := range cells {
		b.WriteString(" " + escape.Replace(c) + " |")
	}
	b.WriteString("\n")
}

func code(text string) string { return "`" + text + "`" }

// quoteEmpty makes the empty kind visible.
func quoteEmpty(text string) string {
	if text == "" {
		return `""`
	}
	return text
}
