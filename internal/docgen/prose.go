package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// columns is the width of prose. Tables, blocks of code and the targets of links are as
// wide as they are.
const columns = 120

// prose are the pages that are held to it, in the module's root. docs/performance.md is
// what `make bench` measured and wrote.
func prose() (pages []string, err error) {
	err = filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" && path != filepath.Join("docs", "performance.md") {
			pages = append(pages, path)
		}
		return err
	})
	return append(pages, "README.md", "CONTRIBUTING.md", "SECURITY.md"), err
}

// checkProse returns an error that names every line of these pages that is too wide.
func checkProse(pages []string) error {
	var wide []error
	for _, name := range pages {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, line := range tooWide(string(text)) {
			wide = append(wide, fmt.Errorf("%s:%d is wider than %d columns: wrap the paragraph", name, line, columns))
		}
	}
	return errors.Join(wide...)
}

var linkTarget = regexp.MustCompile(`\]\([^)]*\)`)

// tooWide returns the numbers, from 1, of the lines of prose that are too wide.
func tooWide(text string) []int {
	var wide []int
	block := false
	for i, line := range strings.Split(text, "\n") {
		start := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(start, "```"):
			block = !block
		case block, strings.HasPrefix(start, "|"):
		case utf8.RuneCountInString(linkTarget.ReplaceAllString(line, "]")) > columns:
			wide = append(wide, i+1)
		}
	}
	return wide
}
