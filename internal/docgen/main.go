// Command docgen writes the pages of docs/reference from the tables the program
// itself runs on, and the chart's README from its values, so that a page cannot
// say what the code no longer does.
//
//	go run ./internal/docgen          write the pages
//	go run ./internal/docgen -check   fail when one of them is stale
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
	check := flag.Bool("check", false, "write nothing; fail when a page is stale")
	dir := flag.String("dir", filepath.Join("docs", "reference"), "where the pages are")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if *check {
			fmt.Fprintln(os.Stderr, "hint: run 'make docs' and commit what it wrote")
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
		return errors.Join(verify(dir, pages()), compare(chartDir, chart))
	}
	return errors.Join(write(dir, pages()), write(chartDir, chart))
}
