package cli

import (
	"encoding/json"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/internal/advice"
)

// writeDocument writes v as JSON or YAML, with the same names in both.
func writeDocument(w io.Writer, form output, v any) error {
	if form == asYAML {
		b, err := yaml.Marshal(v)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// writeTable writes rows beneath a head, in columns. An empty cell is "-".
func writeTable(w io.Writer, head []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	line := func(cells []string) {
		shown := make([]string, len(cells))
		for i, c := range cells {
			if shown[i] = advice.Plain(c); shown[i] == "" {
				shown[i] = "-"
			}
		}
		_, _ = io.WriteString(t, strings.Join(shown, "\t")+"\n") // Flush tells
	}
	line(head)
	for _, r := range rows {
		line(r)
	}
	return t.Flush()
}
