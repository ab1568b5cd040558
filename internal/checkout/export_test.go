package checkout

import (
	"os"
	"path/filepath"
	"testing"
)

// RunForTest runs the configured program as git is run, and returns what it said.
func RunForTest(t *testing.T, c Config, args ...string) string {
	t.Helper()
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	r := run{out: os.Stderr, spec: spec{
		Dir: "/", Argv: append([]string{c.Git}, args...), Env: environment("/nonexistent", os.DevNull, "/nonexistent"),
		UID: c.User, GID: c.Group, Hide: c.Hide, Read: []string{filepath.Dir(c.Git)},
		FileBytes: 1 << 20, DataBytes: 1 << 30,
	}}
	words, err := r.do(t.Context())
	if err == nil {
		t.Fatal("the program was expected to fail")
	}
	return words
}

// ConfinedName is the first argument of the process that becomes git.
const ConfinedName = confinedName
