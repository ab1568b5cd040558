package grant

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Set is what a grant annotation says.
type Set struct {
	// Hash is what the answer to this set must carry: the annotation's own hash,
	// or, where it has none of 1 to 128 printable characters, that of Mounts. It
	// is "" where nothing could be read.
	Hash string
	// Mounts are the valid entries, sorted by target, each target once.
	Mounts []Mount
	// Refused are the other entries, in the order of the annotation.
	Refused []Refusal
	// Whole is set where nothing of the annotation counts. It asks for nothing,
	// not even for an empty set: what is mounted stays.
	Whole *Refusal
}

// Decode reads a grant annotation: an object {"hash","mounts"}, or the bare array
// of mounts. It never fails: what cannot be used is a refusal in the set.
//
// The annotation is not trusted. One longer than MaxAnnotationBytes is refused
// before it is parsed, so memory is bounded; one with more than MaxEntries
// entries is refused whole, and keeps its hash.
func Decode(annotation string) Set {
	set, _ := decode(annotation)
	return set
}

// decode is Decode, with the entries as they are written where there is a set.
func decode(annotation string) (Set, []json.RawMessage) {
	if len(annotation) > MaxAnnotationBytes {
		return unreadable(fmt.Sprintf("the annotation is larger than %d bytes: grant fewer mounts", MaxAnnotationBytes)), nil
	}
	raw := []byte(annotation)
	if !json.Valid(raw) {
		return unreadable("the annotation is not valid JSON: write it again"), nil
	}
	hash := ""
	items, ok := elements(raw, MaxEntries)
	if !ok {
		top, isObject := members(raw, SetFields()...)
		if !isObject {
			return unreadable("the annotation is neither an object with mounts nor a list of mounts: write it again"), nil
		}
		if top["hash"].count > 1 || top["mounts"].count > 1 {
			return unreadable("the annotation gives its hash or its mounts more than once: write it again"), nil
		}
		hash = saneHash(top["hash"].text("").text)
		if items, ok = elements(top["mounts"].raw, MaxEntries); !ok {
			return unreadable("the annotation has no list of mounts: write an empty list to ask for none"), nil
		}
	}
	if len(items) > MaxEntries {
		message := fmt.Sprintf("the set has more than %d entries: grant fewer mounts", MaxEntries)
		return Set{Hash: hash, Whole: &Refusal{Key: WholeSet, Code: CodeTooManyMounts, Message: message}}, nil
	}
	return decodeSet(items, hash), items
}

// SetFields are the names that the object of an annotation has. Readers pass over any
// other.
func SetFields() []string { return []string{"hash", "mounts"} }

// Fields are the names that one of its mounts has. Readers pass over any other.
func Fields() []string {
	return []string{"uid", "kind", "source", "target", "mode", "allow_exec", "revision", "secret"}
}

func unreadable(message string) Set {
	return Set{Whole: &Refusal{Key: WholeSet, Code: CodeInvalidGrant, Message: message}}
}

// decodeSet reads the entries, and reads them a second time where white space at
// the end of a source leaves open which folder is meant: "home/u " is the clean
// form of "/home/u /", and also a careless "home/u". A hash over the sources as
// they are written says that they are clean, and names the folder the writer meant.
func decodeSet(items []json.RawMessage, hash string) Set {
	entries := make([]entry, len(items))
	spaced := false
	for i, item := range items {
		entries[i] = decodeEntry(item)
		spaced = spaced || trimSpace(entries[i].source.text) != entries[i].source.text
	}
	set := cleanSet(entries)
	if spaced && hash != "" && Hash(set.Mounts) != hash {
		for i := range entries {
			entries[i].exact = true
		}
		if exact := cleanSet(entries); Hash(exact.Mounts) == hash {
			set = exact
		}
	}
	if set.Hash = hash; hash == "" {
		set.Hash = Hash(set.Mounts)
	}
	return set
}

func decodeEntry(raw json.RawMessage) entry {
	fields, ok := members(raw, Fields()...)
	if !ok {
		return entry{notObject: true}
	}
	e := entry{
		uid: fields["uid"].text(""), kind: fields["kind"].text(""),
		source: fields["source"].text(""), target: fields["target"].text(""),
		mode:     fields["mode"].text(string(ReadWrite)),
		revision: fields["revision"].text(""), secret: fields["secret"].text(""),
	}
	e.allowExec, e.allowExecFault = fields["allow_exec"].boolean(true)
	return e
}

// cleanSet applies the rules to every entry. The first entry of a target counts,
// also when it is refused: a later one must not slip in under its name.
func cleanSet(entries []entry) Set {
	var set Set
	seen := make(map[string]bool, len(entries))
	for i, e := range entries {
		if target, problem := e.targetKey(); problem == "" {
			if seen[target] {
				continue
			}
			seen[target] = true
		}
		m, refusal := e.clean(i)
		if refusal != nil {
			set.Refused = append(set.Refused, *refusal)
			continue
		}
		set.Mounts = append(set.Mounts, m)
	}
	slices.SortFunc(set.Mounts, byTarget)
	return set
}

func byTarget(a, b Mount) int { return strings.Compare(a.Target, b.Target) }

// saneHash returns the hash that can be echoed: printable, and of a sane length.
// Any other is "", as if there were none.
func saneHash(hash string) string {
	if hash = trimSpace(hash); within(hash, 128, isPrintable) {
		return hash
	}
	return ""
}
