package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/journal"
)

// disk is what the agent's journal is written on. It may be full: then it takes
// nothing, and lets go of what it has. It may be read-only: then it does neither.
type disk struct {
	mu    sync.Mutex
	err   error
	after int // records that it takes before
}

func (d *disk) fail(err error, after int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.after = err, after
}

// write is the write of a record, of a Pod or of none.
func (d *disk) write(do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.err == nil:
	case d.after > 0:
		d.after--
	default:
		return fmt.Errorf("journal of a Pod: write: %w", d.err)
	}
	return do()
}

func (d *disk) remove(do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(d.err, unix.EROFS) || errors.Is(d.err, unix.EIO) {
		return fmt.Errorf("journal of a Pod: remove: %w", d.err)
	}
	return do()
}

// paper is a journal on such a disk.
type paper struct {
	*journal.Store
	disk *disk
}

func (p paper) Save(j *journal.Pod) error {
	return p.disk.write(func() error { return p.Store.Save(j) })
}
func (p paper) Try() error { return p.disk.write(p.Store.Try) }
func (p paper) Remove(uid string) error {
	return p.disk.remove(func() error { return p.Store.Remove(uid) })
}

// disks are the states that a story can order.
func disks() map[string]error {
	return map[string]error{
		"full": syscall.ENOSPC, "over-quota": syscall.EDQUOT, "broken": syscall.EIO, "read-only": syscall.EROFS, "well": nil,
	}
}

// logbook has the warnings and errors that the agent has logged.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (*logbook) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler         { return b }
func (b *logbook) WithGroup(string) slog.Handler              { return b }

// Handle implements slog.Handler.
func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "fault" {
			line += ": " + a.Value.String()
		}
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	return nil
}

// take is what was logged since it was last asked.
func (b *logbook) take(paths func(string) string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	for i := range lines {
		lines[i] = paths(lines[i])
	}
	b.lines = nil
	return lines
}
