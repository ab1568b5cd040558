// Package arch enforces the structure of this module: which package may make a
// mount, which may speak to Kubernetes, which must stay pure, and how long a
// function may grow. A rule that nobody checks is broken within a month.
package arch

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// source is one parsed Go file.
type source struct {
	path  string            // slash-separated, from the module's root
	lines int               // of the whole file
	file  *ast.File         //
	fset  *token.FileSet    //
	names map[string]string // local name of an import -> its path
	funcs map[string]bool   // functions declared in the file's package
	root  string            // the module's directory, for resolving imports; "" in memory
}

// parse reads one file. Its funcs are its own until join has put together the packages.
func parse(name string, text []byte) (source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return source{}, fmt.Errorf("parse %s: %w", name, err)
	}
	s := source{
		path:  name,
		lines: bytes.Count(text, []byte("\n")),
		file:  file,
		fset:  fset,
		names: map[string]string{},
		funcs: map[string]bool{},
	}
	for _, spec := range file.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return source{}, fmt.Errorf("parse %s: %w", name, err)
		}
		local := path.Base(importPath)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		s.names[local] = importPath
	}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
			s.funcs[f.Name.Name] = true
		}
	}
	return s, nil
}

// join gives every file the functions of its whole package.
func join(sources []source) {
	byDir := map[string]map[string]bool{}
	for _, s := range sources {
		dir := path.Dir(s.path)
		if byDir[dir] == nil {
			byDir[dir] = map[string]bool{}
		}
		for name := range s.funcs {
			byDir[dir][name] = true
		}
	}
	for i := range sources {
		sources[i].funcs = byDir[path.Dir(sources[i].path)]
	}
}

// module returns the directory that holds go.mod, and the module's path.
func module(t *testing.T) (dir, name string) {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil {
			first, _, _ := strings.Cut(string(text), "\n")
			return dir, strings.TrimSpace(strings.TrimPrefix(first, "module"))
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			t.Fatalf("no go.mod above the test: %v", err)
		}
		dir = filepath.Dir(dir)
	}
}

// walk parses every Go file of the module in dir. Modules of their own beneath
// it, test data and hidden folders are not part of it.
func walk(dir string) ([]source, error) {
	var sources []source
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return enter(dir, file)
		}
		if filepath.Ext(file) != ".go" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(rel), text)
		if err != nil {
			return err
		}
		s.root = dir
		sources = append(sources, s)
		return nil
	})
	join(sources)
	return sources, err
}

// enter says whether walk descends into file: nil or [filepath.SkipDir].
func enter(root, file string) error {
	if file == root {
		return nil
	}
	base := filepath.Base(file)
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

// at names a place in the file as "path:line".
func (s source) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(pos).Line)
}

// test says whether the file is compiled for tests alone.
func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// in says whether the file lies in one of the folders or beneath it.
func (s source) in(folders ...string) bool {
	for _, folder := range folders {
		if strings.HasPrefix(s.path, folder+"/") {
			return true
		}
	}
	return false
}

// selects calls f for every pkg.Name of an imported package in the file, with the
// import path: an alias or a method value does not hide it.
func (s source) selects(f func(importPath, name string, pos token.Pos)) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		id, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		if importPath, ok := s.names[id.Name]; ok {
			f(importPath, sel.Sel.Name, sel.Pos())
		}
		return true
	})
}

// imports returns the paths the file imports with the place of each.
func (s source) imports() map[string]token.Pos {
	all := map[string]token.Pos{}
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			all[p] = spec.Pos()
		}
	}
	return all
}

// under says whether an import path is one of the prefixes or beneath it.
func under(importPath string, prefixes ...string) bool {
	for _, p := range prefixes {
		if importPath == p || strings.HasPrefix(importPath, p+"/") {
			return true
		}
	}
	return false
}
