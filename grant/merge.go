package grant

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Merge returns the grant annotation with mounts added to what it grants, and
// with the entries of the targets in remove taken out. A mount takes the place of
// an entry of the same target. Every other entry stays as it is written, also one
// that this version of the package would refuse: a writer must not lose what
// another one granted. An empty annotation is one that grants nothing.
//
// The error is a [*Refusal]: the annotation cannot be read (write a whole set
// with Encode instead), a mount breaks a rule, or the result is too large.
func Merge(annotation string, add []Mount, remove ...string) (string, error) {
	var items []json.RawMessage
	if annotation != "" {
		set, raw := decode(annotation)
		if set.Whole != nil {
			return "", set.Whole
		}
		items = settled(set.Mounts, raw)
	}
	added, err := Encode(add)
	if err != nil {
		return "", err
	}
	set, fresh := decode(added)
	fresh = settled(set.Mounts, fresh)
	gone := slices.Clone(remove)
	for _, m := range add {
		gone = append(gone, trimSpace(m.Target))
	}
	items = slices.DeleteFunc(items, func(item json.RawMessage) bool {
		target, problem := decodeEntry(item).targetKey()
		return problem == "" && slices.Contains(gone, target)
	})
	return encodeItems(append(items, fresh...))
}

// Targets are the targets that the set has an entry for, sorted: those of Mounts,
// and of the refused entries those that have a valid one.
func (s Set) Targets() []string {
	var targets []string
	for _, m := range s.Mounts {
		targets = append(targets, m.Target)
	}
	for _, r := range s.Refused {
		if validTarget(r.Key) {
			targets = append(targets, r.Key)
		}
	}
	slices.Sort(targets)
	return targets
}

// settled rewrites the entries whose source begins or ends with white space that
// belongs to it. As they stand, only the hash of their set says so, and the set
// is about to get another one; between slashes the white space speaks for itself.
func settled(mounts []Mount, items []json.RawMessage) []json.RawMessage {
	out := slices.Clone(items)
	for _, m := range mounts {
		if m.exact == "" {
			continue
		}
		i := slices.IndexFunc(out, func(item json.RawMessage) bool {
			target, problem := decodeEntry(item).targetKey()
			return problem == "" && target == m.Target
		})
		m.Source = "/" + m.Source + "/"
		out[i] = appendMount(nil, m)
	}
	return out
}

// encodeItems writes an annotation of entries as they are, with the hash of those
// that are valid.
func encodeItems(items []json.RawMessage) (string, error) {
	compact := make([]json.RawMessage, len(items))
	for i, item := range items {
		var b bytes.Buffer
		if err := json.Compact(&b, item); err != nil {
			return "", &Refusal{Key: WholeSet, Code: CodeInvalidGrant, Message: "an entry is not valid JSON: write the whole set again"}
		}
		compact[i] = b.Bytes()
	}
	return frame(decodeSet(items, "").Hash, compact)
}
