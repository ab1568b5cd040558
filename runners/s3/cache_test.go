package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const smallCache = 1 << 20

// limited is a mount with a cache of 1 MiB.
func limited(t *testing.T, s *server) (m *mount, dir string) {
	t.Helper()
	dir = cacheDir(t)
	return start(t, s, startEndpoint(t, s.Credentials), "--cache-dir", dir, "--cache-size", fmt.Sprint(smallCache)), dir
}

// diskUse is what a folder takes, as du says it.
func diskUse(t *testing.T, dir string) (size int64, folders int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		var is unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &is)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil // it went meanwhile
		}
		size += is.Blocks * 512
		if err == nil && entry.IsDir() {
			folders++
		}
		return err
	})
	must(t, err)
	return size, folders
}

func wantBound(t *testing.T, what, dir string) {
	t.Helper()
	if size, _ := diskUse(t, dir); size > smallCache {
		t.Fatalf("%s: the cache takes %d bytes of %d", what, size, smallCache)
	}
}

// fill writes until it cannot.
func fill(t *testing.T, f *os.File, dir string) error {
	t.Helper()
	part := pattern(64 << 10)
	for range 100 {
		if _, err := f.Write(part); err != nil {
			return err
		}
		wantBound(t, "while a file grows", dir)
	}
	return nil
}

func TestAnOpenFileIsWithinTheCacheSize(t *testing.T) {
	s := startServer(t)
	s.put("old", []byte("the old content"))
	m, dir := limited(t, s)
	for _, name := range []string{"new", "old"} {
		f, err := os.OpenFile(m.path(name), os.O_CREATE|os.O_WRONLY, 0o644)
		must(t, err)
		if err := fill(t, f, dir); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s: writing: got %v", name, err)
		}
		if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: writing on: got %v", name, err)
		}
		if err := f.Sync(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: fsync: got %v", name, err)
		}
		if err := f.Close(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: close: got %v", name, err)
		}
	}
	if s.has("new") {
		t.Error("half a file was stored")
	}
	if _, err := os.Open(m.path("new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was not stored: got %v", err)
	}
	if got := string(s.object("old")); got != "the old content" {
		t.Errorf("the old object is now %.40q", got)
	}
	m.wantContent("old", "the old content")
	// Both can be written again.
	m.write("new", "a new one")
	m.write("old", "replaced")
	m.wantContent("old", "replaced")
	if string(s.object("new")) != "a new one" || string(s.object("old")) != "replaced" {
		t.Error("they were not stored again")
	}
	// A file whose content is emptied misses nothing any more.
	f, err := os.Create(m.path("emptied"))
	must(t, err)
	if err := fill(t, f, dir); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("writing: got %v", err)
	}
	must(t, f.Truncate(0))
	_, err = f.WriteAt([]byte("short"), 0)
	must(t, err)
	must(t, f.Close())
	if got := string(s.object("emptied")); got != "short" {
		t.Errorf("got %q", got)
	}
	if err := os.Truncate(m.path("old"), smallCache*2); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("truncate: got %v", err)
	}
	m.wantContent("old", "replaced")
}

func TestClosedFilesMakeRoom(t *testing.T) {
	s := startServer(t)
	m, dir := limited(t, s)
	content := pattern(300 << 10)
	for i := range 12 {
		name := fmt.Sprint("file", i)
		must(t, os.WriteFile(m.path(name), content, 0o644))
		wantBound(t, name, dir)
	}
	for i := range 12 {
		name := fmt.Sprint("file", i)
		f, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("changed"), 1000)
		must(t, err)
		must(t, f.Close())
		wantBound(t, name, dir)
		want := bytes.Clone(content)
		copy(want[1000:], "changed")
		got, err := os.ReadFile(m.path(name))
		if err != nil || !bytes.Equal(got, want) || !bytes.Equal(s.object(name), want) {
			t.Errorf("%s is not what was written: %v", name, err)
		}
	}
	// What is open stays.
	held, err := os.Create(m.path("held"))
	must(t, err)
	_, err = held.Write(content)
	must(t, err)
	second, err := os.Create(m.path("second"))
	must(t, err)
	_, err = second.Write(content)
	must(t, err)
	if err := os.WriteFile(m.path("third"), append(content, content...), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a third: got %v", err)
	}
	wantBound(t, "three files", dir)
	must(t, held.Close())
	must(t, second.Close())
	must(t, os.WriteFile(m.path("third"), append(content, content...), 0o644))
	wantBound(t, "after they were closed", dir)
	for _, name := range []string{"held", "second"} {
		if !bytes.Equal(s.object(name), content) {
			t.Errorf("%s is not what was written", name)
		}
	}
	if len(s.object("third")) != 2*len(content) {
		t.Error("the third is not what was written")
	}
}

