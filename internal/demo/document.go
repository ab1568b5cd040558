package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Document is everything the demo shows: printed as it happens, or as one JSON
// object at the end.
type Document struct {
	Kernel string `json:"kernel"`
	Steps  []Step `json:"steps"`
	// Left are the mounts and folders that were there after the end and not
	// before.
	Left []string `json:"left"`
	OK   bool     `json:"ok"`
}

// Step is one thing that is done to the Pod, and what is seen of it.
type Step struct {
	Title string `json:"title"`
	// Visible and Ready are the times from the writing of the grant until the
	// sandbox saw it, and until the answer could be read, in microseconds.
	Visible int64   `json:"visible_us,omitempty"`
	Ready   int64   `json:"ready_us,omitempty"`
	Answer  string  `json:"answer,omitempty"`
	Listing []Entry `json:"listing,omitempty"`
	Checks  []Check `json:"checks"`
}

// Entry is one folder as the sandbox sees it.
type Entry struct {
	Name  string `json:"name"`
	Mode  string `json:"mode"`
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Flags string `json:"flags"`
}

// Check is something that was tried, and whether it went as it must.
type Check struct {
	What string `json:"what"`
	Seen string `json:"seen"`
	OK   bool   `json:"ok"`
}

// outputError is ErrOutput with its reason. It is one error and no list of two:
// whoever takes joined errors apart keeps it whole.
type outputError struct{ reason error }

func (e outputError) Error() string        { return ErrOutput.Error() + ": " + e.reason.Error() }
func (e outputError) Unwrap() error        { return e.reason }
func (e outputError) Is(target error) bool { return target == ErrOutput }

// printer writes one line after the other as things happen, until one cannot be
// written.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err != nil {
		return
	}
	if _, err := fmt.Fprintf(p.w, format+"\n", args...); err != nil {
		p.err = outputError{err}
	}
}

func (p *printer) title(n int, title string) { p.line("\n%d. %s", n, title) }

func (p *printer) step(s Step) {
	if s.Ready > 0 {
		p.line("   %s", timing(s))
	}
	for _, e := range s.Listing {
		p.line("     %s %5d:%-5d %-8s %s", e.Mode, e.UID, e.GID, e.Name, e.Flags)
	}
	for _, c := range s.Checks {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		p.line("   %s %s: %s", mark, c.What, c.Seen)
	}
}

func timing(s Step) string {
	us := func(n int64) string {
		return (time.Duration(n) * time.Microsecond).Round(10 * time.Microsecond).String()
	}
	if s.Visible == 0 {
		return fmt.Sprintf("answered %s after %s", s.Answer, us(s.Ready))
	}
	return fmt.Sprintf("in the sandbox after %s, answered %s after %s", us(s.Visible), s.Answer, us(s.Ready))
}

func (p *printer) end(d Document) {
	if len(d.Left) > 0 {
		p.line("\nFAIL left behind: %s", strings.Join(d.Left, ", "))
	} else {
		p.line("\nNothing is left behind.")
	}
	if !d.OK {
		p.line("Something did not go as it must: see FAIL above.")
	}
}

func (d Document) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(d)
}
