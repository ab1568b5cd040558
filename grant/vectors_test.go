package grant

import (
	"encoding/json"
	"os"
	"testing"
)

// vectorFile has cases made by an independent program; the entries are as an
// annotation would hold them.
type vectorFile struct {
	Cases []struct {
		Name       string
		Grants     json.RawMessage
		Hash       string
		Annotation string
	}
	Refused []struct {
		Name  string
		Grant json.RawMessage
		Code  Code
	}
}

func readVectors(t *testing.T, path string) vectorFile {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file vectorFile
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if len(file.Cases) == 0 || len(file.Refused) == 0 {
		t.Fatalf("%s: no cases or no refusals", path)
	}
	return file
}

func TestEveryVectorIsReproduced(t *testing.T) {
	paths := []string{"testdata/grants.json"}
	if more := os.Getenv("NODE_MOUNTS_VECTORS"); more != "" {
		paths = append(paths, more)
	}
	for _, path := range paths {
		file := readVectors(t, path)
		for _, c := range file.Cases {
			t.Run(c.Name, func(t *testing.T) { checkCase(t, string(c.Grants), c.Hash, c.Annotation) })
		}
		for _, c := range file.Refused {
			t.Run("refused: "+c.Name, func(t *testing.T) {
				set := Decode("[" + string(c.Grant) + "]")
				if len(set.Mounts) != 0 || set.Whole != nil || len(set.Refused) != 1 {
					t.Fatalf("got %+v, want one refusal", set)
				}
				if got := set.Refused[0].Code; got != c.Code {
					t.Fatalf("code %s, want %s (%s)", got, c.Code, set.Refused[0].Message)
				}
			})
		}
	}
}

func checkCase(t *testing.T, grants, hash, annotation string) {
	t.Helper()
	set := Decode(grants)
	if set.Whole != nil || len(set.Refused) > 0 {
		t.Fatalf("refused: %+v %+v", set.Whole, set.Refused)
	}
	if got := Hash(set.Mounts); got != hash || set.Hash != hash {
		t.Errorf("hash %s, answered as %s, want %s", got, set.Hash, hash)
	}
	got, err := Encode(set.Mounts)
	if err != nil {
		t.Fatal(err)
	}
	if got != annotation {
		t.Errorf("annotation\n got %s\nwant %s", got, annotation)
	}
	again := Decode(annotation)
	if again.Whole != nil || len(again.Refused) > 0 || again.Hash != hash {
		t.Errorf("the annotation is read as %+v", again)
	}
	sameMounts(t, again.Mounts, set.Mounts)
	if got, err := Encode(again.Mounts); err != nil || got != annotation {
		t.Errorf("written again as %s, %v", got, err)
	}
}

func sameMounts(t *testing.T, got, want []Mount) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d mounts, want %d:\n got %+v\nwant %+v", len(got), len(want), got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("mount %d\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}
}
