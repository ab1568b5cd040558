package arch

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strings"
)

const modulePath = "github.com/datalayer/node-mounts"

// rule is one thing the module promises. reason ends every failure message: who
// breaks a rule should learn why it is there before looking for a way round it.
type rule struct {
	name   string
	reason string
	check  func(s source) []string // "path:line: what" each
}

// rules returns all of them.
func rules() []rule {
	return []rule{
		{
			"mounts are made in internal/mnt alone",
			"one package owns the mount table: flags are set before a mount is attached and exactly one mount is taken away per step " +
				"only as long as nobody else calls the kernel (internal/simnode, test/node and test/vm are machines, tests play anybody)",
			mountCalls,
		},
		{
			"Kubernetes is spoken to in internal/kube and the commands alone",
			"the agent's decisions must be testable without a cluster, and an API type in the core would make every test build one",
			kubernetes,
		},
		{
			"Helm is used in internal/install and by the tests of the chart and of the node alone",
			"its library doubles the size of a program; the agent, whose image every node pulls, must not have it",
			helmInstalls,
		},
		{
			"grant and internal/bridge/wire use the standard library alone",
			"other programs import them to write grants or to speak the protocol; they must not inherit our dependencies",
			standardLibraryOnly,
		},
		{
			"plan and grant are pure",
			"they decide from what they are given; a decision that reads the clock, the disk or the network cannot be replayed",
			pure,
		},
		{
			"internal/agent knows no Kubernetes client",
			"it reconciles against interfaces; internal/kube implements them",
			agentWithoutClient,
		},
		{
			"package names are nouns of the domain",
			"a package called util has no subject, so everything ends up in it",
			packageNames,
		},
		{
			"files stay under 500 lines and main.go under 100",
			"a reader should hold one file in the head; main only wires",
			fileLength,
		},
		{
			"functions stay under 70 lines",
			"a longer one does more than one thing",
			functionLength,
		},
		{
			"there is no init function",
			"registration is explicit: importing a package must do nothing",
			noInit,
		},
		{
			"tests do not sleep",
			"a sleep is either too short on a loaded machine or too long on every other; wait for the event",
			noSleep,
		},
		{
			"no package-level variable holds a function",
			"swapping it in a test changes it for every other test and goroutine; pass the function in",
			noFuncVars,
		},
		{
			"plan.Mount and beneath.Dir keep their fields to themselves",
			"only their own packages can make one then, so a path that was never validated cannot reach a mount call",
			opaqueTypes,
		},
	}
}

var mountNames = regexp.MustCompile(`\A(Mount|Unmount|OpenTree|OpenTreeAttr|MoveMount|MountSetattr|Fsopen|Fspick|Fsconfig.*|Fsmount|` +
	`SYS_(MOUNT|UMOUNT|UMOUNT2|OPEN_TREE|OPEN_TREE_ATTR|MOVE_MOUNT|MOUNT_SETATTR|FSOPEN|FSPICK|FSCONFIG|FSMOUNT))\z`)

func mountCalls(s source) []string {
	if s.test() || s.in("internal/mnt", "internal/simnode", "test/node", "test/vm") {
		return nil
	}
	var found []string
	s.selects(func(importPath, name string, pos token.Pos) {
		if (importPath == "golang.org/x/sys/unix" || importPath == "syscall") && mountNames.MatchString(name) {
			found = append(found, fmt.Sprintf("%s: %s.%s", s.at(pos), path.Base(importPath), name))
		}
	})
	found = append(found, mountCommands(s)...)
	for p, pos := range s.imports() {
		if s.names["."] == p && (p == "golang.org/x/sys/unix" || p == "syscall") {
			found = append(found, fmt.Sprintf("%s: a dot import of %s hides its calls", s.at(pos), p))
		}
	}
	return found
}

// mountCommands finds exec.Command("mount", …): the same system calls by way of a
// program that sets the flags afterwards.
func mountCommands(s source) []string {
	var found []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !strings.HasPrefix(sel.Sel.Name, "Command") {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); !ok || s.names[id.Name] != "os/exec" {
			return true
		}
		for _, arg := range call.Args {
			lit, ok := arg.(*ast.BasicLit)
			if ok && slices.Contains([]string{"mount", "umount"}, path.Base(strings.Trim(lit.Value, "\"`"))) {
				found = append(found, fmt.Sprintf("%s: runs %s", s.at(call.Pos()), lit.Value))
			}
		}
		return true
	})
	return found
}

func kubernetes(s source) []string {
	if s.in("internal/kube", "internal/fleet", "internal/install", "operator", "internal/verify", "internal/demo", "internal/cli", "test/chart", "test/system", "test/bench", "test/node", "test/e2e", "cmd") {
		return nil
	}
	return importsOf(s, func(p string) bool {
		return under(p, "k8s.io/client-go", "k8s.io/api", "k8s.io/apimachinery")
	})
}

// helmInstalls keeps Helm, and what brings it along, out of everything but the
// command line.
func helmInstalls(s source) []string {
	if s.in("internal/install", "test/chart", "test/e2e", "charts") {
		return nil
	}
	return importsOf(s, func(p string) bool {
		brings := under(p, modulePath+"/internal/install") && !s.in("internal/cli")
		return brings || under(p, "helm.sh/helm")
	})
}

