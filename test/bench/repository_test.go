package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/test/gitserver"
)

// repository is one that is served over https on this machine.
type repository struct {
	size   repositorySize
	served *gitserver.Repository
	server *gitserver.HTTPS
	commit string // the end of its branch, which `git clone` brings
	packed int64  // bytes, as they are sent
}

// repositorySize is what a commit of a repository holds. Its files have the same
// size.
type repositorySize struct {
	name         string
	files, bytes int
	// rounds is how often it is fetched in each way, podRounds how often among Pods.
	rounds, podRounds int
}

func repositorySizes() []repositorySize {
	return []repositorySize{
		{name: "small", files: 5, bytes: 20_000, rounds: 40, podRounds: 20},
		{name: "bigger", files: 2000, bytes: 50_000_000, rounds: 12, podRounds: 8},
	}
}

// folder is a temporary one that every user may walk to: git runs as another.
func folder(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("", "bench")
	must(b, err)
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	must(b, os.Chmod(dir, 0o755))
	return dir
}

// newRepositories makes a repository of each size and a server for them.
func newRepositories(b *testing.B) []*repository {
	b.Helper()
	root, server := folder(b), &gitserver.HTTPS{}
	var all []*repository
	for _, size := range repositorySizes() {
		r := &repository{size: size, server: server, served: gitserver.NewRepository(b, root, size.name+".git")}
		r.served.Feed(size.history(), "fast-import", "--quiet")
		// One pack, as servers keep what is not new.
		r.served.Git("repack", "-a", "-d", "-q")
		r.commit = r.served.Git("rev-parse", "main")
		r.another() // so that there is history that is not fetched
		packs, err := filepath.Glob(filepath.Join(r.served.Dir(), "objects/pack/*.pack"))
		must(b, err)
		for _, name := range packs {
			info, err := os.Stat(name)
			must(b, err)
			r.packed += info.Size()
		}
		all = append(all, r)
	}
	server.Start(b, root)
	return all
}

func (r *repository) url() string { return r.server.URL(r.served.Name) }

// another is one more commit with the same files: to a node it is one it has never
// seen.
func (r *repository) another() string {
	r.commit = r.served.Commit("main", r.served.Git("rev-parse", r.commit+"^{tree}"), r.commit)
	return r.commit
}

func (r *repository) String() string {
	return fmt.Sprintf("%s, %d files, %s MB", r.size.name, r.size.files, strconv.FormatFloat(float64(r.size.bytes)/1e6, 'g', 3, 64))
}

// history is one commit as `git fast-import` reads it: a hundred files to a folder,
// of words, so that they take as much to compress as text does.
func (s repositorySize) history() string {
	rng := rand.New(rand.NewPCG(1, uint64(s.files)))
	words := make([]string, 2000)
	for i := range words {
		words[i] = strconv.FormatUint(rng.Uint64N(1<<40), 36)
	}
	var b strings.Builder
	b.WriteString("commit refs/heads/main\ncommitter Ada <ada@example.org> 1767322984 +0000\ndata 5\nfiles\n")
	for i := range s.files {
		var text strings.Builder
		for size := s.bytes / s.files; text.Len() < size; {
			word := words[rng.IntN(len(words))]
			text.WriteString(word[:min(len(word), size-text.Len()-1)] + " ")
		}
		fmt.Fprintf(&b, "M 100644 inline folder%02d/file%04d.txt\ndata %d\n%s\n", i/100, i, text.Len(), text.String())
	}
	return b.String()
}
