package keeper

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"
)

// Protocol is the version that this package speaks. It grows with each addition.
const Protocol = 1

// Info is what every answer of a keeper begins with.
type Info struct {
	Protocol  int    `json:"protocol"`
	Instance  string `json:"instance"`            // random at the keeper's start
	Version   string `json:"version"`             // of the keeper's program
	CacheRoot string `json:"cacheRoot,omitempty"` // where children may keep files; "" none
}

// The bounds of what can be asked for.
const (
	MaxFiles   = 16       // descriptors of a child beside its program
	MaxNote    = 16 << 10 // bytes
	MaxUse     = 512      // bytes
	MaxWords   = 4 << 10  // bytes of Exit.Words
	maxStrings = 48 << 10 // bytes of Args and Env together
	maxGrace   = 10 * time.Minute
)

// Start is a child to be started.
type Start struct {
	Use      string   // which mount the child serves, in the agent's words: one line
	Note     []byte   // opaque; List gives it back. It is kept in memory only and never logged
	Args     []string // Args[0] is the name
	Env      []string // all of it; never logged
	UID, GID int      // never 0
	// Memory is the number of bytes of resident memory beyond which the keeper ends
	// the child; 0: no limit.
	Memory int64
	// CacheName makes the folder CacheRoot/CacheName, mode 0700, for UID, and removes it
	// when the child has ended; "" makes none. No two children that run may share one.
	CacheName string
	// Program is what is executed: a regular file that UID may execute and that nobody
	// has open for writing; not a script, whose interpreter could not open it.
	Program *os.File
	// Files are the descriptors 3, 4, … of the child.
	Files []*os.File
}

// Child is one that the keeper has started.
type Child struct {
	ID      string    `json:"id"` // random
	Use     string    `json:"use"`
	Note    []byte    `json:"note,omitempty"`
	UID     int       `json:"uid"`
	Started time.Time `json:"started"`
	Ended   *Exit     `json:"ended,omitempty"` // nil: it runs
}

// Exit is how a child ended.
type Exit struct {
	Code   int            `json:"code"`             // -1 where a signal ended it
	Signal syscall.Signal `json:"signal,omitempty"` // 0: none
	Memory bool           `json:"memory,omitempty"` // the keeper ended it for its memory
	// Words are the end of what it printed on standard output and error, at most
	// MaxWords bytes.
	Words string    `json:"words,omitempty"`
	At    time.Time `json:"at"`
}

// String says how a child ended, without its words.
func (e Exit) String() string {
	switch {
	case e.Memory:
		return "it used more memory than it may"
	case e.Signal != 0:
		return fmt.Sprintf("signal %d (%v)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// String leaves out what must not be shown.
func (s Start) String() string {
	return fmt.Sprintf("start %q as %d:%d", s.Use, s.UID, s.GID)
}

// GoString leaves out what must not be shown.
func (s Start) GoString() string { return s.String() }

// LogValue leaves out what must not be shown.
func (s Start) LogValue() slog.Value { return slog.StringValue(s.String()) }

// String leaves out what must not be shown.
func (c Child) String() string {
	if c.Ended != nil {
		return fmt.Sprintf("child %s of %q, ended: %v", c.ID, c.Use, c.Ended)
	}
	return fmt.Sprintf("child %s of %q", c.ID, c.Use)
}

// GoString leaves out what must not be shown.
func (c Child) GoString() string { return c.String() }

// LogValue leaves out what must not be shown.
func (c Child) LogValue() slog.Value { return slog.StringValue(c.String()) }

var (
	// ErrUnavailable: nobody answers, or the keeper is ending. Another may answer later.
	ErrUnavailable = errors.New("the keeper does not answer")
	// ErrUnknownChild: this keeper has no such child. It was forgotten, or another
	// instance's.
	ErrUnknownChild = errors.New("the keeper has no such child")
	// ErrEnded: the child does not run any more.
	ErrEnded = errors.New("the child has ended")
)

// RemoteError is a refusal or a failure in the keeper's own words.
type RemoteError struct {
	Message string
}

func (e *RemoteError) Error() string { return "the keeper says: " + e.Message }
