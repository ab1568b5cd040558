package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnInputIsReadWholeOrNotAtAll(t *testing.T) {
	const most = 4
	file := filepath.Join(t.TempDir(), "input")
	for text, want := range map[string]error{"": nil, "four": nil, "fives": errTooLarge} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, stdin := range map[string]string{"-": text, file: "something else"} {
			got, err := readInput(strings.NewReader(stdin), name, most, "")
			if !errors.Is(err, want) || err == nil && string(got) != text {
				t.Errorf("%q by %s: %q, %v", text, name, got, err)
			}
		}
	}
	_, err := readInput(nil, file+".not", most, "make it")
	if !errors.Is(err, os.ErrNotExist) || hintOf(err, programName) != "make it" {
		t.Errorf("a file that is not there: %v", err)
	}
}
