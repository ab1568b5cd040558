package grant

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxQuoted is how long input may be that a message repeats, in bytes.
const maxQuoted = 80

// trimSpace removes white space from both ends. The separators U+001C to U+001F
// count too: other writers of the contract trim them, unicode.IsSpace does not
// know them, and a difference here would be a difference of the hash.
func trimSpace(s string) string { return strings.TrimFunc(s, isSpace) }

func isSpace(r rune) bool {
	return unicode.IsSpace(r) || (r >= 0x1c && r <= 0x1f)
}

// cut shortens s to at most limit bytes without splitting a rune.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// called names a field and repeats what is in it, where that is short and plainly
// no more than a name or a path. A message goes into an annotation and an event
// that others read.
func called(field, s string) string {
	if mayHoldCredentials(s) {
		return field + " (not repeated here, it may hold credentials)"
	}
	return field + " " + quote(s)
}

// mayHoldCredentials reports whether a text must not be repeated: what stands
// before an "@" or after a ":" may be a password, what stands in a query a token,
// and a long text may be a key. Whatever the field or the kind says: an address may
// have been written in the wrong one.
func mayHoldCredentials(s string) bool {
	return len(s) > maxQuoted || strings.ContainsAny(s, "@:?#=&%")
}

// quote makes input fit for a message, without control characters.
func quote(s string) string { return strconv.Quote(s) }

// within reports whether s is not empty, not longer than limit bytes, and made
// of bytes that ok accepts.
func within(s string, limit int, ok func(byte) bool) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isAlnum(c byte) bool { return isDigit(c) || isLower(c) || (c >= 'A' && c <= 'Z') }

// isName accepts the bytes of targets, buckets and bridge uids.
func isName(c byte) bool { return isAlnum(c) || c == '.' || c == '_' || c == '-' }

func isPrintable(c byte) bool { return c >= 0x20 && c <= 0x7e }
func isLowerHex(c byte) bool  { return isDigit(c) || (c >= 'a' && c <= 'f') }

// validTarget accepts one path segment that is not hidden, cannot be read as a
// command-line flag, and leaves room for a suffix in a 255-byte file name.
func validTarget(s string) bool {
	return within(s, 127, isName) && s[0] != '.' && s[0] != '-'
}

// validSecretName accepts what the Kubernetes API accepts as a Secret's name.
func validSecretName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		ok := within(label, 253, func(c byte) bool { return isDigit(c) || isLower(c) || c == '-' })
		if !ok || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

// tidyUID keeps a uid that can be shown anywhere and drops any other: it
// identifies nothing here, so it is no reason to refuse a mount.
func tidyUID(s string) string {
	s = trimSpace(s)
	if len(s) > 128 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return ""
	}
	return s
}
