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
	"github.com/datalayer/node-mounts/internal/advice"
)

// parseMounts reads a file of mounts: what an annotation may hold, and stricter
// than a reader of annotations. A name without a meaning is a mistyped one, and
// would grant more than was meant; a target that is there twice is a mistake; of
// several documents only the first would be granted. It also returns notes of what
// was made of sources that may have been meant otherwise.
func parseMounts(text []byte) (mounts []grant.Mount, notes []string, err error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil, errors.New("it is empty")
	}
	if !json.Valid(text) {
		if text, err = fromYAML(text); err != nil {
			return nil, nil, err
		}
	}
	set := grant.Decode(string(text))
	if set.Whole != nil {
		return nil, nil, set.Whole
	}
	var errs advice.Several
	for i := range set.Refused {
		errs = append(errs, &set.Refused[i])
	}
	if len(errs) > 0 {
		return nil, nil, errs
	}
	notes, err = checkNames(text, set.Mounts)
	return set.Mounts, notes, err
}

// documents are the documents of YAML that are not empty. A line that begins with a
// marker is one wherever it stands, by the YAML specification also in a text block.
func documents(text string) []string {
	var found []string
	var b strings.Builder
	filled := false
	end := func() {
		if filled {
			found = append(found, b.String())
		}
		b.Reset()
		filled = false
	}
	for line := range strings.Lines(text) {
		rest, marked := strings.CutPrefix(line, "---")
		if !marked {
			rest, marked = strings.CutPrefix(line, "...")
		}
		if marked && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n")) {
			end()
			line = rest
		}
		b.WriteString(line)
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != '%' {
			filled = true
		}
	}
	end()
	return found
}

// fromYAML makes JSON of YAML. The parser reads one document and says nothing of what
// comes after it: that must not be there. What ends a document without a marker, like
// a second list after one in brackets, is an error inside of another document.
func fromYAML(text []byte) ([]byte, error) {
	docs := documents(string(text))
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil && len(docs) < 2 {
		return nil, fmt.Errorf("it is neither JSON nor YAML: %w", err)
	}
	more := len(docs) > 1
	for _, doc := range docs {
		_, err := yaml.YAMLToJSONStrict([]byte("document:\n " + strings.ReplaceAll(doc, "\n", "\n ")))
		more = more || err != nil
	}
	if more {
		return nil, advice.With(errors.New("it has more than one document"), "put all mounts into one list: of several documents only the first would count")
	}
	return converted, nil
}

// noteRooted adds a note where a path was written as if from the root of a
// filesystem: it is one beneath the claim, and a home folder is made there.
func noteRooted(notes []string, written string, m grant.Mount) []string {
	info, _ := m.Kind.Info()
	if info.Delivery != grant.DeliveryBind || !strings.HasPrefix(strings.TrimSpace(written), "/") {
		return notes
	}
	note := fmt.Sprintf("%s: the source is the folder %q of the shared claim, and no folder of the node or of an image", m.Target, m.Source)
	if info.Creates {
		note += "; where it does not exist it is made"
	}
	return append(notes, note)
}

// checkNames looks for what a reader of annotations passes over, and notes what was
// made of it.
func checkNames(text []byte, mounts []grant.Mount) (notes []string, err error) {
	var items []json.RawMessage
	if json.Unmarshal(text, &items) != nil {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(text, &object); err != nil {
			return nil, err
		}
		if name := unknown(object, grant.SetFields()); name != "" {
			return nil, fmt.Errorf("%.80q has no meaning: beside \"mounts\" there is only \"hash\"", name)
		}
		if err := json.Unmarshal(object["mounts"], &items); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{}
	for i, item := range items {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(item, &object); err != nil {
			return nil, err
		}
		if name := unknown(object, grant.Fields()); name != "" {
			return nil, advice.With(fmt.Errorf("%.80q of mount %d has no meaning", name, i), "the names are "+strings.Join(grant.Fields(), ", "))
		}
		var target, source string
		if err := errors.Join(json.Unmarshal(object["target"], &target), json.Unmarshal(object["source"], &source)); err != nil {
			return nil, err
		}
		if target = strings.TrimSpace(target); seen[target] {
			return nil, fmt.Errorf("the target %s is there more than once", target)
		}
		seen[target] = true
		if m := slices.IndexFunc(mounts, func(m grant.Mount) bool { return m.Target == target }); m >= 0 {
			notes = noteRooted(notes, source, mounts[m])
		}
	}
	return notes, nil
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
