package cli

import (
	"errors"
	"io"
	"os"

	"github.com/datalayer/node-mounts/internal/advice"
)

// errTooLarge is an input that has more in it than is read.
var errTooLarge = errors.New("it is too large")

// readInput reads a file that the command line names, - for standard input, if it
// has at most so many bytes. hint is what to do where it cannot be opened.
func readInput(stdin io.Reader, file string, most int64, hint string) ([]byte, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, advice.With(err, hint)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(b)) > most {
		return nil, errTooLarge
	}
	return b, err
}
