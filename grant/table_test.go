package grant

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// declared returns the values of all constants of a type in this package's file,
// so that a constant added without a row in its table is noticed.
func declared(t *testing.T, file, typeName string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == typeName {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
		return true
	})
	return values
}

func TestEveryCodeHasOneRowThatExplainsIt(t *testing.T) {
	constants := declared(t, "code.go", "Code")
	shape := regexp.MustCompile(`\ANODE_MOUNT_GATEWAY_[A-Z]+(_[A-Z]+)*\z`)
	table := Codes()
	if len(constants) != 12 || len(table) != len(constants) {
		t.Fatalf("%d constants, %d rows, want 12 of both", len(constants), len(table))
	}
	for i, row := range table {
		if string(row.Code) != constants[i] || !shape.MatchString(constants[i]) {
			t.Errorf("row %d is %q, the constant there is %q", i, row.Code, constants[i])
		}
		for _, sentence := range []string{row.Meaning, row.Remedy} {
			if !strings.HasSuffix(sentence, ".") || strings.Contains(sentence, ". ") {
				t.Errorf("%s: %q is not one sentence", row.Code, sentence)
			}
		}
	}
}

// A writer that waits through a code that is final waits in vain, and one that does
// not wait through one that passes takes "not yet" for "no".
func TestOnlyWhatTakesItsTimePasses(t *testing.T) {
	for _, row := range Codes() {
		if want := row.Code == CodeNotReady; row.Passes != want || row.Code.Passes() != want {
			t.Errorf("%s: the table says that it passes: %v, the code %v, want %v", row.Code, row.Passes, row.Code.Passes(), want)
		}
	}
	for _, unknown := range []Code{"", "NODE_MOUNT_GATEWAY_LATER", "not_ready"} {
		if unknown.Passes() {
			t.Errorf("%q passes, and nobody knows what it is", unknown)
		}
	}
}

func TestEveryKindHasOneRowThatDescribesIt(t *testing.T) {
	constants := declared(t, "kind.go", "Kind")
	deliveries := map[Delivery]bool{}
	for _, d := range []Delivery{DeliveryBind, DeliveryFilesystem, DeliveryProcess, DeliveryMaterialize} {
		deliveries[d] = true
	}
	table := Kinds()
	if len(constants) != 7 || len(table) != len(constants) {
		t.Fatalf("%d constants, %d rows, want 7 of both", len(constants), len(table))
	}
	for i, row := range table {
		if string(row.Kind) != constants[i] {
			t.Errorf("row %d is %q, the constant there is %q", i, row.Kind, constants[i])
		}
		if !deliveries[row.Delivery] || row.Summary == "" || row.SourceForm == "" || row.source == nil {
			t.Errorf("%q: incomplete row %+v", row.Kind, row)
		}
		if row.Creates != (row.Kind == KindFiles) || row.ReadOnly != (row.Kind == KindGit) {
			t.Errorf("%q: only home folders are created, only repositories are always read-only", row.Kind)
		}
		if (row.Switch == "") != (row.Delivery == DeliveryBind) {
			t.Errorf("%q: binds are always on, all else has a switch; got %q", row.Kind, row.Switch)
		}
		if row.Unserved && row.Delivery != DeliveryProcess {
			t.Errorf("%q: the code for a kind that no release serves yet is that of processes", row.Kind)
		}
		if info, ok := row.Kind.Info(); !ok || info.Kind != row.Kind {
			t.Errorf("%q is not found by Info", row.Kind)
		}
	}
	if _, ok := Kind("smb").Info(); ok {
		t.Error("Info knows a kind that the table does not have")
	}
}

func TestTheTablesBelongToTheCaller(t *testing.T) {
	Codes()[0].Meaning = "changed"
	Kinds()[0].Summary = "changed"
	if Codes()[0].Meaning == "changed" || Kinds()[0].Summary == "changed" {
		t.Error("a caller changed the table for everyone")
	}
}

func TestNamesFollowThePrefix(t *testing.T) {
	want := Names{
		Mounts: "runtime-pools.datalayer.io/node-mount-gateway-mounts",
		Ready:  "runtime-pools.datalayer.io/node-mount-gateway-ready",
		Label:  "runtime-pools.datalayer.io/node-mount-gateway",
	}
	if got := NamesFor(""); got != want {
		t.Errorf("default names: %+v", got)
	}
	if got := NamesFor(DefaultPrefix); got != want {
		t.Errorf("names of the default prefix: %+v", got)
	}
	if got := NamesFor("example.org/").Ready; got != "example.org/node-mount-gateway-ready" {
		t.Errorf("names of another prefix: %s", got)
	}
}
