// Command docgen writes the pages of docs/reference from the tables the program
// itself runs on, and the chart's README from its values, so that a page cannot
// say what the code no longer does.
//
//	go run ./internal/docgen          write the pages
//	go run ./internal/docgen -check   fail when one of them is stale, or when the prose
//	                                  of a page is wider than 120 columns
//
// It runs in the module's root. Exit status: 0 done, 1 stale or failed, 2 usage.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail when a page is stale or its prose too wide")
	dir := flag.String("dir", filepath.Join("docs", "reference"), "where the pages are")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if *check {
			fmt.Fprintln(os.Stderr, "hint: run 'make docs' and commit what it wrote; prose is wrapped by hand")
		}
		os.Exit(1)
	}
}

func run(dir string, check bool) error {
	values, err := chartPage()
	if err != nil {
		return err
	}
	chart := []page{{"README.md", values}}
	if check {
		written, err := prose()
		if err != nil {
			return err
		}
		return errors.Join(verify(dir, pages()), compare(chartDir, chart), checkProse(written))
	}
	return errors.Join(write(dir, pages()), write(chartDir, chart))
}
