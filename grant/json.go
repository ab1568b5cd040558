package grant

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Reasons why a value of an annotation is not used. Each is the second half of a
// sentence that starts with the field's name.
const (
	faultType  = "is not a string"
	faultBool  = "is not true or false"
	faultTwice = "is given more than once: write it once"
	faultText  = "is not valid Unicode text"
)

// member is the value of one key of a JSON object.
type member struct {
	raw   json.RawMessage // the last value, nil where the key is absent
	count int             // how often the key is there
}

// members returns the values of the named keys of a JSON object. Keys are matched
// exactly, which encoding/json into a struct does not do: "SOURCE" is another key.
// It reports false where raw is no object. raw must be valid JSON.
func members(raw []byte, names ...string) (map[string]member, bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return nil, false
	}
	found := make(map[string]member, len(names))
	for _, name := range names {
		found[name] = member{}
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, false
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, false
		}
		name, _ := key.(string)
		if m, wanted := found[name]; wanted {
			found[name] = member{raw: value, count: m.count + 1}
		}
	}
	return found, true
}

// elements returns the elements of a JSON array, and false where raw is none. It
// stops after limit+1, so that a caller can tell that there are too many without
// holding them all. raw must be valid JSON.
func elements(raw []byte, limit int) ([]json.RawMessage, bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if token, err := dec.Token(); err != nil || token != json.Delim('[') {
		return nil, false
	}
	var items []json.RawMessage
	for dec.More() && len(items) <= limit {
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, false
		}
		items = append(items, value)
	}
	return items, true
}

// text reads a member as a string. An absent one is the fallback.
func (m member) text(fallback string) field {
	switch {
	case m.count == 0:
		return field{text: fallback}
	case m.count > 1:
		return field{fault: faultTwice}
	}
	var s *string
	if err := json.Unmarshal(m.raw, &s); err != nil || s == nil {
		return field{fault: faultType}
	}
	if !sound(m.raw) {
		return field{fault: faultText}
	}
	return field{text: *s}
}

// boolean reads a member as true or false. An absent one is the fallback.
func (m member) boolean(fallback bool) (value bool, fault string) {
	switch {
	case m.count == 0:
		return fallback, ""
	case m.count > 1:
		return false, faultTwice
	}
	var b *bool
	if err := json.Unmarshal(m.raw, &b); err != nil || b == nil {
		return false, faultBool
	}
	return *b, ""
}

// sound reports whether a JSON string has a meaning as text. encoding/json reads
// invalid UTF-8 and lone surrogates as U+FFFD: a source would then name a folder
// that nobody wrote.
func sound(raw []byte) bool {
	if !utf8.Valid(raw) {
		return false
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		unit, ok := escapedUnit(raw[i:])
		if !ok {
			i++ // a short escape, of two bytes
			continue
		}
		i += 5
		if !utf16.IsSurrogate(unit) {
			continue
		}
		low, ok := escapedUnit(raw[i+1:])
		if !ok || utf16.DecodeRune(unit, low) == utf8.RuneError {
			return false
		}
		i += 6
	}
	return true
}

// escapedUnit reads the UTF-16 unit of a six-byte escape at the start of raw.
func escapedUnit(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(unit), err == nil
}

// appendString appends s as a canonical JSON string: ASCII alone, lower-case
// escapes, DEL escaped too, and "<", ">" and "&" as they are. Invalid UTF-8 is
// written as U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r >= 0x20 && r < 0x7f:
			b = append(b, byte(r))
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b = appendUnit(appendUnit(b, high), low)
		default:
			b = appendUnit(b, r)
		}
	}
	return append(b, '"')
}

func appendUnit(b []byte, unit rune) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'u', digits[unit>>12&15], digits[unit>>8&15], digits[unit>>4&15], digits[unit&15])
}
