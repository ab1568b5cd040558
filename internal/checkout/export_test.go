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

// RunJobForTest runs the store's program as a job runs git, and returns what it
// printed.
func RunJobForTest(t *testing.T, s *Store, args ...string) string {
	t.Helper()
	j := &job{store: s, remote: remote{overHTTPS, "https://127.0.0.1/r", "127.0.0.1", 443}}
	var err error
	if j.path, err = os.MkdirTemp(filepath.Join(s.config.Root, jobsFolder), "job-"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.discard(); err != nil {
			t.Error(err)
		}
	}()
	if err := j.layOut(); err != nil {
		t.Fatal(err)
	}
	var out tail
	if err := j.git(t.Context(), &out, args...); err != nil {
		t.Errorf("%v: %s", err, out.kept)
	}
	return string(out.kept)
}

// GetForTest is Get of what is not there, with something that happens when it has been
// made and nobody has claimed it.
func GetForTest(t *testing.T, s *Store, r Request, between func()) (*Checkout, error) {
	t.Helper()
	where, err := parseRemote(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.join(where, r)
	if err != nil {
		t.Fatal(err)
	}
	<-f.done
	between()
	return s.await(t.Context(), f, r)
}

// ConfinedName is the first argument of the process that becomes git.
const ConfinedName = confinedName
