package buckets

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
)

func TestABucketIsListedReadAndWritten(t *testing.T) {
	w := newWorld(t)
	w.s3.Put(bucketName, "a.txt", []byte("a\n"))
	w.s3.Put(bucketName, "folder/b.txt", []byte("b\n"))
	_, c := w.granted("writer", bucketName, grant.ReadWrite, w.s3.Key())

	names, err := c.ReadDir(in + "data")
	must(t, err)
	slices.Sort(names)
	if !slices.Equal(names, []string{"a.txt", "folder"}) {
		t.Errorf("it lists %q", names)
	}
	if got, err := c.ReadFile(in + "data/folder/b.txt"); err != nil || string(got) != "b\n" {
		t.Errorf("read %q, %v", got, err)
	}
	must(t, c.WriteFile(in+"data/folder/c.txt", []byte("c\n"), 0o644))
	// Stored when the file is closed, and not some time after.
	if got, err := os.ReadFile(filepath.Join(w.s3.Dir, bucketName, "folder/c.txt")); err != nil || string(got) != "c\n" {
		t.Errorf("the server has %q, %v", got, err)
	}
	info, err := c.Stat(in + "data/folder/c.txt")
	must(t, err)
	if info.UID != userID || info.GID != groupID {
		t.Errorf("it belongs to %d:%d", info.UID, info.GID)
	}
	must(t, c.Remove(in+"data/folder/c.txt"))
	if _, err := os.Stat(filepath.Join(w.s3.Dir, bucketName, "folder/c.txt")); err == nil {
		t.Error("the server still has what was removed")
	}

	_, c = w.granted("reader", bucketName, grant.ReadOnly, w.s3.Key())
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a\n" {
		t.Errorf("read-only: %q, %v", got, err)
	}
	wants(t, "writing", c.WriteFile(in+"data/d.txt", nil, 0o644), unix.EROFS)
	wants(t, "removing", c.Remove(in+"data/a.txt"), unix.EROFS)
}

func TestAPrefixIsAllThatAPodSees(t *testing.T) {
	w := newWorld(t)
	for _, prefix := range []string{"plain", "with space/and more", ".dots..", `it's "quoted"`, "per%20cent", "ünïcode/日本"} {
		w.s3.Put(bucketName, prefix+"/inside.txt", []byte(prefix))
		w.s3.Put(bucketName, prefix+"-sibling/outside.txt", []byte("no"))
	}
	for i, prefix := range []string{"plain", "with space/and more", ".dots..", `it's "quoted"`, "per%20cent", "ünïcode/日本", "plain/"} {
		p, c := w.granted("pod-"+string(rune('a'+i)), bucketName+"/"+prefix, grant.ReadWrite, w.s3.Key())
		names, err := c.ReadDir(in + "data")
		if err != nil || !slices.Equal(names, []string{"inside.txt"}) {
			t.Errorf("%s: it lists %q, %v", prefix, names, err)
		}
		must(t, c.WriteFile(in+"data/new.txt", []byte("new"), 0o644))
		if got, err := os.ReadFile(filepath.Join(w.s3.Dir, bucketName, prefix, "new.txt")); err != nil || string(got) != "new" {
			t.Errorf("%s: the server has %q, %v", prefix, got, err)
		}
		must(t, c.Remove(in+"data/new.txt"))
		p.Grant()
		p.Answered(isReady)
	}
}

func TestAnEmptyBucketIsReadyAndEmpty(t *testing.T) {
	w := newWorld(t)
	_, c := w.granted("pod", bucketName, grant.ReadWrite, w.s3.Key())
	if names, err := c.ReadDir(in + "data"); err != nil || len(names) != 0 {
		t.Errorf("it lists %q, %v", names, err)
	}
}

func TestALargeFileIsTheSameOnBothSides(t *testing.T) {
	w := newWorld(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB: a multipart upload
	_, c := w.granted("pod", bucketName, grant.ReadWrite, w.s3.Session(hour))
	must(t, c.WriteFile(in+"data/large", content, 0o644))
	if got, err := os.ReadFile(filepath.Join(w.s3.Dir, bucketName, "large")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the server has %d bytes, %v", len(got), err)
	}
	if got, err := c.ReadFile(in + "data/large"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the container reads %d bytes, %v", len(got), err)
	}
}
