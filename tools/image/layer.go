package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// entry is one file of a layer: where it comes from, and its name in the image
// without the leading slash.
type entry struct {
	from string
	name string
}

// collect adds what a COPY of one source brings, as name in the image -> file. As
// with Docker, a folder stands for what is in it, and folders above the target are
// made by whoever unpacks.
func (s step) collect(root, source string, to map[string]string) error {
	from := filepath.Join(root, path.Clean("/"+source))
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		target := s.target
		if strings.HasSuffix(target, "/") {
			target = path.Join(target, path.Base(source))
		}
		to[inside(target)] = from
		return nil
	}
	return filepath.WalkDir(from, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || file == from {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		to[inside(path.Join(s.target, filepath.ToSlash(rel)))] = file
		return nil
	})
}

// sorted puts the files of a layer in the one order that they always have.
func sorted(files map[string]string) []entry {
	all := make([]entry, 0, len(files))
	for name, from := range files {
		all = append(all, entry{from: from, name: name})
	}
	sort.Slice(all, func(i, k int) bool { return all[i].name < all[k].name })
	return all
}

func inside(name string) string { return strings.TrimPrefix(path.Clean(name), "/") }

// write writes a layer. Nothing of the machine gets into it but names, modes and
// bytes: no times, no owners, no extended attributes.
func (s step) write(w io.Writer, all []entry, epoch time.Time) error {
	out := tar.NewWriter(w)
	for _, e := range all {
		if err := s.add(out, e, epoch); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return out.Close()
}

func (s step) add(out *tar.Writer, e entry, epoch time.Time) error {
	info, err := os.Lstat(e.from)
	if err != nil {
		return err
	}
	header := &tar.Header{Name: e.name, ModTime: epoch, Uid: s.uid, Gid: s.gid, Mode: modeOf(info)}
	if s.chmod {
		header.Mode = s.mode
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		header.Typeflag, header.Name = tar.TypeDir, e.name+"/"
	case fs.ModeSymlink:
		header.Typeflag, header.Mode = tar.TypeSymlink, 0o777
		if header.Linkname, err = os.Readlink(e.from); err != nil {
			return err
		}
	case 0:
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
	default:
		return fmt.Errorf("a %s cannot be copied", info.Mode().Type())
	}
	if err := out.WriteHeader(header); err != nil || header.Typeflag != tar.TypeReg {
		return err
	}
	file, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return err
}

// modeOf is the mode in tar's form: the three high bits are elsewhere in Go's.
func modeOf(info fs.FileInfo) int64 {
	mode := int64(info.Mode().Perm())
	for bit, octal := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			mode |= octal
		}
	}
	return mode
}
