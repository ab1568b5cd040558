package cli

import (
	"strings"
	"testing"
)

func TestAFileOfSeveralDocumentsIsRefusedAndOneWithMarkersIsNot(t *testing.T) {
	const one = "- {source: a, target: a}\n"
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"one":                               {one, true},
		"one after a marker":                {"# mounts\n---\n" + one, true},
		"one between markers":               {"--- # mounts\n" + one + "...\n---\n# the end\n", true},
		"one with dashes in its text":       {"- {source: '---', target: a}\n- source: x----y\n  target: b\n", true},
		"one with a text of several lines":  {"- source: |-\n    a\n  target: a\n  uid: 'x\n\n    y'\n", true},
		"one, deeper":                       {"  - {source: a, target: a}\n", true},
		"one of a tool's":                   {"%YAML 1.1\n---\nmounts:\n- source: a\n  target: a\n", true},
		"more beneath a deeper one":         {"  - {source: a, target: a}\n- {source: b, target: b}\n", false},
		"two":                               {one + "---\n" + one, false},
		"two after an end":                  {one + "...\n" + one, false},
		"two, the second beside its marker": {one + "--- [{source: b, target: b}]\n", false},
		"two in lines of another system":    {strings.ReplaceAll(one+"---\n"+one, "\n", "\r\n"), false},
		"two after an empty one":            {"---\n---\n" + one + "---\n" + one, false},
		"two of JSON":                       {"[{\"source\":\"a\",\"target\":\"a\"}]\n[{\"source\":\"b\",\"target\":\"b\"}]\n", false},
		"two of JSON, objects":              {"{\"mounts\":[{\"source\":\"a\",\"target\":\"a\"}]}\n{\"mounts\":[{\"source\":\"b\",\"target\":\"b\"}]}\n", false},
	} {
		mounts, _, err := parseMounts([]byte(c.text))
		if (err == nil) != c.ok || c.ok && len(mounts) == 0 {
			t.Errorf("%s: %v, %v", name, mounts, err)
		}
	}
}
