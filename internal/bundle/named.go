package bundle

import (
	"regexp"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/grant"
)

// Parts of the name of something that is a secret. Those of ending are parts of
// ordinary words too, and count at a name's end alone; a header has the rest of its
// line for a value.
const (
	sensitive = `(?:passwd|password|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|session[_-]?key|authorization|signature|cookie|pwd)`
	ending    = `(?:(?:\b|_|pg|db|%2[27])(?:pass|auth|sig)|(?-i:[a-z](?:Pass|Auth|Sig)))`
	header    = `(?:authorization|cookie)`
	secretive = `(?:[\w.-]*(?:` + sensitive + `[\w.-]*|` + ending + `))`
	// quoting is a quote, with as many backslashes as its text is deep in others.
	quoting = "(?:\\\\*[\"'`]|&quot;|&#3[49];|\\\\+u002[27])"
)

// A secret stands behind its name: name=value and "name": "value", also in a text that
// is quoted in another (\"name\":\"value\", &quot;, %3D); <name>value<; --name value.
var (
	assigned = regexp.MustCompile(`(?i)(` + secretive + `)(?:` + quoting + `|%2[27])?\s*(?:=>|:=|[=:]|%3[ad])\s*`)
	tagged   = regexp.MustCompile(`(?i)(?:<|&lt;|\\u003c)(?:[\w.-]+:)?` + secretive + `(?:\s[^<>]*?)?(?:>|&gt;|\\u003e)`)
	flagged  = regexp.MustCompile(`(?i)(?:^|[\s"'=\[,])--?` + secretive + `(?:\s+|["']\s*,?\s*)`)

	sensitiveKey = regexp.MustCompile(`(?i)` + sensitive + `|` + ending + `$`)
	headers      = regexp.MustCompile(`(?i)` + header)
	tagEnd       = regexp.MustCompile(`(?i)<|&lt;|\\u003c|\n`)
	// quote opens a text. Before it may stand what Python and the shell write there.
	quote = regexp.MustCompile(`^(?i:[bruf]{1,2}|[$&*@])?(` + quoting + `)`)
	// bare is a value without quotes: a quote in it ends it where something else
	// begins behind that.
	bare = regexp.MustCompile(`^(?:[^\s"'\\]|\\[ \t]|\\+[^\s"'\\]|["'][^\s"',;:)\]}>&\\])*`)
)

// span is a part of a text, from its first byte to the one behind its last.
type span struct{ from, to int }

// withoutNamed takes out the values of names that say that they are secrets.
func withoutNamed(text string) string {
	var out strings.Builder
	done := 0
	for _, v := range secretsIn(text) {
		out.WriteString(text[done:v.from] + Removed)
		done = v.to
	}
	out.WriteString(text[done:])
	return out.String()
}

// secretsIn are the values that stand behind such names, in their order and apart. A
// name in the value of another counts as well: what seems to be in quotes may be
// between two texts that are.
func secretsIn(text string) []span {
	all := slices.Concat(assignedIn(text), taggedIn(text), flaggedIn(text))
	slices.SortFunc(all, func(a, b span) int { return a.from - b.from })
	var apart []span
	for _, v := range all {
		switch last := len(apart) - 1; {
		case v.to <= v.from:
		case last >= 0 && v.from <= apart[last].to:
			apart[last].to = max(apart[last].to, v.to)
		default:
			apart = append(apart, v)
		}
	}
	return apart
}

func assignedIn(text string) []span {
	var all []span
	for _, m := range assigned.FindAllStringSubmatchIndex(text, -1) {
		switch name := text[m[2]:m[3]]; {
		case isCode(name):
		case headers.MatchString(name):
			all = append(all, lineAt(text, m[1]))
		default:
			all = append(all, valueAt(text, m[1]))
		}
	}
	return all
}

// isCode tells whether it is a code of an answer, with its sentence behind it.
func isCode(name string) bool {
	return slices.ContainsFunc(grant.Codes(), func(c grant.CodeInfo) bool { return string(c.Code) == name })
}

