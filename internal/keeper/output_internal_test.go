package keeper

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate is a writer that stalls until it is opened.
type gate struct {
	mu   sync.Mutex
	b    bytes.Buffer
	open chan struct{}
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(p)
}

func TestALogThatNobodyReadsStopsNobody(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	o := NewOutput(g)
	w := &words{prefix: "use id: ", to: o}
	for range 5000 {
		_, _ = w.Write([]byte(strings.Repeat("x", 200) + "\n"))
	}
	// Children have not taken all the room.
	_, _ = o.Write([]byte("the keeper's own\n"))
	close(g.open)
	for len(o.wait()) > 0 {
		continue
	}
	_, _ = w.Write([]byte("after\n"))
	o.Close(time.Minute)
	text := g.b.String()
	for _, want := range []string{"the keeper's own\n", "use id: after\n", "writes were lost"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if len(text) > maxQueued {
		t.Errorf("%d bytes were queued", len(text))
	}
}

// wait returns what is queued, after a moment for others.
func (o *Output) wait() [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.size == 0 {
		return nil
	}
	return [][]byte{nil}
}

func TestLinesAreBoundedAndHarmless(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	o := NewOutput(g)
	w := &words{prefix: "p: ", to: o}
	_, _ = w.Write([]byte("one\r\n\n\x1b[31mred\tü\n\xff\n" + strings.Repeat("y", maxLine+10) + "\nno end"))
	end := w.end()
	o.Close(time.Minute)
	want := "p: one.\np: .[31mred\tü\np: .\np: " + strings.Repeat("y", maxLine) + "\np: " + strings.Repeat("y", 10) + "\np: no end\n"
	if got := g.b.String(); got != want {
		t.Errorf("%q", got)
	}
	if !strings.HasSuffix(end, "no end") || len(end) > MaxWords {
		t.Errorf("the words %q", end)
	}
	w = &words{}
	_, _ = w.Write([]byte("one\n\x1b[31mred\u009b\r\xff\n"))
	if end := w.end(); end != "one\n.[31mred...\n" {
		t.Errorf("the words %q", end)
	}
	w = &words{}
	_, _ = w.Write([]byte("a" + strings.Repeat("ü", MaxWords)))
	if end := w.end(); strings.Trim(end, "ü") != "" || len(end) != MaxWords {
		t.Errorf("%d bytes of words that begin with %q", len(end), end[:4])
	}
}
