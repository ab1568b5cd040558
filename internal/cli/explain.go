package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/spelling"
)

// codePrefix begins every code. On the command line it may be left out.
const codePrefix = "NODE_MOUNT_GATEWAY_"

func shortCode[T ~string](code T) string { return strings.TrimPrefix(string(code), codePrefix) }

func newExplain() *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use:   "explain [CODE...]",
		Short: "Say what a code means and what to do, without a cluster",
		Long: `explain says what happened where an answer has a code, and what to do about it.
The code may be written with or without ` + codePrefix + `, in any case. Without a
code it lists them all.`,
		Example: `  node-mounts explain mount_failed
  node-mounts explain -o json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeCode,
		RunE: func(cmd *cobra.Command, args []string) error {
			codes := grant.Codes()
			if len(args) > 0 {
				var err error
				if codes, err = findCodes(args); err != nil {
					return err
				}
			}
			if len(args) == 0 && form == readable {
				form = table
			}
			return writeCodes(cmd.OutOrStdout(), form, codes)
		},
	}
	form.bind(cmd, readable, table, asJSON, asYAML)
	return cmd
}

// explanation is one code in a document.
type explanation struct {
	Code    string `json:"code"`
	Meaning string `json:"meaning"`
	Remedy  string `json:"remedy"`
}

func writeCodes(out io.Writer, form output, codes []grant.CodeInfo) error {
	if form.structured() {
		var docs []explanation
		for _, c := range codes {
			docs = append(docs, explanation{string(c.Code), c.Meaning, c.Remedy})
		}
		return writeDocument(out, form, docs)
	}
	if form == table {
		var rows [][]string
		for _, c := range codes {
			rows = append(rows, []string{shortCode(c.Code), c.Meaning})
		}
		return writeTable(out, []string{"CODE", "WHAT HAPPENED"}, rows)
	}
	for i, c := range codes {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s\n  What happened: %s\n  What to do:    %s\n", c.Code, c.Meaning, c.Remedy)
	}
	return nil
}

func findCodes(args []string) ([]grant.CodeInfo, error) {
	var found []grant.CodeInfo
	for _, arg := range args {
		wanted := shortCode(strings.ToUpper(strings.ReplaceAll(strings.TrimSpace(arg), "-", "_")))
		i := slices.IndexFunc(grant.Codes(), func(c grant.CodeInfo) bool { return shortCode(c.Code) == wanted })
		if i < 0 {
			err := fmt.Errorf("there is no code %.80q", arg)
			if like := closest(wanted); like != "" {
				return nil, advice.With(err, "did you mean "+like+"?")
			}
			return nil, advice.With(err, "`node-mounts explain` lists them")
		}
		found = append(found, grant.Codes()[i])
	}
	return found, nil
}

// closest is the code that a mistyped one is most like, "" where it is like none:
// where more than a third of it would have to change.
func closest(wanted string) string {
	var known []string
	for _, c := range grant.Codes() {
		known = append(known, shortCode(c.Code))
	}
	return spelling.Nearest(wanted, known, len(wanted)/3)
}
