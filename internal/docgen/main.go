// Command docgen writes the pages of docs/reference from the tables the program
// itself runs on, so that a page cannot say what the code no longer does.
//
//	go run ./internal/docgen          write the pages
//	go run ./internal/docgen -check   fail when one of them is stale
//
// It runs in the module's root. Exit status: 0 done, 1 stale or failed, 2 usage.
package main

import (
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
	run := write
	if *check {
		run = verify
	}
	if err := run(*dir, pages()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if *check {
			fmt.Fprintln(os.Stderr, "hint: run 'make docs' and commit what it wrote")
		}
		os.Exit(1)
	}
}
