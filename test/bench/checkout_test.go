package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// fetched is what it takes to bring a commit from its server, in ways of which each
// does more than the one before.
type fetched struct {
	*repository
	clone    samples // git clone --depth 1
	verified samples // with every object checked
	set      samples // with all settings of a checkout
	byHand   samples // by the commands of a checkout
	checkout samples // by package checkout
}

// measureCheckouts brings the same commit in each way, turn by turn, onto the same
// filesystem.
func measureCheckouts(b *testing.B, program string, repositories []*repository) []fetched {
	b.Helper()
	w := newFetcher(b, program, repositories[0])
	var all []fetched
	for _, r := range repositories {
		out := fetched{repository: r}
		ways := []struct {
			to     *samples
			make   func(*repository) (tree string, took time.Duration, err error)
			remove func(tree string) error
		}{
			{&out.clone, timed(w.clone(os.DevNull)), os.RemoveAll},
			{&out.verified, timed(w.clone(w.verified)), os.RemoveAll},
			{&out.set, timed(w.clone(w.settings)), os.RemoveAll},
			{&out.byHand, timed(w.byHand), os.RemoveAll},
			{&out.checkout, w.checkout, w.remove},
		}
		for i := range r.size.rounds {
			for j := range ways {
				way := ways[(i+j)%len(ways)]
				tree, took, err := way.make(r)
				must(b, err)
				*way.to = append(*way.to, took)
				must(b, r.arrived(tree))
				must(b, way.remove(tree))
			}
		}
		all = append(all, out)
	}
	return all
}

func timed(do func(*repository) (string, error)) func(*repository) (string, time.Duration, error) {
	return func(r *repository) (string, time.Duration, error) {
		began := time.Now()
		tree, err := do(r)
		return tree, time.Since(began), err
	}
}

// arrived holds what was made against what was asked for.
func (r *repository) arrived(tree string) error {
	files, err := filepath.Glob(tree + "/folder*/*")
	if err != nil {
		return err
	}
	// The commit is where the history was cut, whatever git calls it.
	commit, err := os.ReadFile(tree + "/.git/shallow")
	if err != nil {
		return err
	}
	if string(commit) != r.commit+"\n" || len(files) != r.size.files {
		return fmt.Errorf("%s: %d files of %q, expected %d of %s", tree, len(files), commit, r.size.files, r.commit)
	}
	return nil
}

// fetcher has a program with a store, and what git needs beside it.
type fetcher struct {
	b   *testing.B
	dir string
	// trusted are the certificates of the system and the server's, as for a checkout.
	trusted string
	// settings are those of a checkout that cost or save time, verified is one of them.
	settings, verified string

	to   io.Writer // the program
	from *bufio.Scanner
}

const (
	systemCertificates = "/etc/ssl/certs/ca-certificates.crt"
	verified           = "[transfer]\n\tfsckObjects = true\n"
)

func newFetcher(b *testing.B, program string, r *repository) *fetcher {
	b.Helper()
	w := &fetcher{b: b, dir: folder(b)}
	system, err := os.ReadFile(systemCertificates)
	must(b, err)
	ca, nowhere := filepath.Join(w.dir, "ca.pem"), filepath.Join(w.dir, "nowhere")
	w.trusted = filepath.Join(w.dir, "trusted.pem")
	w.settings, w.verified = filepath.Join(w.dir, "settings"), filepath.Join(w.dir, "verified")
	must(b, os.Mkdir(nowhere, 0o755))
	for name, text := range map[string]string{
		ca:         string(r.server.CA()),
		w.trusted:  string(system) + "\n" + string(r.server.CA()),
		w.verified: verified,
		w.settings: fmt.Sprintf(verified+"[http]\n\tsslCAPath = %s\n[fetch]\n\tunpackLimit = 1\n"+
			"[pack]\n\tthreads = 1\n[index]\n\tthreads = 1\n[checkout]\n\tworkers = 1\n", nowhere),
	} {
		must(b, os.WriteFile(name, []byte(text), 0o644))
	}
	cmd := exec.Command(program, filepath.Join(w.dir, "store"), ca, r.server.Address().String())
	cmd.Stderr = os.Stderr
	to, err := cmd.StdinPipe()
	must(b, err)
	from, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	b.Cleanup(func() {
		to.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s: %v", program, err)
		}
	})
	w.to, w.from = to, bufio.NewScanner(from)
	return w
}

// git runs git as this user, with no settings but those of a file.
func (w *fetcher) git(settings string, args ...string) error {
	cmd := exec.Command("/usr/bin/git", args...)
	cmd.Dir = w.dir
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + settings, "GIT_SSL_CAINFO=" + w.trusted,
	}
	var words bytes.Buffer
	cmd.Stderr = &words
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("git %q: %w\n%s", args, err, words.String())
	}
	return nil
}

// clone is what a person would type.
func (w *fetcher) clone(settings string) func(*repository) (tree string, err error) {
	return func(r *repository) (string, error) {
		tree := filepath.Join(w.dir, "clone")
		return tree, w.git(settings, "clone", "--quiet", "--depth=1", "--", r.url(), tree)
	}
}

// byHand is what a checkout has git do: fetch the commit by its id, list what is in
// it, write that.
func (w *fetcher) byHand(r *repository) (tree string, err error) {
	tree = filepath.Join(w.dir, "by-hand")
	for _, dir := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(tree, ".git", dir), 0o755); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(tree, ".git/HEAD"), []byte("ref: refs/heads/checkout\n"), 0o644); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"fetch", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--progress", "--", r.url(), r.commit},
		{"ls-tree", "-r", "-l", "-z", "--full-tree", r.commit},
		{"checkout", "--quiet", "--detach", "--force", r.commit, "--"},
	} {
		if err := w.git(w.settings, append([]string{"-C", tree}, args...)...); err != nil {
			return "", err
		}
	}
	return tree, nil
}

// checkout has the program make a checkout, which measures it.
func (w *fetcher) checkout(r *repository) (tree string, took time.Duration, err error) {
	line, err := w.ask(r.url() + " " + r.commit)
	if err != nil {
		return "", 0, err
	}
	if _, err := fmt.Sscan(line, &took, &tree); err != nil {
		return "", 0, err
	}
	return tree, took, nil
}

// remove has the program remove the checkout that it has.
func (w *fetcher) remove(string) error {
	_, err := w.ask("seen")
	return err
}

func (w *fetcher) ask(line string) (answer string, err error) {
	if _, err := fmt.Fprintln(w.to, line); err != nil {
		return "", err
	}
	if !w.from.Scan() {
		return "", errors.New("the program with the store has ended")
	}
	return w.from.Text(), nil
}
