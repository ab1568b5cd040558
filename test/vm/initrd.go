package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// initrd is the machine's first file system while it is written.
type initrd struct {
	w    *cpio.Writer
	dirs map[string]bool
}

// writeInitrd writes an archive that the kernel unpacks into its root. It is not
// compressed: to unpack it, emulated, would take longer than to copy it.
func (m Machine) writeInitrd(file, nonce string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(f, 1<<20)
	i := &initrd{w: cpio.NewWriter(buffered), dirs: map[string]bool{".": true, "/": true}}
	defer func() { err = errors.Join(err, i.w.Close(), buffered.Flush(), f.Close()) }()

	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/var/lib"} {
		if err := i.mkdir(dir); err != nil {
			return err
		}
	}
	if err := i.add("/init", self); err != nil {
		return err
	}
	for _, to := range sortedKeys(m.Files) {
		if err := i.addTree(to, m.Files[to]); err != nil {
			return err
		}
	}
	modules, err := m.modules()
	if err != nil {
		return err
	}
	for _, rel := range modules {
		if err := i.add("/"+rel, filepath.Join(m.Kernel, rel)); err != nil {
			return err
		}
	}
	text, err := order{Modules: modules, Command: m.Command, Nonce: nonce}.encode()
	if err != nil {
		return err
	}
	return i.write(orderPath, cpio.TypeReg|0o644, text)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (i *initrd) addTree(to, from string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		dest := path.Join("/", to, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			return i.mkdir(dest)
		case p != from && d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return i.write(dest, cpio.TypeSymlink|0o777, []byte(target))
		case d.Type().IsRegular(), p == from: // a link that was named is followed
			return i.add(dest, p)
		}
		return nil
	})
}

func (i *initrd) mkdir(dir string) error {
	dir = strings.TrimPrefix(path.Clean(dir), "/")
	if dir == "" || i.dirs[dir] {
		return nil
	}
	if err := i.mkdir(path.Dir(dir)); err != nil {
		return err
	}
	i.dirs[dir] = true
	return i.w.WriteHeader(&cpio.Header{Name: dir, Mode: cpio.TypeDir | 0o755, Links: 2})
}

func (i *initrd) add(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return i.write(to, cpio.TypeReg|0o755, data)
}

func (i *initrd) write(to string, mode cpio.FileMode, data []byte) error {
	if err := i.mkdir(path.Dir(to)); err != nil {
		return err
	}
	h := &cpio.Header{Name: strings.TrimPrefix(to, "/"), Mode: mode, Size: int64(len(data)), Links: 1}
	if mode&cpio.TypeSymlink == cpio.TypeSymlink {
		h.Linkname = string(data)
	}
	if err := i.w.WriteHeader(h); err != nil {
		return err
	}
	_, err := i.w.Write(data)
	return err
}

// modules are the files of the modules asked for, dependencies first, from the
// kernel's own modules.dep. Debian makes that when a package is configured, so an
// unpacked one needs a depmod once.
func (m Machine) modules() ([]string, error) {
	if len(m.Modules) == 0 {
		return nil, nil
	}
	depFile, err := one(filepath.Join(m.Kernel, "lib/modules/*/modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("run depmod -b %s: %w", m.Kernel, err)
	}
	text, err := os.ReadFile(depFile)
	if err != nil {
		return nil, err
	}
	base, err := filepath.Rel(m.Kernel, filepath.Dir(depFile))
	if err != nil {
		return nil, err
	}
	needs := make(map[string][]string) // name of a module -> its file, then its dependencies' files
	for line := range strings.Lines(string(text)) {
		file, deps, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			needs[moduleName(file)] = append([]string{file}, strings.Fields(deps)...)
		}
	}
	var files []string
	for _, name := range m.Modules {
		all, ok := needs[name]
		if !ok {
			return nil, fmt.Errorf("this kernel has no module %s", name)
		}
		// modules.dep lists what is needed last first.
		for _, file := range slices.Backward(all) {
			if rel := path.Join(base, file); !slices.Contains(files, rel) {
				files = append(files, rel)
			}
		}
	}
	return files, nil
}

func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
