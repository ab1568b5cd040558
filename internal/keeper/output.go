package keeper

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// maxQueued is how many bytes wait to be written; children's lines may take half.
	maxQueued = 512 << 10
	// maxLine is how many bytes of a line of a child are copied; the rest of it follows as another line.
	maxLine = 2 << 10
)

// Output writes lines to a writer that may stall, such as a standard error that a
// container runtime does not read while it restarts. Writing to it never waits: what
// finds no room is counted and lost.
type Output struct {
	w io.Writer

	mu     sync.Mutex
	queue  [][]byte
	size   int // bytes in queue and under way
	lost   int
	wake   chan struct{} // something is queued
	idle   chan struct{} // closed when nothing is queued or under way
	closed bool
}

// NewOutput starts an Output. Close ends it.
func NewOutput(w io.Writer) *Output {
	o := &Output{w: w, wake: make(chan struct{}, 1)}
	go o.run()
	return o
}

// Write queues whole lines. It reports success also when they are lost.
func (o *Output) Write(p []byte) (int, error) {
	o.put(p, maxQueued)
	return len(p), nil
}

func (o *Output) put(p []byte, most int) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.size+len(p) > most {
		o.lost++
		return
	}
	if o.lost > 0 {
		o.add(fmt.Appendf(nil, "node-mounts-keeper: %d writes were lost, because nobody read them\n", o.lost))
		o.lost = 0
	}
	o.add(bytes.Clone(p))
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *Output) add(line []byte) {
	o.queue = append(o.queue, line)
	o.size += len(line)
}

func (o *Output) run() {
	for range o.wake {
		for {
			o.mu.Lock()
			lines := o.queue
			o.queue = nil
			if len(lines) == 0 && o.idle != nil {
				close(o.idle)
				o.idle = nil
			}
			closed := o.closed
			o.mu.Unlock()
			if len(lines) == 0 {
				if closed {
					return
				}
				break
			}
			for _, line := range lines {
				_, _ = o.w.Write(line) // there is nowhere to say that it failed
				o.mu.Lock()
				o.size -= len(line)
				o.mu.Unlock()
			}
		}
	}
}

// Close waits until all is written, but no longer than within.
func (o *Output) Close(within time.Duration) {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return
	}
	o.closed = true
	idle := make(chan struct{})
	o.idle = idle
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	select {
	case <-idle:
	case <-time.After(within):
	}
}

// words is what a child prints: copied line by line, and its end kept.
type words struct {
	prefix string
	to     *Output

	line []byte // the line under way
	tail []byte // the last MaxWords bytes
}

// Write takes a part of the output.
func (w *words) Write(p []byte) (int, error) {
	w.tail = append(w.tail, p...)
	if excess := len(w.tail) - MaxWords; excess > 0 {
		w.tail = append(w.tail[:0], w.tail[excess:]...)
	}
	for _, b := range p {
		if b != '\n' {
			w.line = append(w.line, b)
		}
		if b == '\n' || len(w.line) >= maxLine {
			w.flush()
		}
	}
	return len(p), nil
}

// flush writes the line under way. What a terminal or a reader of the log could take
// for something else is shown as a dot.
func (w *words) flush() {
	if len(w.line) == 0 {
		return
	}
	line := make([]byte, 0, len(w.prefix)+len(w.line)+1)
	line = append(line, w.prefix...)
	line = append(line, bytes.Map(printable, w.line)...)
	w.to.put(append(line, '\n'), maxQueued/2)
	w.line = w.line[:0]
}

func printable(r rune) rune {
	if r == utf8.RuneError || r != '\t' && !unicode.IsPrint(r) {
		return '.'
	}
	return r
}

// end is the end of the output, once the child has ended.
func (w *words) end() string {
	w.flush()
	tail := w.tail
	// The first character may have been cut.
	for i := 0; i < utf8.UTFMax-1 && len(w.tail) == MaxWords && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	// Lines are kept, and nothing else that moves a terminal's cursor: it is shown to users.
	return string(bytes.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return printable(r)
	}, tail))
}
