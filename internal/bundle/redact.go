package bundle

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// Removed stands where something was taken out.
const Removed = "(removed)"

// minLiteral is how long a value has to be to be looked for everywhere. Shorter ones
// are words, and taking them out of other texts would make those unreadable.
const minLiteral = 6

// Redactor takes secrets out of texts: what looks like one, and values that are known.
// It is the second line: what may hold a secret is not put into a bundle at all.
type Redactor struct {
	literals []string
	patterns []pattern
	// words are those of all values, whatever their length, for Strict.
	words map[string]bool
}

type pattern struct {
	find *regexp.Regexp
	with string
}

// NewRedactor makes one that also takes these values out, wherever they appear, except
// those that are part of a name that has to stay.
func NewRedactor(values, names []string) *Redactor {
	r := &Redactor{patterns: patterns(), words: map[string]bool{}}
	for _, v := range values {
		v = strings.TrimSpace(v)
		for _, w := range word.FindAllString(v, -1) {
			r.words[w] = true
		}
		if len(v) < minLiteral || slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, v) }) {
			continue
		}
		for _, l := range append(encoded(v), v) {
			if !slices.Contains(r.literals, l) {
				r.literals = append(r.literals, l)
			}
		}
	}
	for _, n := range names {
		for _, w := range word.FindAllString(n, -1) {
			delete(r.words, w)
		}
	}
	// The longest first: one may be part of another.
	slices.SortFunc(r.literals, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b)) })
	return r
}

// word is what Strict takes out as a whole.
var word = regexp.MustCompile(`[\pL\pN_]+`)

// encoded are the forms in which a text may stand in one that is base64: three, as its
// first byte may be any of a group of three, and each in both alphabets. The
// characters that other bytes have a part in are not among them.
func encoded(v string) []string {
	var all []string
	for before, first := range []int{0, 2, 3} {
		const bits = 6
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), v...))
		text = text[first : (before+len(v))*8/bits]
		all = append(all, text, strings.NewReplacer("+", "-", "/", "_").Replace(text))
	}
	return all
}

// patterns are what secrets look like.
func patterns() []pattern {
	return []pattern{
		{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`), Removed},
		// user:password@ of a URL, whatever the password has in it, and everything behind
		// its question mark: signed URLs carry their key there.
		{regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s"'@<>:]*:[^\s"<>]*@`), "${1}" + Removed + "@"},
		{regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s"'@<>]*(@[^/\s"'@<>]*)*@`), "${1}" + Removed + "@"},
		{regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'?<>]*)\?[^\s"'<>]*`), "${1}?" + Removed},
		{regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)\s+[a-z0-9._~+/=-]{6,}`), "${1} " + Removed},
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]*)?`), Removed},
		{regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{12,}\b`), Removed},
		{regexp.MustCompile(`\b(gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|hf_|AIza)[A-Za-z0-9_-]{10,}`), Removed},
	}
}

// Text takes secrets out of a text.
func (r *Redactor) Text(text string) string {
	for _, l := range r.literals {
		text = strings.ReplaceAll(text, l, Removed)
	}
	for _, p := range r.patterns {
		text = p.find.ReplaceAllString(text, p.with)
	}
	return withoutNamed(text)
}

// Strict is Text for what is told of the containers that the values are of: it takes
// out every word of a value too, as short as it is, unless it is one of a name.
func (r *Redactor) Strict(text string) string {
	// Removed is of words as well, so the texts beside it are looked at alone.
	parts := strings.Split(r.Text(text), Removed)
	for i, part := range parts {
		parts[i] = word.ReplaceAllStringFunc(part, func(w string) string {
			if r.words[w] {
				return Removed
			}
			return w
		})
	}
	return strings.Join(parts, Removed)
}

// Document is v as JSON with secrets taken out of every text in it: one by one, so
// that it is JSON still.
func (r *Redactor) Document(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err = enc.Encode(r.walk(tree))
	return out.Bytes(), err
}

// Line is a line of a log, which may be a JSON object.
func (r *Redactor) Line(line string) string {
	var object map[string]any
	if json.Unmarshal([]byte(line), &object) != nil {
		return r.Text(line)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(r.walk(object)) != nil {
		return Removed
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func (r *Redactor) walk(v any) any {
	switch v := v.(type) {
	case string:
		return r.Text(v)
	case []any:
		for i := range v {
			v[i] = r.walk(v[i])
		}
	case map[string]any:
		for k := range v {
			if isSensitive(k) {
				v[k] = withoutTexts(v[k])
			}
			v[k] = r.walk(v[k])
		}
	}
	return v
}

// withoutTexts is a value under the name of a secret: the text, or those of a list. In
// an object each has a name of its own.
func withoutTexts(v any) any {
	switch v := v.(type) {
	case string:
		return Removed
	case []any:
		for i := range v {
			v[i] = withoutTexts(v[i])
		}
	}
	return v
}

// isSensitive tells whether the value under this key is a secret. A Secret's name is
// none.
func isSensitive(key string) bool {
	if slices.Contains([]string{"secret", "secretName", "automountServiceAccountToken"}, key) {
		return false
	}
	return sensitiveKey.MatchString(key)
}
