package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/datalayer/node-mounts/internal/lockfile"
)

// ErrLocked: another process works with these records, so an agent runs on this
// node already, or somebody recovers Pods of it.
var ErrLocked = errors.New("another process has the journal")

// lockName is no record's name: those end in suffix.
const lockName = "lock"

// lock takes the folder for this process, or answers ErrLocked.
func lock(dir string) (*os.File, error) {
	f, err := lockfile.Take(filepath.Join(dir, lockName))
	if errors.Is(err, lockfile.ErrTaken) {
		err = fmt.Errorf("%s: %w", filepath.Join(dir, lockName), ErrLocked)
	}
	return f, err
}

// Sign leaves a word for whoever opens the journal later, for as long as the file
// of the lock is there. It takes the place of the last one. One that is there already
// is not written again, and the last one goes only when it is written: a disk that is
// full has no room for either.
func (s *Store) Sign(word string) error {
	if last, err := s.Signature(); err == nil && last == word {
		return nil
	}
	// By its name: the descriptor of the lock may be one to read only.
	f, err := os.OpenFile(s.held.Name(), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer f.Close()
	if _, err = f.WriteAt([]byte(word), 0); err == nil {
		err = f.Truncate(int64(len(word)))
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// maxWord is how much of a word is read: Sign is given a few bytes.
const maxWord = 256

// Signature is the word that was left last, "" where there is none.
func (s *Store) Signature() (string, error) {
	b, err := io.ReadAll(io.NewSectionReader(s.held, 0, maxWord))
	if err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	return string(b), nil
}
