package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/spelling"
)

// farthestKey is how many letters apart a key of values and the one that is meant
// may be.
const farthestKey = 3

// valueSchema is as much of a chart's schema as says which keys there are.
type valueSchema struct {
	Properties map[string]valueSchema `json:"properties"`
	Additional *json.RawMessage       `json:"additionalProperties"`
}

func (s valueSchema) closed() bool { return s.Additional != nil && string(*s.Additional) == "false" }

// meant asks for each key that the chart does not have whether one that is like it
// was meant, "" where none is.
func meant(schema []byte, values map[string]any) string {
	var root valueSchema
	if json.Unmarshal(schema, &root) != nil {
		return "" // the refusal itself has been told
	}
	var out []string
	var paths []string
	every(root, "", func(path string) { paths = append(paths, path) })
	slices.Sort(paths)
	unknown(root, values, "", func(at valueSchema, prefix, key string) {
		nearest := spelling.Nearest(key, slices.Sorted(maps.Keys(at.Properties)), farthestKey)
		if nearest != "" {
			nearest = prefix + nearest
		} else if i := slices.IndexFunc(paths, func(p string) bool { return strings.HasSuffix(p, "."+key) }); i >= 0 {
			nearest = paths[i] // the right name in a wrong place
		}
		if nearest != "" {
			out = append(out, fmt.Sprintf("%s%s: is %s meant?", prefix, key, nearest))
		}
	})
	return strings.Join(out, " ")
}

func every(s valueSchema, prefix string, tell func(path string)) {
	for key, below := range s.Properties {
		tell(prefix + key)
		every(below, prefix+key+".", tell)
	}
}

func unknown(s valueSchema, values map[string]any, prefix string, tell func(at valueSchema, prefix, key string)) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		below, known := s.Properties[key]
		if !known && s.closed() {
			tell(s, prefix, key)
		}
		if deeper, ok := values[key].(map[string]any); ok && known {
			unknown(below, deeper, prefix+key+".", tell)
		}
	}
}

// schemaSays is a refusal by the schema as one sentence.
func schemaSays(err error) error {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line, found := strings.CutPrefix(strings.TrimSpace(line), "- "); found {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return fmt.Errorf("the values are not those of the chart: %w", err)
	}
	return errors.New("the values are not those of the chart: " + strings.Join(lines, "; "))
}
