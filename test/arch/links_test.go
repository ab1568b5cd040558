package arch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestLinksBetweenPagesLeadSomewhere(t *testing.T) {
	dir, _ := module(t)
	pages := 0
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return enter(dir, file)
		}
		if filepath.Ext(file) != ".md" {
			return nil
		}
		pages++
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, broken := range brokenLinks(filepath.Dir(file), string(text)) {
			t.Errorf("%s:%s", file, broken)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		t.Errorf("no page found in %s", dir)
	}
}

func TestABrokenLinkIsFound(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there.md"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := "[a](there.md) [b](there.md#part) [c](https://example.org/x)\n[d](#here)\n[e](gone.md) and [f](../gone/)\n"
	found := brokenLinks(dir, text)
	if len(found) != 2 || !strings.HasPrefix(found[0], "3: gone.md") || !strings.HasPrefix(found[1], "3: ../gone/") {
		t.Errorf("lines 3 twice expected, got %q", found)
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// brokenLinks returns "line: target" for each relative link of a page in dir that
// leads to no file.
func brokenLinks(dir, text string) []string {
	var broken []string
	for i, line := range strings.Split(text, "\n") {
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(target))); err != nil {
				broken = append(broken, fmt.Sprintf("%d: %s leads nowhere", i+1, target))
			}
		}
	}
	return broken
}
