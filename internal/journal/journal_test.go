package journal_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
)

const uid = "5f0c3f1e-2d6a-4c55-9e0e-6a0f6c1d7b42"

func record() journal.Pod {
	rec := &mnt.Record{Dev: mnt.Dev{Major: 0, Minor: 51}, Root: "/home/\nu \\040", Flags: mnt.NoSUID, Inode: 7, ID: 1 << 40}
	return journal.Pod{
		Version: journal.Version, BootID: "b", UID: uid, Namespace: "ns", Name: "p",
		Tree: &journal.Base{Record: rec}, Publication: &journal.Base{},
		Mounts: []journal.Entry{
			{Target: "a", Identity: plan.Identity{Kind: grant.KindFiles, Source: "s", Mode: grant.ReadWrite}, State: journal.Mounted, Record: rec},
			{Target: "b", State: journal.Granting},
		},
		Held: []journal.Held{{Target: "c", Record: *rec, IDs: map[uint64][]int{4026531841: {5, 6}}, Why: "w"}},
	}
}

func open(t *testing.T) (*journal.Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "journal")
	s, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, dir
}

// records are the names in the journal but for the lock's.
func records(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestARecordComesBackAsItWasSaved(t *testing.T) {
	s, dir := open(t)
	want := record()
	if err := s.Save(&want); err != nil {
		t.Fatal(err)
	}
	pods, err := s.Load()
	if err != nil || len(pods) != 1 || !reflect.DeepEqual(pods[0], want) {
		t.Fatalf("%+v, %v\nwant %+v", pods, err, want)
	}
	info, err := os.Stat(filepath.Join(dir, uid+".json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: records name folders and are for the agent alone", info.Mode(), err)
	}
	for range 2 { // removing twice is no error
		if err := s.Remove(uid); err != nil {
			t.Fatal(err)
		}
	}
	if pods, err := s.Load(); err != nil || len(pods) != 0 {
		t.Errorf("after Remove: %v, %v", pods, err)
	}
}

func TestAWriteThatWasCutOffLeavesTheOldRecord(t *testing.T) {
	s, dir := open(t)
	want := record()
	if err := s.Save(&want); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".new-"+uid), []byte(`{"version":1,"ui`), 0o600); err != nil {
		t.Fatal(err)
	}
	pods, err := s.Load()
	if err != nil || len(pods) != 1 || !reflect.DeepEqual(pods[0], want) {
		t.Fatalf("%+v, %v", pods, err)
	}
	if names := records(t, dir); len(names) != 1 {
		t.Errorf("the half record is still there: %v", names)
	}
}

func TestARecordThatCannotBeReadIsSetAsideAndCostsNoOther(t *testing.T) {
	other := strings.ReplaceAll(uid, "5", "6")
	for name, text := range map[string]string{
		"not JSON":      "{",
		"empty":         "",
		"newer version": `{"version":2,"uid":"` + other + `"}`,
		"another Pod's": `{"version":1,"uid":"` + uid + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := open(t)
			want := record()
			if err := s.Save(&want); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, other+".json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			pods, err := s.Load()
			if err == nil || !strings.Contains(err.Error(), other) {
				t.Errorf("the error does not name the record: %v", err)
			}
			if len(pods) != 1 || pods[0].UID != uid {
				t.Errorf("the good record: %+v", pods)
			}
			if b, err := os.ReadFile(filepath.Join(dir, other+".json.unreadable")); err != nil || string(b) != text {
				t.Errorf("set aside: %q, %v", b, err)
			}
			if _, err := s.Load(); err != nil {
				t.Errorf("it is reported again: %v", err)
			}
		})
	}
}

func TestOnlyAUIDCanNameARecord(t *testing.T) {
	s, dir := open(t)
	for _, bad := range []string{"", ".", "..", "a/b", "../a", ".new-x", "-rf", "a\x00b", strings.Repeat("a", 129)} {
		if journal.ValidUID(bad) {
			t.Errorf("%q is valid", bad)
		}
		if err := s.Save(&journal.Pod{UID: bad}); err == nil {
			t.Errorf("%q was saved", bad)
		}
		if err := s.Remove(bad); err == nil {
			t.Errorf("%q was removed", bad)
		}
	}
	for _, good := range []string{uid, "0123456789abcdef0123456789abcdef"} {
		if !journal.ValidUID(good) {
			t.Errorf("%q is not valid", good)
		}
	}
	if names := records(t, dir); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}

func TestAFullDiskKeepsTheOldRecord(t *testing.T) {
	s, dir := open(t)
	want := record()
	if err := s.Save(&want); err != nil {
		t.Fatal(err)
	}
	// A directory in the temporary file's place makes the write fail for root too.
	if err := os.Mkdir(filepath.Join(dir, ".new-"+uid), 0o700); err != nil {
		t.Fatal(err)
	}
	changed := want
	changed.Name = "other"
	if err := s.Save(&changed); err == nil {
		t.Fatal("no error")
	}
	if pods, err := s.Load(); err != nil || len(pods) != 1 || pods[0].Name != want.Name {
		t.Errorf("%+v, %v", pods, err)
	}
}

func TestReadingChangesNothing(t *testing.T) {
	s, dir := open(t)
	want := record()
	if err := s.Save(&want); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"b.json": `{"version":99,"uid":"b"}`, ".new-c": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := records(t, dir)
	pods, err := s.Read()
	if err == nil || len(pods) != 1 || !reflect.DeepEqual(pods[0], want) {
		t.Errorf("%+v, %v", pods, err)
	}
	if after := records(t, dir); !reflect.DeepEqual(before, after) {
		t.Errorf("there is %v, before %v", after, before)
	}
}

func TestATrialLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	s, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before, _ := os.ReadDir(dir)
	if err := s.Try(); err != nil {
		t.Error(err)
	}
	if after, _ := os.ReadDir(dir); len(after) != len(before) {
		t.Errorf("there are %v, before %v", after, before)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Try(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
}
