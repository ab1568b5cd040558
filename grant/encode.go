package grant

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// Encode writes the grant annotation for a set: the mounts cleaned, sorted by
// target, and their hash. Of equal targets the first counts.
//
// The error is a [*Refusal]: that of the first mount that breaks a rule (its Key
// is the target, or "#<index>"), or of the whole set where it has more than
// MaxEntries mounts or needs more than MaxAnnotationBytes.
func Encode(mounts []Mount) (string, error) {
	entries := make([]entry, len(mounts))
	for i, m := range mounts {
		entries[i] = entryOf(m)
	}
	set := cleanSet(entries)
	if len(set.Refused) > 0 {
		return "", &set.Refused[0]
	}
	items := make([]json.RawMessage, len(set.Mounts))
	for i, m := range set.Mounts {
		items[i] = appendMount(nil, m)
	}
	return frame(Hash(set.Mounts), items)
}

// frame writes an annotation of entries as they are, and refuses one that no reader
// would take.
func frame(hash string, items []json.RawMessage) (string, error) {
	if len(items) > MaxEntries {
		message := fmt.Sprintf("the set has more than %d mounts: grant fewer", MaxEntries)
		return "", &Refusal{Key: WholeSet, Code: CodeTooManyMounts, Message: message}
	}
	b := appendString([]byte(`{"hash":`), hash)
	b = append(b, `,"mounts":[`...)
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, item...)
	}
	b = append(b, "]}"...)
	if len(b) > MaxAnnotationBytes {
		message := fmt.Sprintf("the annotation would be larger than %d bytes: grant fewer mounts, or shorter sources", MaxAnnotationBytes)
		return "", &Refusal{Key: WholeSet, Code: CodeInvalidGrant, Message: message}
	}
	return string(b), nil
}

// Hash returns the hash of a set of cleaned mounts: 16 lower-case hex digits. The
// order of the mounts does not matter, of equal targets the first counts. UID and
// Kind are not part of it.
func Hash(mounts []Mount) string {
	sorted := slices.Clone(mounts)
	slices.SortStableFunc(sorted, byTarget)
	sorted = slices.CompactFunc(sorted, func(a, b Mount) bool { return a.Target == b.Target })
	b := []byte{'['}
	for i, m := range sorted {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAccess(append(b, '{'), m.AllowExec)
		b = appendNext(b, "mode", string(m.Mode))
		b = appendNext(b, "revision", m.Revision)
		b = appendNext(b, "secret", m.Secret)
		b = appendNext(b, "source", m.Source)
		b = appendNext(b, "target", m.Target)
		b = append(b, '}')
	}
	sum := sha256.Sum256(append(b, ']'))
	return hex.EncodeToString(sum[:8])
}

// appendMount writes one mount as the annotation holds it, keys sorted. Revision
// and secret are there only where they say something.
func appendMount(b []byte, m Mount) []byte {
	b = appendAccess(append(b, '{'), m.AllowExec)
	b = appendNext(b, "kind", string(m.Kind))
	b = appendNext(b, "mode", string(m.Mode))
	if m.Revision != "" {
		b = appendNext(b, "revision", m.Revision)
	}
	if m.Secret != "" {
		b = appendNext(b, "secret", m.Secret)
	}
	b = appendNext(b, "source", m.Source)
	b = appendNext(b, "target", m.Target)
	b = appendNext(b, "uid", m.UID)
	return append(b, '}')
}

func appendAccess(b []byte, allowExec bool) []byte {
	return fmt.Appendf(b, `"allow_exec":%t`, allowExec)
}

// appendNext appends a member that follows another one.
func appendNext(b []byte, key, text string) []byte {
	return appendMember(append(b, ','), key, text)
}

func appendMember(b []byte, key, text string) []byte {
	b = append(appendString(b, key), ':')
	return appendString(b, text)
}
