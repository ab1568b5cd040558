package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func whole(t testing.TB, args ...string) (*server, *mount) {
	t.Helper()
	s := startServer(t)
	return s, start(t, s, startEndpoint(t, s.Credentials), args...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestObjectsAreFiles(t *testing.T) {
	s := startServer(t)
	s.put("top", []byte("content"))
	s.put("a/b/deep", pattern(3<<20))
	m := start(t, s, startEndpoint(t, s.Credentials))
	if got := m.names(""); got != "a top" {
		t.Errorf("got %q", got)
	}
	m.wantContent("top", "content")
	info, err := os.Stat(m.path("a/b/deep"))
	must(t, err)
	stat := info.Sys().(*syscall.Stat_t)
	if info.Size() != 3<<20 || info.Mode() != 0o664 || stat.Uid != owner || stat.Gid != group {
		t.Errorf("got %d bytes, %v, %d:%d", info.Size(), info.Mode(), stat.Uid, stat.Gid)
	}
	onDisk, err := os.Stat(filepath.Join(s.dir, "a/b/deep"))
	must(t, err)
	if !info.ModTime().Equal(onDisk.ModTime().Truncate(1e9)) && !info.ModTime().Equal(onDisk.ModTime().Truncate(1e6)) {
		t.Errorf("got time %v, the server has %v", info.ModTime(), onDisk.ModTime())
	}
	if info, err = os.Stat(m.path("a")); err != nil || info.Mode() != os.ModeDir|0o775 {
		t.Errorf("got %v, %v", info, err)
	}
	f, err := os.Open(m.path("a/b/deep"))
	must(t, err)
	defer f.Close()
	all := pattern(3 << 20)
	for _, off := range []int{2 << 20, 0, 3<<20 - 10, 1<<20 + 7} {
		if err := readAt(f, all[off:min(off+70_000, len(all))], int64(off)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(m.path("missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestAnEmptyBucketIsReadyAndEmpty(t *testing.T) {
	_, m := whole(t)
	if got := m.names(""); got != "" {
		t.Errorf("got %q", got)
	}
	m.write("first", "x")
}

func TestWritesAreObjects(t *testing.T) {
	s, m := whole(t)
	m.write("new", "one")
	if got := string(s.object("new")); got != "one" {
		t.Errorf("got %q", got)
	}
	m.write("new", "shorter? no: longer")
	if got := string(s.object("new")); got != "shorter? no: longer" {
		t.Errorf("overwritten: got %q", got)
	}
	f, err := os.OpenFile(m.path("new"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = io.WriteString(f, ", appended")
	must(t, err)
	must(t, f.Close())
	if got := string(s.object("new")); got != "shorter? no: longer, appended" {
		t.Errorf("appended: got %q", got)
	}
	f, err = os.OpenFile(m.path("new"), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("SHORTER"), 0)
	must(t, err)
	if err := readAt(f, []byte("SHORTER? no"), 0); err != nil {
		t.Error(err)
	}
	must(t, f.Truncate(12))
	must(t, f.Sync())
	if got := string(s.object("new")); got != "SHORTER? no:" {
		t.Errorf("after fsync: got %q", got)
	}
	must(t, f.Close())
	must(t, os.Truncate(m.path("new"), 3))
	if got := string(s.object("new")); got != "SHO" {
		t.Errorf("truncated: got %q", got)
	}
	m.wantContent("new", "SHO")
	m.write("empty", "")
	if got := s.object("empty"); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	big := pattern(20 << 20)
	must(t, os.WriteFile(m.path("big"), big, 0o644))
	if !bytes.Equal(s.object("big"), big) {
		t.Error("20 MiB came out different")
	}
	must(t, os.Remove(m.path("new")))
	if s.has("new") {
		t.Error("it was removed")
	}
	if _, err := os.OpenFile(m.path("big"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); !errors.Is(err, os.ErrExist) {
		t.Errorf("O_EXCL: got %v", err)
	}
}

func TestOpeningToTruncateStoresOnce(t *testing.T) {
	s, m := whole(t)
	m.write("file", "the first content")
	var before, after map[string]int
	s.control("GET", "/stats", &before)
	m.write("file", "the second")
	s.control("GET", "/stats", &after)
	if after["put"] != before["put"]+1 || string(s.object("file")) != "the second" {
		t.Errorf("%d objects were stored, the last is %q", after["put"]-before["put"], s.object("file"))
	}
}

func TestEveryCloseStores(t *testing.T) {
	s, m := whole(t)
	a, err := os.OpenFile(m.path("shared"), os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	b, err := os.OpenFile(m.path("shared"), os.O_RDWR, 0)
	must(t, err)
	reader, err := os.Open(m.path("shared"))
	must(t, err)
	defer reader.Close()
	_, err = a.WriteAt([]byte("from a"), 0)
	must(t, err)
	must(t, a.Close())
	if got := string(s.object("shared")); got != "from a" {
		t.Errorf("while another has it open: got %q", got)
	}
	_, err = b.WriteAt([]byte("b wins"), 0)
	must(t, err)
	if err := readAt(reader, []byte("b wins"), 0); err != nil {
		t.Errorf("a reader of before: %v", err)
	}
	duplicate, err := syscall.Dup(int(b.Fd()))
	must(t, err)
	must(t, syscall.Close(duplicate))
	if got := string(s.object("shared")); got != "b wins" {
		t.Errorf("a duplicate was closed: got %q", got)
	}
	_, err = b.WriteAt([]byte("later!"), 0)
	must(t, err)
	must(t, b.Close())
	if got := string(s.object("shared")); got != "later!" {
		t.Errorf("written after a duplicate was closed: got %q", got)
	}
}

func TestARemovedFileStaysRemoved(t *testing.T) {
	s, m := whole(t)
	f, err := os.OpenFile(m.path("gone"), os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	_, err = io.WriteString(f, "content")
	must(t, err)
	must(t, f.Sync())
	_, err = io.WriteString(f, ", more")
	must(t, err)
	must(t, os.Remove(m.path("gone")))
	_ = f.Close()
	if s.has("gone") {
		t.Error("closing it made it again")
	}
	m.write("gone", "again")
	if got := string(s.object("gone")); got != "again" {
		t.Errorf("made again: got %q", got)
	}
}

func TestFolders(t *testing.T) {
	s, m := whole(t)
	must(t, os.MkdirAll(m.path("one/two"), 0o755))
	if !s.has("one/two") {
		t.Error("a folder that was made is not in the bucket")
	}
	m.write("one/two/file", "content")
	if err := os.Remove(m.path("one/two")); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("rmdir of a full folder: got %v", err)
	}
	must(t, os.Mkdir(m.path("one/hollow"), 0o755))
	must(t, os.RemoveAll(m.path("one/two")))
	must(t, os.Remove(m.path("one/hollow")))
	if got := m.names("one"); got != "" {
		t.Errorf("got %q", got)
	}
	must(t, os.Remove(m.path("one")))
	if s.has("one") {
		t.Error("the folder was removed")
	}
	m.write("file", "x")
	if err := os.Remove(m.path("file") + "/"); err == nil {
		t.Error("rmdir of a file")
	}
}

func TestRenames(t *testing.T) {
	s, m := whole(t)
	m.write("a", "from a")
	m.write("b", "from b")
	must(t, os.Rename(m.path("a"), m.path("b")))
	if got := string(s.object("b")); got != "from a" || s.has("a") {
		t.Errorf("got %q", got)
	}
	m.wantContent("b", "from a")
	if got := m.names(""); got != "b" {
		t.Errorf("got %q", got)
	}
	// As editors save: a new file that replaces the old one while that is open.
	old, err := os.Open(m.path("b"))
	must(t, err)
	defer old.Close()
	f, err := os.CreateTemp(m.path(""), "save-")
	must(t, err)
	_, err = io.WriteString(f, "saved")
	must(t, err)
	must(t, os.Rename(f.Name(), m.path("b")))
	must(t, f.Close())
	if got := string(s.object("b")); got != "saved" {
		t.Errorf("renamed before it was closed: got %q", got)
	}
	m.wantContent("b", "saved")

	must(t, os.MkdirAll(m.path("dir/sub/hollow"), 0o755))
	m.write("dir/sub/file", "deep")
	m.write("dir/top", "top")
	reader, err := os.Open(m.path("dir/top"))
	must(t, err)
	defer reader.Close()
	must(t, os.Rename(m.path("dir"), m.path("moved")))
	if err := readAt(reader, []byte("top"), 0); err != nil {
		t.Errorf("a descriptor of a file that was moved: %v", err)
	}
	if string(s.object("moved/sub/file")) != "deep" || string(s.object("moved/top")) != "top" || !s.has("moved/sub/hollow") || s.has("dir") {
		t.Error("a folder was not moved whole")
	}
	m.wantContent("moved/sub/file", "deep")
	m.write("moved/sub/file", "changed")
	if got := string(s.object("moved/sub/file")); got != "changed" {
		t.Errorf("written after the move: got %q", got)
	}
	must(t, os.Mkdir(m.path("full"), 0o755))
	m.write("full/file", "x")
	if err := os.Rename(m.path("moved"), m.path("full")); !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, os.ErrExist) {
		t.Errorf("onto a full folder: got %v", err)
	}
	if err := os.Rename(m.path("moved"), m.path("b")); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a folder onto a file: got %v", err)
	}
}

func TestWhatABucketCannotDo(t *testing.T) {
	_, m := whole(t)
	m.write("file", "x")
	if err := os.Symlink("file", m.path("link")); !errors.Is(err, syscall.EPERM) {
		t.Errorf("symlink: %v", err)
	}
	if err := os.Link(m.path("file"), m.path("link")); !errors.Is(err, syscall.EPERM) {
		t.Errorf("link: %v", err)
	}
	if err := syscall.Mkfifo(m.path("fifo"), 0o644); !errors.Is(err, syscall.EPERM) {
		t.Errorf("mkfifo: %v", err)
	}
	if err := syscall.Setxattr(m.path("file"), "user.x", []byte("x"), 0); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("setxattr: %v", err)
	}
	if err := os.Chown(m.path("file"), 0, 0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("chown: %v", err)
	}
	must(t, os.Chown(m.path("file"), owner, group))
	must(t, os.Chmod(m.path("file"), 0o600))
	before, err := os.Stat(m.path("file"))
	must(t, err)
	must(t, os.Chtimes(m.path("file"), before.ModTime().Add(-1e12), before.ModTime().Add(-1e12)))
	after, err := os.Stat(m.path("file"))
	must(t, err)
	if after.Mode() != 0o664 || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("got %v %v", after.Mode(), after.ModTime())
	}
	m.wantContent("file", "x")
}

func TestReadOnlyRefusesEveryChange(t *testing.T) {
	s := startServer(t)
	s.put("dir/file", []byte("content"))
	m := start(t, s, startEndpoint(t, s.Credentials), "--read-only")
	m.wantContent("dir/file", "content")
	file, dir := m.path("dir/file"), m.path("dir")
	for what, do := range map[string]func() error{
		"create":   func() error { return os.WriteFile(m.path("new"), nil, 0o644) },
		"write":    func() error { return os.WriteFile(file, []byte("x"), 0o644) },
		"append":   func() error { f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0); f.Close(); return err },
		"truncate": func() error { return os.Truncate(file, 0) },
		"mkdir":    func() error { return os.Mkdir(m.path("new"), 0o755) },
		"rmdir":    func() error { return syscall.Rmdir(dir) },
		"unlink":   func() error { return os.Remove(file) },
		"rename":   func() error { return os.Rename(file, m.path("new")) },
		"renamed":  func() error { return os.Rename(dir, m.path("new")) },
		"chmod":    func() error { return os.Chmod(file, 0o600) },
	} {
		if err := do(); !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if got := string(s.object("dir/file")); got != "content" {
		t.Errorf("got %q", got)
	}
}

func TestPrefixes(t *testing.T) {
	s := startServer(t)
	e := startEndpoint(t, s.Credentials)
	for _, prefix := range []string{"plain", "slash/", "a/b.c/d", "with space", "it's \"quoted\"", "100%41", "naïve/日本", "~tilde+plus&and", "..dots..", "-dash"} {
		t.Run(prefix, func(t *testing.T) {
			key := strings.Trim(prefix, "/")
			s.put(key+"/inside", []byte("in "+prefix))
			s.put(key+"-beside/outside", []byte("x"))
			m := start(t, s, e, "--prefix", prefix)
			m.wantContent("inside", "in "+prefix)
			if got := m.names(""); got != "inside" {
				t.Errorf("got %q", got)
			}
			m.write("made here", "x")
			must(t, os.Mkdir(m.path("é %2F"), 0o755))
			m.write("é %2F/it's", "y")
			if string(s.object(key+"/made here")) != "x" || string(s.object(key+"/é %2F/it's")) != "y" {
				t.Error("it was stored elsewhere")
			}
		})
	}
	// An object that has the prefix's name.
	s.put("twice", []byte("an object"))
	m := start(t, s, e, "--prefix", "twice")
	if got := m.names(""); got != "" {
		t.Errorf("got %q", got)
	}
}