func agentWithoutClient(s source) []string {
	if !s.in("internal/agent") {
		return nil
	}
	return importsOf(s, func(p string) bool {
		return under(p, "k8s.io/client-go", modulePath+"/internal/kube")
	})
}

func standardLibraryOnly(s source) []string {
	if !s.in("grant", "internal/bridge/wire") {
		return nil
	}
	return importsOf(s, func(p string) bool {
		first, _, _ := strings.Cut(p, "/")
		// A package's outside tests and examples import the package itself.
		own := s.test() && p == modulePath+"/"+path.Dir(s.path)
		return strings.Contains(first, ".") && !own
	})
}

func pure(s source) []string {
	if s.test() || !s.in("grant", "internal/plan") {
		return nil
	}
	found := importsOf(s, func(p string) bool {
		// Addresses and URLs are values; everything else of net is I/O.
		if p == "net/netip" || p == "net/url" {
			return false
		}
		return under(p, "os", "syscall", "net", "golang.org/x/sys")
	})
	s.selects(func(importPath, name string, pos token.Pos) {
		clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
		if importPath == "time" && slices.Contains(clock, name) {
			found = append(found, fmt.Sprintf("%s: time.%s", s.at(pos), name))
		}
	})
	return found
}

// importsOf lists the imports that bad says should not be there.
func importsOf(s source, bad func(importPath string) bool) []string {
	var found []string
	for p, pos := range s.imports() {
		if bad(p) {
			found = append(found, fmt.Sprintf("%s: imports %s", s.at(pos), p))
		}
	}
	slices.Sort(found)
	return found
}

func packageNames(s source) []string {
	bad := []string{"util", "utils", "common", "pkg", "helper", "helpers", "misc", "shared"}
	name := strings.TrimSuffix(s.file.Name.Name, "_test")
	if slices.Contains(bad, name) {
		return []string{fmt.Sprintf("%s: package %s", s.at(s.file.Name.Pos()), name)}
	}
	for _, folder := range strings.Split(path.Dir(s.path), "/") {
		if slices.Contains(bad, folder) {
			return []string{fmt.Sprintf("%s: in a folder called %s", s.at(s.file.Name.Pos()), folder)}
		}
	}
	return nil
}

func fileLength(s source) []string {
	limit := 500
	switch {
	case s.test():
		return nil
	case path.Base(s.path) == "main.go":
		limit = 100
	}
	if s.lines >= limit {
		return []string{fmt.Sprintf("%s:1: %d lines, must be under %d", s.path, s.lines, limit)}
	}
	return nil
}

func functionLength(s source) []string {
	if s.test() {
		return nil
	}
	var found []string
	for _, decl := range s.file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
		if lines >= 70 {
			found = append(found, fmt.Sprintf("%s: %s has %d lines", s.at(f.Pos()), f.Name.Name, lines))
		}
	}
	return found
}

func noInit(s source) []string {
	var found []string
	for _, decl := range s.file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			found = append(found, s.at(f.Pos())+": func init")
		}
	}
	return found
}

func noSleep(s source) []string {
	if !s.test() {
		return nil
	}
	var found []string
	s.selects(func(importPath, name string, pos token.Pos) {
		if importPath == "time" && name == "Sleep" {
			found = append(found, s.at(pos)+": time.Sleep")
		}
	})
	return found
}

func noFuncVars(s source) []string {
	var found []string
	for _, decl := range s.file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.VAR {
			continue
		}
		for _, spec := range d.Specs {
			v := spec.(*ast.ValueSpec)
			_, typed := v.Type.(*ast.FuncType)
			if typed || slices.ContainsFunc(v.Values, s.function) {
				found = append(found, fmt.Sprintf("%s: var %s", s.at(v.Pos()), v.Names[0].Name))
			}
		}
	}
	return found
}

// function says whether an expression is a function value: a literal, a function
// of this package, or one of an imported package.
func (s source) function(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.FuncLit:
		return true
	case *ast.ParenExpr:
		return s.function(e.X)
	case *ast.Ident:
		return s.funcs[e.Name]
	case *ast.SelectorExpr:
		id, ok := e.X.(*ast.Ident)
		if !ok || s.names[id.Name] == "" {
			return false
		}
		// `var errEnd = io.EOF` is fine and `var now = time.Now` is not: only the
		// package's types tell. Such lines are rare enough to pay for reading it.
		from := importer.ForCompiler(token.NewFileSet(), "source", nil).(types.ImporterFrom)
		pkg, err := from.ImportFrom(s.names[id.Name], s.root, 0)
		if err != nil {
			return true // unknown is not proven harmless
		}
		_, ok = pkg.Scope().Lookup(e.Sel.Name).(*types.Func)
		return ok
	}
	return false
}

func opaqueTypes(s source) []string {
	opaque := map[string]string{"internal/plan": "Mount", "internal/beneath": "Dir"}
	var found []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		t, ok := n.(*ast.TypeSpec)
		if !ok || t.Name.Name != opaque[path.Dir(s.path)] {
			return true
		}
		fields, ok := t.Type.(*ast.StructType)
		if !ok {
			found = append(found, fmt.Sprintf("%s: %s is no struct", s.at(t.Pos()), t.Name.Name))
			return false
		}
		for _, f := range fields.Fields.List {
			if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
				found = append(found, fmt.Sprintf("%s: %s has an exported or embedded field", s.at(f.Pos()), t.Name.Name))
			}
		}
		return false
	})
	return found
}
