package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/charts"
)

// chartDir is where the chart is, from the module's root.
const chartDir = "charts/node-mounts"

// chartPage is the chart's README.
func chartPage() (string, error) {
	chart, err := charts.NodeMounts()
	if err != nil {
		return "", err
	}
	text, err := fs.ReadFile(chart, "values.yaml")
	if err != nil {
		return "", err
	}
	values, err := readValues(string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Join(chartDir, "values.yaml"), err)
	}
	return valuesPage(values), nil
}

// value is one value of the chart with the comment above it. A group has values
// below it that are explained themselves, and no default of its own.
type value struct {
	path, about string
	byDefault   string // JSON
	group       bool
}

var valueKey = regexp.MustCompile(`\A( *)([A-Za-z][A-Za-z0-9]*):`)

// readValues reads a chart's values: blocks of YAML, two spaces a level. Every
// value is explained, by its own comment or by that of one above it.
func readValues(text string) ([]value, error) {
	var tree map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &tree); err != nil {
		return nil, err
	}
	var all []value
	var path, comment []string
	for n, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		key := valueKey.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(trimmed, "#"):
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(trimmed, "#")))
			continue
		case key != nil:
			depth := len(key[1]) / 2
			if depth > len(path) {
				return nil, fmt.Errorf("line %d is indented by more than a level", n+1)
			}
			path = append(path[:depth:depth], key[2])
			v := value{path: strings.Join(path, "."), about: strings.Join(comment, " ")}
			if v.about == "" && !explained(all, v.path) && !mapping(tree, path) {
				return nil, fmt.Errorf("line %d: %s is explained by no comment", n+1, v.path)
			}
			if v.about != "" || mapping(tree, path) && !explained(all, v.path) {
				all = append(all, v)
			}
		}
		comment = nil
	}
	return all, describe(all, tree)
}

// explained says whether a value above the path has a comment of its own and so
// speaks for it.
func explained(all []value, path string) bool {
	for _, v := range all {
		if v.about != "" && strings.HasPrefix(path, v.path+".") {
			return true
		}
	}
	return false
}

func mapping(tree map[string]any, path []string) bool {
	_, ok := at(tree, path).(map[string]any)
	return ok
}

func at(tree map[string]any, path []string) any {
	var here any = tree
	for _, key := range path {
		m, ok := here.(map[string]any)
		if !ok {
			return nil
		}
		here = m[key]
	}
	return here
}

// describe finds the groups, and the defaults of all else.
func describe(all []value, tree map[string]any) error {
	for i := range all {
		v := &all[i]
		for _, other := range all {
			v.group = v.group || strings.HasPrefix(other.path, v.path+".")
		}
		text, err := json.Marshal(at(tree, strings.Split(v.path, ".")))
		if err != nil {
			return err
		}
		v.byDefault = string(text)
	}
	return nil
}

func valuesPage(values []value) string {
	var b strings.Builder
	b.WriteString("# Chart node-mounts\n\n")
	b.WriteString("<!-- Written by `make docs`. Edit the comments in values.yaml instead. -->\n\n")
	b.WriteString("Runs one agent of Node Mounts on each node. How to install it, and what to look at before and after, is in\n" +
		"[docs/tasks/install.md](../../docs/tasks/install.md). The least that has to be said:\n\n" +
		"```yaml\nnodeMountGateway:\n  enabled: true\n  sharedFilesystemClaim: datalayer-shared-fs   # in the release's namespace\n```\n\n" +
		"A key that is not in these tables is refused, and so are values that cannot work together.\n")
	var own []value // at the top, and in no group
	for i, v := range values {
		if strings.Contains(v.path, ".") {
			continue
		}
		if !v.group {
			own = append(own, v)
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", v.path)
		if v.about != "" {
			b.WriteString(v.about + "\n\n")
		}
		var below []value
		for _, other := range values[i+1:] {
			if strings.HasPrefix(other.path, v.path+".") && (!other.group || other.about != "") {
				below = append(below, other)
			}
		}
		valueTable(&b, below)
	}
	b.WriteString("\n## Names and places\n\n")
	valueTable(&b, own)
	return b.String()
}

func valueTable(b *strings.Builder, values []value) {
	table(b, "Value", "Default", "What it is")
	for _, v := range values {
		text := code(v.byDefault)
		if v.group {
			text = ""
		}
		row(b, code(v.path), text, v.about)
	}
}