func TestFoldersAndRemovedFilesLeaveNothingInTheCache(t *testing.T) {
	s := startServer(t)
	m, dir := limited(t, s)
	for i := range 100 {
		folder := m.path(fmt.Sprint("a/b", i, "/c/d"))
		must(t, os.MkdirAll(folder, 0o755))
		f, err := os.Create(filepath.Join(folder, "file"))
		must(t, err)
		_, err = f.WriteString("content")
		must(t, err)
		if i%2 == 0 {
			must(t, os.Remove(f.Name()))
		} else if i%3 == 0 {
			must(t, os.Rename(m.path(fmt.Sprint("a/b", i)), m.path(fmt.Sprint("a/moved", i))))
		}
		must(t, f.Close())
		wantBound(t, f.Name(), dir)
	}
	must(t, os.RemoveAll(m.path("a")))
	must(t, os.WriteFile(m.path("last"), pattern(900<<10), 0o644))
	if _, folders := diskUse(t, dir); folders > 8 {
		t.Errorf("everything was removed, and the cache has %d folders", folders)
	}
}

func TestObjectsThatAreLargerThanTheCache(t *testing.T) {
	s := startServer(t)
	content := pattern(3 << 20)
	s.put("large", content)
	m, dir := limited(t, s)
	f, err := os.OpenFile(m.path("large"), os.O_RDWR, 0)
	must(t, err)
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("changing it: got %v", err)
	}
	if err := f.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("close: got %v", err)
	}
	got, err := os.ReadFile(m.path("large"))
	if err != nil || !bytes.Equal(got, content) || !bytes.Equal(s.object("large"), content) {
		t.Errorf("it is not what it was: %v", err)
	}
	wantBound(t, "after it was read", dir)
	m.write("large", "small now")
	if got := string(s.object("large")); got != "small now" {
		t.Errorf("got %.40q", got)
	}
}

func TestAFullDiskStoresNothingHalf(t *testing.T) {
	s := startServer(t)
	content := pattern(3 << 20)
	s.put("large", content)
	s.put("old", []byte("the old content"))
	dir := cacheDir(t)
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0777"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	m := start(t, s, startEndpoint(t, s.Credentials), "--cache-dir", dir)
	for range 3 {
		for _, name := range []string{"new", "old"} {
			if err := os.WriteFile(m.path(name), content, 0o644); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		f, err := os.OpenFile(m.path("large"), os.O_RDWR, 0)
		must(t, err)
		_, written := f.WriteAt([]byte("x"), 0)
		if closed := f.Close(); !errors.Is(written, syscall.ENOSPC) || !errors.Is(closed, syscall.ENOSPC) {
			t.Errorf("changing an object that has no room: write %v, close %v", written, closed)
		}
		// Closed files make room here too.
		for i := range 6 {
			must(t, os.WriteFile(m.path(fmt.Sprint("part", i)), content[:400<<10], 0o644))
		}
	}
	if s.has("new") || string(s.object("old")) != "the old content" || !bytes.Equal(s.object("large"), content) {
		t.Error("half a file was stored")
	}
	m.wantContent("old", "the old content")
	m.write("old", "replaced")
	if got := string(s.object("old")); got != "replaced" {
		t.Errorf("got %q", got)
	}
}
