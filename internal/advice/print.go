package advice

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Print tells the user of an error: what it is, a line each, and what to do, each
// thing once. hint says what to do about one of them; Hint does where nothing more is
// known.
func Print(w io.Writer, err error, hint func(error) string) {
	if err == nil {
		return
	}
	errs := Several{err}
	if s, ok := errors.AsType[Several](err); ok {
		errs = s
	}
	told := map[string]bool{"": true}
	var hints []string
	for _, e := range errs {
		line, do := "error: "+Plain(oneLine(e.Error())), hint(e)
		if !told[line] {
			fmt.Fprintln(w, line)
		}
		if !told[do] {
			hints = append(hints, do)
		}
		told[line], told[do] = true, true
	}
	for _, h := range hints {
		fmt.Fprintln(w, "hint:", h)
	}
}

// oneLine makes a line of text that has several. Some programs leave lines between
// theirs empty, or end one with a mark of its own.
func oneLine(text string) string {
	var one string
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case line == "":
		case one == "":
			one = line
		case strings.ContainsRune(".:;,", rune(one[len(one)-1])):
			one += " " + line
		default:
			one += "; " + line
		}
	}
	return one
}

// Plain makes text safe for a terminal. Whoever may annotate a Pod chooses some of
// it, and must not choose what the terminal of whoever looks at it does.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
