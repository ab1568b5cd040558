package mnt_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
)

const sandboxUID, sandboxGID = 1000, 100

// furnish puts into dir a file, a program, the same program with the set-uid
// bit, and a device.
func furnish(t *testing.T, dir string) {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.Chmod(dir, 0o777))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("mine"), 0o666))
	must(t, os.Chmod(filepath.Join(dir, "file"), 0o666))
	for name, mode := range map[string]os.FileMode{"program": 0o755, "set-uid": 0o755 | os.ModeSetuid} {
		must(t, os.WriteFile(filepath.Join(dir, name), program, 0o700))
		must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	must(t, unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, os.Chmod(filepath.Join(dir, "device"), 0o666))
}

// newSandbox is a container that was started before anything was granted, a home
// folder with another filesystem mounted in it, and the grants of it.
func newSandbox(t *testing.T) (b *bench, c *simnode.Container, home string) {
	t.Helper()
	b = newBench(t)
	home = filepath.Join(b.node.Claim, "home")
	nested := filepath.Join(home, "nested")
	must(t, os.MkdirAll(nested, 0o755))
	b.Mount(t, nested)
	furnish(t, home)
	furnish(t, nested)

	c, err := b.pod.StartContainer(simnode.ContainerOptions{ExtraBinds: map[string]string{home: "/plain"}})
	must(t, err)
	at := filepath.Join(b.node.Root, "pod")
	must(t, os.Mkdir(at, 0o755))
	_, err = b.table.NewTree(openDir(t, at))
	must(t, err)
	tree := openDir(t, at)
	_, err = b.table.Publish(tree, openDir(t, b.Volume()))
	must(t, err)
	must(t, bind(b.table, home, tree, "rw", 0))
	must(t, bind(b.table, home, tree, "ro", mnt.ReadOnly))
	must(t, bind(b.table, home, tree, "noexec", mnt.NoExec))
	return b, c, home
}

// everywhere are the folders of a grant to look into.
func everywhere(target string) []string {
	top := filepath.Join(simnode.DefaultMountPath, target)
	return []string{top, filepath.Join(top, "nested")}
}

func refused(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestAReadOnlyGrantCannotBeWrittenInside(t *testing.T) {
	_, c, _ := newSandbox(t)
	for who, c := range map[string]*simnode.Container{"root": c, "the user": c.AsUser(sandboxUID, sandboxGID)} {
		for _, dir := range everywhere("ro") {
			if data, err := c.ReadFile(dir + "/file"); err != nil || string(data) != "mine" {
				t.Errorf("%s reads %q in %s: %v", who, data, dir, err)
			}
			refused(t, who+" writes "+dir, c.WriteFile(dir+"/file", nil, 0o644), unix.EROFS)
			refused(t, who+" makes a file in "+dir, c.WriteFile(dir+"/new", nil, 0o644), unix.EROFS)
			refused(t, who+" makes a folder in "+dir, c.Mkdir(dir+"/new", 0o755), unix.EROFS)
			refused(t, who+" removes from "+dir, c.Remove(dir+"/file"), unix.EROFS)
		}
	}
	refused(t, "root changes a mode", c.Chmod(everywhere("ro")[0]+"/file", 0o600), unix.EROFS)
}

func TestAWritableGrantCanBeWrittenInsideTheReadOnlyPublication(t *testing.T) {
	b, c, home := newSandbox(t)
	user := c.AsUser(sandboxUID, sandboxGID)
	for _, dir := range everywhere("rw") {
		must(t, user.WriteFile(dir+"/new", []byte("from inside"), 0o644))
	}
	for _, dir := range []string{home, filepath.Join(home, "nested")} {
		data, err := os.ReadFile(filepath.Join(dir, "new"))
		if err != nil || string(data) != "from inside" {
			t.Errorf("the claim has %q: %v", data, err)
		}
	}
	// The publication itself takes nothing from anybody in the container, who
	// could plant a link where the next grant is attached.
	top := simnode.DefaultMountPath
	for who, c := range map[string]*simnode.Container{"root": c, "the user": user} {
		refused(t, who+" makes a folder", c.Mkdir(top+"/bob", 0o777), unix.EROFS)
		refused(t, who+" makes a link", c.Symlink("/etc", top+"/bob"), unix.EROFS)
		refused(t, who+" makes a file", c.WriteFile(top+"/bob", nil, 0o644), unix.EROFS)
		refused(t, who+" opens it up", c.Chmod(top, 0o777), unix.EROFS)
	}
	entries, err := os.ReadDir(filepath.Join(b.node.Root, "pod"))
	must(t, err)
	if len(entries) != 3 {
		t.Errorf("the tree has %v", entries)
	}
}

func TestSetUIDBitsAndDevicesHaveNoEffectInside(t *testing.T) {
	_, c, _ := newSandbox(t)
	user := c.AsUser(sandboxUID, sandboxGID)
	// Not mounted by us, both have: without that, the rest would prove nothing.
	if _, out, err := user.Exec("/plain/set-uid"); err != nil || !strings.Contains(out, "euid=0") {
		t.Fatalf("the set-uid program elsewhere: %q, %v", out, err)
	}
	must(t, user.OpenDevice("/plain/device"))
	for _, target := range []string{"rw", "ro"} {
		for _, dir := range everywhere(target) {
			if _, out, err := user.Exec(dir + "/set-uid"); err != nil || !strings.Contains(out, "euid=1000") {
				t.Errorf("the set-uid program in %s: %q, %v", dir, out, err)
			}
			refused(t, "the user opens a device in "+dir, user.OpenDevice(dir+"/device"), unix.EACCES)
			refused(t, "root opens a device in "+dir, c.OpenDevice(dir+"/device"), unix.EACCES)
		}
	}
}

func TestANoexecGrantRunsNothingInside(t *testing.T) {
	_, c, _ := newSandbox(t)
	for who, c := range map[string]*simnode.Container{"root": c, "the user": c.AsUser(sandboxUID, sandboxGID)} {
		for _, dir := range everywhere("noexec") {
			_, _, err := c.Exec(dir + "/program")
			refused(t, who+" executes in "+dir, err, unix.EACCES)
			must(t, c.WriteFile(dir+"/file", []byte("written"), 0o644))
		}
		for _, target := range []string{"rw", "ro"} {
			for _, dir := range everywhere(target) {
				if exit, out, err := c.Exec(dir + "/program"); err != nil || exit != 0 {
					t.Errorf("%s executes in %s: exit %d, %q, %v", who, dir, exit, out, err)
				}
			}
		}
	}
}

func TestTheFlagsAreLockedInAUserNamespaceOfTheUser(t *testing.T) {
	_, c, _ := newSandbox(t)
	dir := everywhere("ro")[1]
	// In a user namespace of its own a process has every capability, and can
	// still clear no flag that was set outside it.
	must(t, c.PinPrivate(dir+"/file"))
	pinned := c.Pinned()
	must(t, pinned.BindMount(dir, "/tmp"))
	refused(t, "a write in a bind of it", pinned.WriteFile("/tmp/file", nil, 0o644), unix.EROFS)
	refused(t, "an unmount of it", pinned.Unmount(dir), unix.EINVAL)
	must(t, c.Unpin())
}
