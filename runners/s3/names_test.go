package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// oddNames are what a key may hold and what libraries like to write differently: most
// of them are what rclone writes for another one of them.
var oddNames = []string{
	"a\nb", "a␊b", "a‛␊b", "tab\there", "tab␉here", "␁", "del\x7f", "del␡", "‛", "‛‛", "q‛q", "␀", "‛␀", "a␀b",
	"．", "．．", "‛．", "full／width", "ＡＢ：", "q？", "back\\slash", "back＼slash", " lead", "trail ", "dot.", "+%20?&#", "e\u0301", "é", "\u202e", "😀", "\uff5e", "~",
}

func (s *server) keys() []string {
	s.t.Helper()
	var keys []string
	err := filepath.WalkDir(s.dir, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			keys = append(keys, strings.TrimPrefix(name, s.dir+"/"))
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

func (s *server) wantKeys(what string, want []string) {
	s.t.Helper()
	slices.Sort(want)
	if got := s.keys(); !slices.Equal(got, want) {
		s.t.Errorf("%s: the server has the keys\n%q, want\n%q", what, got, want)
	}
}

func TestNamesAreKeys(t *testing.T) {
	s := startServer(t)
	for _, name := range oddNames {
		s.put("there/"+name, []byte("is "+name))
		s.put("folders/"+name+"/inside", []byte("in "+name))
	}
	m := start(t, s, startEndpoint(t, s.Credentials))
	want := slices.Clone(oddNames)
	slices.Sort(want)
	for _, dir := range []string{"there", "folders"} {
		entries, err := os.ReadDir(m.path(dir))
		must(t, err)
		var got []string
		for _, entry := range entries {
			got = append(got, entry.Name())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", dir, got, want)
		}
	}
	must(t, os.Mkdir(m.path("made"), 0o755))
	var keys []string
	for _, name := range oddNames {
		m.wantContent("there/"+name, "is "+name)
		m.wantContent("folders/"+name+"/inside", "in "+name)
		must(t, os.Remove(m.path("there/"+name)))
		must(t, os.RemoveAll(m.path("folders/"+name)))
		must(t, os.Mkdir(m.path("made/"+name), 0o755))
		m.write("made/"+name+"/"+name, "made "+name)
		keys = append(keys, "made/"+name+"/"+name)
	}
	s.wantKeys("made", keys)
	keys = nil
	for i, name := range oddNames {
		next := oddNames[(i+1)%len(oddNames)]
		m.wantContent("made/"+name+"/"+name, "made "+name)
		must(t, os.Mkdir(m.path("made/"+name+"/hollow"+name), 0o755))
		must(t, os.Rename(m.path("made/"+name), m.path("moved"+name)))
		must(t, os.Rename(m.path("moved"+name+"/"+name), m.path("moved"+name+"/"+next)))
		if !s.has("moved" + name + "/hollow" + name) {
			t.Errorf("%q: an empty folder was moved elsewhere", name)
		}
		must(t, os.Remove(m.path("moved"+name+"/hollow"+name)))
		m.wantContent("moved"+name+"/"+next, "made "+name)
		keys = append(keys, "moved"+name+"/"+next)
	}
	s.wantKeys("moved", keys)
	for _, name := range oddNames {
		must(t, os.RemoveAll(m.path("moved"+name)))
	}
	must(t, os.Remove(m.path("made")))
	s.wantKeys("removed", nil)
	if s.has("made") || s.has("moved") {
		t.Error("folders are left")
	}
}

// Names that differ for the store are two files in the cache too.
func TestNamesThatLookAlikeAreOpenAtOnce(t *testing.T) {
	s, m := whole(t)
	files := map[string]*os.File{}
	for _, name := range oddNames {
		f, err := os.Create(m.path(name))
		must(t, err)
		files[name] = f
	}
	for name, f := range files {
		_, err := f.WriteString("in " + name)
		must(t, err)
	}
	for name, f := range files {
		must(t, f.Close())
		if got := string(s.object(name)); got != "in "+name {
			t.Errorf("%q: got %q", name, got)
		}
	}
}

func TestOddPrefixes(t *testing.T) {
	s := startServer(t)
	e := startEndpoint(t, s.Credentials)
	for _, name := range oddNames {
		t.Run(name, func(t *testing.T) {
			for _, prefix := range []string{name, "in/" + name + "/" + name} {
				s.put(prefix+"/inside", []byte("in "+name))
				m := start(t, s, e, "--prefix", prefix)
				m.wantContent("inside", "in "+name)
				m.write("new", "x")
				must(t, os.Mkdir(m.path("folder"), 0o755))
				if string(s.object(prefix+"/new")) != "x" || !s.has(prefix+"/folder") {
					t.Errorf("%q: it was stored elsewhere", prefix)
				}
			}
		})
	}
}

func TestWhatNoKeyCanBeIsRefused(t *testing.T) {
	s := startServer(t)
	s.put("inv\xff", []byte("x"))
	s.put("unlisted\x01", []byte("x")) // the server does not encode keys
	s.put(strings.Repeat("l", 255), []byte("long"))
	e := startEndpoint(t, s.Credentials)
	m := start(t, s, e)
	for name, want := range map[string]syscall.Errno{"new\xff": syscall.EILSEQ, "new\x01": syscall.EILSEQ, strings.Repeat("x", 256): syscall.ENAMETOOLONG} {
		m.write("file", "x")
		for what, do := range map[string]func() error{
			"create": func() error { return os.WriteFile(m.path(name), nil, 0o644) },
			"mkdir":  func() error { return os.Mkdir(m.path(name), 0o755) },
			"rename": func() error { return os.Rename(m.path("file"), m.path(name)) },
		} {
			if err := do(); !errors.Is(err, want) {
				t.Errorf("%s %.10q: got %v, want %v", what, name, err, want)
			}
		}
	}
	m.wantContent(strings.Repeat("l", 255), "long")
	if entries, err := os.ReadDir(m.dir); err != nil || len(entries) != 2 {
		t.Errorf("got %v, %v", entries, err)
	}
	for _, prefix := range []string{"\xff\xfe", "a/../b", "..", "./a", "a//b", "x\x01", strings.Repeat("x/", 512) + "y"} {
		m := launch(t, s, e, "--prefix", prefix)
		if status := m.wait(20e9); status != exitBucketWrong || !strings.HasPrefix(m.stderr.String(), "error: the prefix ") {
			t.Errorf("%.20q: exit status %d, %s", prefix, status, m.stderr)
		}
	}
}

// A server that encodes keys, as AWS does, can list what XML cannot hold.
func TestKeysThatXMLCannotHold(t *testing.T) {
	const prefix = "p\x01"
	names := []string{"ctl\x02 and+plus%41", "plain", "\x7f", "\ufffd"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("list-type") != "2" || query.Get("encoding-type") != "url" || query.Get("prefix") != prefix+"/" {
			w.WriteHeader(http.StatusNotImplemented)
			return
		}
		fmt.Fprint(w, `<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>`)
		for _, name := range append([]string{"", ".", strings.Repeat("x", 256)}, names...) {
			fmt.Fprintf(w, `<Contents><Key>%s</Key><Size>1</Size><LastModified>2026-01-31T09:30:00Z</LastModified></Contents>`, url.QueryEscape(prefix+"/"+name))
		}
		fmt.Fprint(w, `</ListBucketResult>`)
	}))
	t.Cleanup(server.Close)
	s := startServer(t)
	s.Endpoint = server.URL
	m := start(t, s, startEndpoint(t, s.Credentials), "--prefix", prefix)
	entries, err := os.ReadDir(m.dir)
	must(t, err)
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("got %q, want %q", got, names)
	}
}
