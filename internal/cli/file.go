package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/grant"
)

// The names that a file of mounts may use, and each mount in it.
func fileNames() []string { return []string{"hash", "mounts"} }

func mountNames() []string {
	return []string{"uid", "kind", "source", "target", "mode", "allow_exec", "revision", "secret"}
}

// parseMounts reads a file of mounts: what an annotation may hold, and stricter
// than a reader of annotations. A name without a meaning is a mistyped one, and
// would grant more than was meant; a target that is there twice is a mistake.
func parseMounts(text []byte) ([]grant.Mount, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("it is empty")
	}
	if !json.Valid(text) {
		converted, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return nil, fmt.Errorf("it is neither JSON nor YAML: %w", err)
		}
		text = converted
	}
	set := grant.Decode(string(text))
	if set.Whole != nil {
		return nil, set.Whole
	}
	var errs several
	for i := range set.Refused {
		errs = append(errs, &set.Refused[i])
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return set.Mounts, checkNames(text)
}

// checkNames looks for what a reader of annotations passes over.
func checkNames(text []byte) error {
	var items []json.RawMessage
	if json.Unmarshal(text, &items) != nil {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(text, &object); err != nil {
			return err
		}
		if name := unknown(object, fileNames()); name != "" {
			return fmt.Errorf("%.80q has no meaning: beside \"mounts\" there is only \"hash\"", name)
		}
		if err := json.Unmarshal(object["mounts"], &items); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for i, item := range items {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(item, &object); err != nil {
			return err
		}
		if name := unknown(object, mountNames()); name != "" {
			return hinted{fmt.Errorf("%.80q of mount %d has no meaning", name, i), "the names are " + strings.Join(mountNames(), ", ")}
		}
		var target string
		if err := json.Unmarshal(object["target"], &target); err != nil {
			return err
		}
		if target = strings.TrimSpace(target); seen[target] {
			return fmt.Errorf("the target %s is there more than once", target)
		}
		seen[target] = true
	}
	return nil
}

// unknown is a name that is not among those known, "" where there is none.
func unknown(object map[string]json.RawMessage, known []string) string {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(known, name) {
			return name
		}
	}
	return ""
}
