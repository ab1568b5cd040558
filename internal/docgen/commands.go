package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/datalayer/node-mounts/internal/cli"
)

func cliPage(root *cobra.Command, statuses []cli.ExitStatus) string {
	var b strings.Builder
	b.WriteString("# Command line\n\n")
	fmt.Fprintf(&b, generated, "internal/cli")
	b.WriteString(root.Short + ". As a plugin of kubectl,\n" + code("kubectl node-mounts") + ", it is the same program under another name " +
		"([how](../tasks/use-with-kubectl.md)).\nResults go to standard output; an error is told on standard error after `error:`, " +
		"and what to do about it\nafter `hint:`.\n\n")
	table(&b, "Command", "What it does")
	for _, cmd := range shown(root) {
		row(&b, fmt.Sprintf("[%s](#%s)", code(cmd.Name()), cmd.Name()), cmd.Short)
	}
	b.WriteString("\n")
	table(&b, "Exit status", "Means")
	for _, s := range statuses {
		row(&b, fmt.Sprint(s.Status), s.Meaning)
	}
	for _, cmd := range shown(root) {
		section(&b, cmd)
	}
	return b.String()
}

// shown are the commands that a reader looks for: help explains itself.
func shown(root *cobra.Command) []*cobra.Command {
	var cmds []*cobra.Command
	for _, c := range root.Commands() {
		if !c.Hidden && c.Name() != "help" {
			cmds = append(cmds, c)
		}
	}
	return cmds
}

func section(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n```\n%s\n```\n\n", cmd.Name(), cmd.UseLine())
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	b.WriteString(strings.TrimSpace(about) + "\n")
	if cmd.Example != "" {
		b.WriteString("\n```sh\n" + unindented(cmd.Example) + "\n```\n")
	}
	flagTable(b, cmd.NonInheritedFlags())
}

// flagTable writes what can be said, where anything can. The value's name is what the
// flag's text has in backquotes.
func flagTable(b *strings.Builder, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	b.WriteString("\n")
	table(b, "Flag", "Value", "Default", "What it is")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, value := code("--"+f.Name), "—"
		if f.Shorthand != "" {
			name = code("-"+f.Shorthand) + ", " + name
		}
		kind, about := f.Value.Type(), f.Usage
		if strings.Contains(about, "`") {
			kind, about = pflag.UnquoteUsage(f)
		}
		if kind == "bool" {
			kind = "—"
		} else if f.DefValue != "" {
			value = code(f.DefValue)
		}
		row(b, name, kind, value, about)
	})
}

// keeperPage is the reference of the keeper, which has no commands below it.
func keeperPage(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Flags of the keeper\n\n")
	fmt.Fprintf(&b, generated, "internal/keepercmd/command.go")
	b.WriteString(strings.TrimSpace(cmd.Long) + "\n")
	flagTable(&b, cmd.NonInheritedFlags())
	return b.String()
}

func unindented(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}