func taggedIn(text string) []span {
	var all []span
	for _, m := range tagged.FindAllStringIndex(text, -1) {
		to := len(text)
		if end := tagEnd.FindStringIndex(text[m[1]:]); end != nil {
			to = m[1] + end[0]
		}
		all = append(all, span{m[1], to})
	}
	return all
}

func flaggedIn(text string) []span {
	var all []span
	for _, m := range flagged.FindAllStringIndex(text, -1) {
		if !strings.HasPrefix(text[m[1]:], "-") { // the next flag
			all = append(all, valueAt(text, m[1]))
		}
	}
	return all
}

// lineAt is a value that lasts until the end of its line, unless it is in quotes or
// brackets that are all of it.
func lineAt(text string, from int) span {
	inner, after := enclosed(text, from)
	if after > from && (after == len(text) || strings.IndexByte(" \t\r\n,)]}", text[after]) >= 0) {
		return inner
	}
	return span{from, lineEnd(text, from)}
}

func lineEnd(text string, from int) int {
	if n := strings.IndexByte(text[from:], '\n'); n >= 0 {
		return from + n
	}
	return len(text)
}

// valueAt is the value that begins there: what is in the quotes or brackets, and what
// is written to it without a space; or all until one.
func valueAt(text string, from int) span {
	inner, after := enclosed(text, from)
	if after == from {
		return span{from, from + len(bare.FindString(text[from:]))}
	}
	if rest := joined(text, after); rest > after {
		return span{from, rest}
	}
	return inner
}

// joined is where what is written to a value without a space or a sign between ends, as
// the shell reads 'a'"b"c.
func joined(text string, from int) int {
	at := from
	for at < len(text) && strings.IndexByte(" \t\r\n,;:&|<>()[]{}\\", text[at]) < 0 {
		if quote.MatchString(text[at:]) {
			_, at = quoted(text, at)
			continue
		}
		at++
	}
	return at
}

// enclosed is what is in the quotes or brackets that begin there, and what is behind
// them; that is from where there are none.
func enclosed(text string, from int) (inner span, after int) {
	switch {
	case from == len(text), strings.HasPrefix(text[from:], Removed):
		return span{}, from
	case quote.MatchString(text[from:]):
		return quoted(text, from)
	case strings.IndexByte("[{(", text[from]) >= 0:
		return bracketed(text, from)
	}
	return span{}, from
}

// quoted is a text in quotes. One that does not end lasts until the end of its line.
func quoted(text string, from int) (inner span, after int) {
	m := quote.FindStringSubmatchIndex(text[from:])
	token, begin := text[from+m[2]:from+m[3]], from+m[1]
	depth := strings.Count(token, `\`)
	mark := token[depth:]
	for at := begin; ; at += len(mark) {
		n := strings.Index(text[at:], mark)
		if n < 0 {
			end := lineEnd(text, begin)
			return span{begin, end}, end
		}
		at += n
		escapes := 0
		for at-escapes > begin && text[at-escapes-1] == '\\' {
			escapes++
		}
		// A backslash in the text is written as two for each text it is deep in, and a
		// quote in it has more than the one that ends it.
		if escapes%(2*(depth+1)) == depth {
			return span{begin, at - depth}, at + len(mark)
		}
	}
}

// bracketed is what is in brackets. What they do not close lasts until the end of its
// line.
func bracketed(text string, from int) (inner span, after int) {
	depth := 0
	for at := from; at < len(text); {
		switch text[at] {
		case '[', '{', '(':
			depth++
		case ']', '}', ')':
			if depth--; depth == 0 {
				return span{from + 1, at}, at + 1
			}
		case '"', '\'', '`', '\\', '&':
			if quote.MatchString(text[at:]) {
				_, at = quoted(text, at)
				continue
			}
		}
		at++
	}
	end := lineEnd(text, from)
	return span{from + 1, end}, end
}
