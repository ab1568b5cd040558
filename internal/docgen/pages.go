package main

import (
	"fmt"
	"strings"

	"github.com/datalayer/node-mounts/grant"
)

const generated = "<!-- Written by `make docs` from the code. Edit the table in %s instead. -->\n\n"

// pages returns everything docs/reference holds.
func pages() []page {
	return []page{
		{"kinds.md", kindsPage(grant.Kinds())},
		{"codes.md", codesPage(grant.Codes())},
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
		if k.Switch != "" {
			value = code(k.Switch)
		}
		row(&b, code(quoteEmpty(string(k.Kind))), k.Summary, k.SourceForm, code(string(k.Delivery)), missing, mode, value)
	}
	return b.String()
}

func codesPage(codes []grant.CodeInfo) string {
	var b strings.Builder
	b.WriteString("# Codes\n\n")
	fmt.Fprintf(&b, generated, "grant/code.go")
	b.WriteString("Why something in a mount set is not as it was asked. They appear in the answer's `failed`, by target\n" +
		"([how to read an answer](../tasks/read-an-answer.md)).\n\n")
	table(&b, "Code", "What happened", "What to do")
	for _, c := range codes {
		row(&b, code(string(c.Code)), c.Meaning, c.Remedy)
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
