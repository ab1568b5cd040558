package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/cli"
	"github.com/datalayer/node-mounts/internal/obs"
)

func TestWhatWasWrittenIsFresh(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "reference")
	if err := write(dir, pages()); err != nil {
		t.Fatal(err)
	}
	if err := verify(dir, pages()); err != nil {
		t.Errorf("pages just written are called stale: %v", err)
	}
}

func TestCheckNamesTheFirstLineThatDiffers(t *testing.T) {
	dir := t.TempDir()
	want := []page{{"a.md", "one\ntwo\nthree\n"}}
	for name, test := range map[string]struct{ have, says string }{
		"changed":   {"one\n2\nthree\n", "a.md:2 is stale\n  has:  2\n  want: two"},
		"too short": {"one\ntwo", "a.md:3 is stale\n  has:  (end of file)\n  want: three"},
		"too long":  {"one\ntwo\nthree\nfour\n", "a.md:4 is stale\n  has:  four"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "a.md"), []byte(test.have), 0o600); err != nil {
				t.Fatal(err)
			}
			err := verify(dir, want)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want it to say %q", err, test.says)
			}
		})
	}
}

func TestCheckFindsMissingPagesAndPagesNobodyWrites(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old.md"), fmt.Appendf(nil, "# Old\n\n"+generated, "old.go"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hand.md"), []byte("# Written by somebody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := verify(dir, []page{{"new.md", "text\n"}})
	if err == nil {
		t.Fatal("nothing found")
	}
	if strings.Contains(err.Error(), "hand.md") {
		t.Errorf("a page that is nobody's but its author's is named: %v", err)
	}
	for _, name := range []string{"old.md", "new.md"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %v", name, err)
		}
	}
}

func TestEveryKindAndCodeHasARow(t *testing.T) {
	kinds, codes := kindsPage(grant.Kinds()), codesPage(grant.Codes())
	for _, k := range grant.Kinds() {
		if !strings.Contains(kinds, "\n| "+code(quoteEmpty(string(k.Kind)))+" | "+k.Summary) {
			t.Errorf("no row for the kind %q", k.Kind)
		}
		if k.Switch != "" && strings.Contains(kinds, code(k.Switch)) == k.Unserved {
			t.Errorf("%q, unserved: %t: the value that turns it on is there, or is not", k.Kind, k.Unserved)
		}
	}
	for _, c := range grant.Codes() {
		if !strings.Contains(codes, "\n| "+code(string(c.Code))+" | ") {
			t.Errorf("no row for the code %s", c.Code)
		}
		if final := map[bool]string{true: "no", false: "yes"}[c.Passes]; !strings.Contains(codes, c.Remedy+" | "+final+" |\n") {
			t.Errorf("the row of the code %s does not say whether it is final: %s", c.Code, final)
		}
	}
}

func TestEveryMetricHasARowWithItsLabels(t *testing.T) {
	text := metricsPage([]obs.Info{
		{Name: "a_total", Type: "counter", Help: "All of it."},
		{Name: "b_seconds", Type: "histogram", Help: "How long.", Labels: []string{"kind", "code"}},
	})
	for _, line := range []string{
		"\n| `a_total` | counter | — | All of it. |\n",
		"\n| `b_seconds` | histogram | `kind`, `code` | How long. |\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
}

func TestEveryFlagHasARowWithItsVariableAndDefault(t *testing.T) {
	text := flagsPage([]agentcmd.Option{
		{Flag: "node-id", Env: "NODE_ID", Type: "name", Help: "the node"},
		{Flag: "owner", Default: "1000:100", Type: "uid:gid", Help: "who", EmptyCounts: true},
	}, commands())
	for _, line := range []string{
		"\n## do\n\n```\ntool do THING [flags]\n```\n\ndo does it.\n",
		"\n| `--node-id` | `NODE_ID` | name | — | the node |\n",
		"\n| `--owner` | — | uid:gid | `1000:100` | who (empty is a value) |\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
}

// commands are one that is shown, with flags and an example, and one that is not.
func commands() *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "Does things"}
	sub := &cobra.Command{Use: "do THING", Short: "Do a thing", Long: "do does it.", Example: "  tool do it", Run: func(*cobra.Command, []string) {}}
	sub.Flags().StringP("how", "w", "well", "how to do it")
	sub.Flags().Bool("twice", false, "do it again")
	hidden := &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(sub, hidden)
	return root
}

func TestTheKeepersPageHasItsFlags(t *testing.T) {
	cmd := &cobra.Command{Use: "keep", Long: "keep keeps."}
	cmd.Flags().String("socket", "/s", "the `path` to listen at")
	text := keeperPage(cmd)
	for _, part := range []string{"\nkeep keeps.\n", "\n| `--socket` | path | `/s` | the path to listen at |\n"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

func TestEveryCommandHasASectionWithItsFlagsAndExamples(t *testing.T) {
	text := cliPage(commands(), []cli.ExitStatus{{Status: 0, Meaning: "done"}})
	for _, part := range []string{
		"\n| [`do`](#do) | Do a thing |\n",
		"\n## do\n\n```\ntool do THING [flags]\n```\n\ndo does it.\n",
		"\n| `-w`, `--how` | string | `well` | how to do it |\n",
		"\n| `--twice` | — | — | do it again |\n",
		"\n```sh\ntool do it\n```\n",
		"\n| 0 | done |\n",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "--help") {
		t.Errorf("what nobody needs to read is there:\n%s", text)
	}
}

func TestACellCannotBreakItsTable(t *testing.T) {
	var b strings.Builder
	row(&b, "ro|rw", "two\nlines")
	if got := b.String(); got != "| ro\\|rw | two lines |\n" {
		t.Errorf("got %q", got)
	}
}
