package nfs

import (
	"context"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/test/vm"
)

// Where `make e2e` has put the kernels, and the server's programs.
const (
	kernelsEnv = "NODE_MOUNTS_KERNELS"
	debsEnv    = "NODE_MOUNTS_NFS"
)

func TestExportsAreGrantedServedOutagesSurvivedAndRevoked(t *testing.T) {
	run(t, roleServed, server(t), "nfsd", "nfsv4")
}

func TestANodeWhoseKernelHasNoNFSClientRefusesExportsAndServesTheRest(t *testing.T) {
	run(t, roleBare, map[string]string{})
}

func folder(t *testing.T, env string) string {
	t.Helper()
	dir := os.Getenv(env)
	if dir == "" {
		t.Fatalf("%s is not set: run `make e2e`", env)
	}
	return dir
}

func kernel(t *testing.T) string { return filepath.Join(folder(t, kernelsEnv), "6.1") }

// run boots a machine with this binary in role. The test is what its chapters are.
func run(t *testing.T, role string, files map[string]string, modules ...string) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	files["/bin/nfs.test"] = self
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	got, err := vm.Machine{
		Kernel: kernel(t), Modules: modules, Files: files,
		Command: []string{"/bin/nfs.test", role}, MemoryMiB: 1024,
	}.Run(ctx)
	must(t, err)
	if got.Exit != 0 || !strings.Contains(got.Output, "--- PASS: ") {
		t.Errorf("exit status %d\n%s", got.Exit, got.Output)
		return
	}
	t.Log(got.Output)
}

// server are the files of an NFS server for the machine, by their path there.
func server(t *testing.T) map[string]string {
	t.Helper()
	debs, etc := folder(t, debsEnv), t.TempDir()
	for name, text := range map[string]string{
		"services": "nfs 2049/tcp\nsunrpc 111/tcp portmapper\n", "protocols": "tcp 6 TCP\nudp 17 UDP\n",
		"netconfig": "tcp tpi_cots_ord v inet tcp - -\nudp tpi_clts v inet udp - -\n" +
			"tcp6 tpi_cots_ord v inet6 tcp - -\nudp6 tpi_clts v inet6 udp - -\nlocal tpi_cots_ord - loopback - - -\n",
		"passwd": "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n_rpc:x:100:65534::/:/bin/sh\n", "group": "root:x:0:\nnogroup:x:65534:\n",
		"hosts": "127.0.0.1 localhost\n::1 localhost\n", "nfs.conf": "",
		"exports": "/srv 127.0.0.1(rw,fsid=0,no_subtree_check,no_root_squash,insecure,sec=sys) " +
			"::1(rw,fsid=0,no_subtree_check,no_root_squash,insecure,sec=sys)\n" +
			"/srv/squash 127.0.0.1(rw,fsid=1,no_subtree_check,root_squash,insecure,sec=sys)\n",
	} {
		must(t, os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644))
	}
	files := map[string]string{"/etc": etc}
	for _, program := range []string{"/usr/sbin/rpc.nfsd", "/usr/sbin/" + exporter, "/usr/sbin/rpc.mountd", "/sbin/rpcbind"} {
		add(t, files, debs, program)
	}
	modules, err := filepath.Glob(filepath.Join(kernel(t), "lib/modules/*/kernel/fs/nfs/nfsv3.ko"))
	must(t, err)
	if len(modules) != 1 {
		t.Fatalf("the kernel has %d modules nfsv3", len(modules))
	}
	files[client3] = modules[0]
	return files
}

// add puts a program, or a library, and all that it is linked with into files.
func add(t *testing.T, files map[string]string, debs, name string) {
	t.Helper()
	if _, known := files[name]; known {
		return
	}
	files[name] = filepath.Join(debs, name)
	f, err := elf.Open(files[name])
	must(t, err)
	defer func() { _ = f.Close() }()
	libraries, err := f.ImportedLibraries()
	must(t, err)
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader := make([]byte, p.Filesz)
		_, err := p.ReadAt(loader, 0)
		must(t, err)
		files[strings.TrimRight(string(loader), "\x00")] = find(t, debs, filepath.Base(strings.TrimRight(string(loader), "\x00")))
	}
	for _, library := range libraries {
		from := find(t, debs, library)
		rel, err := filepath.Rel(debs, from)
		must(t, err)
		add(t, files, debs, "/"+rel)
	}
}

func find(t *testing.T, debs, library string) string {
	t.Helper()
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "lib64", "usr/lib64"} {
		path := filepath.Join(debs, dir, library)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("%s has no %s", debs, library)
	return ""
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
