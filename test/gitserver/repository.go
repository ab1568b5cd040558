// Package gitserver has git repositories and real servers for them, for tests:
// git's own http-backend behind TLS, and OpenSSH's sshd, both on loopback.
package gitserver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Repository is a bare repository beneath a folder that servers serve.
type Repository struct {
	Root string // what a server serves
	Name string // beneath Root, and in URLs
	t    testing.TB
}

// NewRepository makes an empty one.
func NewRepository(t testing.TB, root, name string) *Repository {
	t.Helper()
	r := &Repository{Root: root, Name: name, t: t}
	if err := os.MkdirAll(r.Dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	r.Git("init", "--quiet", "--bare", "--initial-branch=main", ".")
	return r
}

// Dir is where the repository lies.
func (r *Repository) Dir() string { return filepath.Join(r.Root, r.Name) }

// Git runs git in the repository and returns what it printed.
func (r *Repository) Git(args ...string) string {
	r.t.Helper()
	return r.Feed("", args...)
}

// Feed runs git with a text on its standard input.
func (r *Repository) Feed(input string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.Dir()
	cmd.Env = append(environment(),
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org", "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
	cmd.Stdin = strings.NewReader(input)
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, words.String())
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func environment() []string {
	return []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C"}
}

// Blob stores a content and returns its id.
func (r *Repository) Blob(content string) string {
	r.t.Helper()
	return r.Feed(content, "hash-object", "-w", "--stdin")
}

// Entry is one line of a tree. Nothing about it is checked.
type Entry struct {
	Mode, Name, ID string
}

// RawTree stores a tree as it is given, also one that git would never make.
func (r *Repository) RawTree(entries ...Entry) string {
	r.t.Helper()
	var raw strings.Builder
	for _, e := range entries {
		raw.WriteString(e.Mode + " " + e.Name + "\x00")
		for i := 0; i < len(e.ID); i += 2 {
			raw.WriteByte(hexByte(e.ID[i])<<4 | hexByte(e.ID[i+1]))
		}
	}
	return r.Feed(raw.String(), "hash-object", "-w", "-t", "tree", "--literally", "--stdin")
}

func hexByte(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

// Commit stores a commit of a tree, makes it the end of a branch and returns its id.
func (r *Repository) Commit(branch, tree string, parents ...string) string {
	r.t.Helper()
	args := []string{"commit-tree", tree, "-m", "a commit of " + tree}
	for _, p := range parents {
		args = append(args, "-p", p)
	}
	id := r.Git(args...)
	r.Git("update-ref", "refs/heads/"+branch, id)
	return id
}

// Files commits plain files, by name. A name that ends in "*" is executable.
func (r *Repository) Files(branch string, files map[string]string, parents ...string) string {
	r.t.Helper()
	index := filepath.Join(r.t.TempDir(), "index")
	run := func(input string, args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = r.Dir()
		cmd.Env = append(environment(), "GIT_INDEX_FILE="+index)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.Output()
		if err != nil {
			r.t.Fatalf("git %q: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	var lines strings.Builder
	for name, content := range files {
		mode := "100644"
		if plain, executable := strings.CutSuffix(name, "*"); executable {
			mode, name = "100755", plain
		}
		lines.WriteString(mode + " " + r.Blob(content) + "\t" + name + "\n")
	}
	run(lines.String(), "update-index", "--add", "--index-info")
	return r.Commit(branch, run("", "write-tree"), parents...)
}
