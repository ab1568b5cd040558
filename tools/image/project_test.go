package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The chart, the tests and whoever looks into a node rely on these.
func TestTheDockerfileSaysWhatTheImageIs(t *testing.T) {
	r := mustParse(t, text(t, "Dockerfile"), map[string]string{"VERSION": "v1.2.3", "REVISION": "abc"})
	if !regexp.MustCompile(`\Adebian:[a-z]+-slim\z`).MatchString(r.from) {
		t.Errorf("the base is %s; tools/agent-image takes the release from debian:RELEASE-slim", r.from)
	}
	want := recipe{
		from: r.from,
		steps: []step{
			{run: "/tmp/image/install"},
			{stage: "mount-s3", sources: []string{"/out/"}, target: "/"},
			{stage: "build", sources: []string{"/out/"}, target: "/usr/local/bin/", chmod: true, mode: 0o755},
		},
		env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		labels: map[string]string{
			"org.opencontainers.image.title":       "Node Mounts",
			"org.opencontainers.image.description": "Puts folders into Kubernetes Pods that are already running, and takes them away again",
			"org.opencontainers.image.source":      "https://github.com/datalayer/node-mounts",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     "v1.2.3",
			"org.opencontainers.image.revision":    "abc",
		},
		entrypoint: []string{"/usr/local/bin/node-mounts-agent"},
	}
	for i := range r.steps {
		r.steps[i].line, r.steps[i].text = 0, ""
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
}

// One list, one account, one program that trims: two builds that each had their own
// would drift.
func TestBothBuildsInstallAndTrimTheSame(t *testing.T) {
	install := text(t, "image/install")
	for _, part := range []string{`"$here/packages.txt"`, `"$here/account" /`, `"$here/trim" /`, "--no-install-recommends"} {
		if !strings.Contains(install, part) {
			t.Errorf("image/install, which the Dockerfile runs, has no %s", part)
		}
	}
	if script := text(t, "tools/agent-image"); !strings.Contains(script, "image/packages.txt image/account image/trim \"$cache\"") {
		t.Error("tools/agent-image gives tools/rootfs another list, another account or another trim")
	}
	// The instructions that install or fetch in any other way would be Docker's alone.
	for number, line := range strings.Split(text(t, "Dockerfile"), "\n") {
		if strings.Contains(line, "apt") || strings.Contains(line, "curl") {
			t.Errorf("Dockerfile:%d: %s: packages come from image/packages.txt", number+1, line)
		}
	}
}

// An account that is there already, or whose number is, would be somebody else's.
func TestTheAccountIsGitsAlone(t *testing.T) {
	make := func(passwd string) (made string, err error) {
		dir := lay(t, map[string]string{"etc/passwd": passwd, "etc/group": "root:x:0:\n", "etc/shadow": "root:*::::::::\n", "etc/gshadow": "root:*::\n"})
		if out, err := exec.Command(filepath.Join(root, "image/account"), dir+"/").CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		for _, name := range []string{"passwd", "group", "shadow", "gshadow"} {
			b, err := os.ReadFile(filepath.Join(dir, "etc", name))
			if err != nil {
				return "", err
			}
			made += strings.Split(string(b), "\n")[1] + "\n"
		}
		return made, nil
	}
	const want = "node-mounts-git:x:61000:61000:git of Node Mounts:/nonexistent:/usr/sbin/nologin\nnode-mounts-git:x:61000:\n" +
		"node-mounts-git:*:::::::\nnode-mounts-git:*::\n"
	if made, err := make("root:x:0:0:root:/root:/bin/sh\n"); err != nil || made != want {
		t.Errorf("made %q, %v", made, err)
	}
	for _, taken := range []string{"node-mounts-git:x:1:1::/:/x\n", "other:x:61000:1::/:/x\n"} {
		if made, err := make(taken); err == nil {
			t.Errorf("beside %q it made %q", taken, made)
		}
	}
}

func TestThePackagesAreThoseThatTheAgentStarts(t *testing.T) {
	have := map[string]bool{}
	for _, line := range strings.Split(text(t, "image/packages.txt"), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !regexp.MustCompile(`\A[a-z0-9][a-z0-9+.-]+\z`).MatchString(line) {
			t.Errorf("%q is not the name of one package", line)
		}
		if have[line] {
			t.Errorf("%s is there twice", line)
		}
		have[line] = true
	}
	for _, name := range []string{"ca-certificates", "curl", "fuse3", "git", "nfs-common", "openssh-client", "util-linux"} {
		if !have[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// The whole way of `make image` but for the installation, which needs a mirror: the
// base lies in the cache already.
func TestMakeImageFollowsTheDockerfileAndIsReproducible(t *testing.T) {
	cache, programs := t.TempDir(), lay(t, map[string]string{"node-mounts": "cli", "node-mounts-agent": "agent"})
	recipeID := fmt.Sprintf("%x", sha256.Sum256([]byte(text(t, "image/packages.txt")+text(t, "image/account")+text(t, "image/trim")+text(t, "tools/rootfs"))))[:12]
	release := strings.TrimSuffix(strings.TrimPrefix(mustParse(t, text(t, "Dockerfile"), nil).from, "debian:"), "-slim")
	base := filepath.Join(cache, fmt.Sprintf("rootfs-%s-arm64-2026W02-%s.tar.gz", release, recipeID))
	if err := os.Rename(baseOf(t, map[string]string{"etc/os-release": "x"}), base); err != nil {
		t.Fatal(err)
	}
	build := func() (archive, report string) {
		archive = filepath.Join(t.TempDir(), "image.tar")
		cmd := exec.Command(filepath.Join(root, "tools/agent-image"), "arm64", cache, imageName, archive)
		cmd.Env = append(os.Environ(), "WEEK=2026W02", "BINARIES="+programs, "REFRESH=", "SOURCE_DATE_EPOCH=1700000000")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return archive, string(out)
	}
	archive, report := build()
	img, _ := opened(t, archive)
	if got, want := listing(t, img, 1), []string{"0755 0:0 usr/local/bin/node-mounts cli", "0755 0:0 usr/local/bin/node-mounts-agent agent"}; !reflect.DeepEqual(got, want) {
		t.Errorf("the programs' layer is %v", got)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if version := config.Config.Labels["org.opencontainers.image.version"]; version == "" || config.Architecture != "arm64" {
		t.Errorf("version %q for %s", version, config.Architecture)
	}
	second, again := build()
	if strings.ReplaceAll(again, second, archive) != report {
		t.Errorf("the second build differs:\n%s\n%s", report, again)
	}
}

func TestTheTestImagesAreUnderstood(t *testing.T) {
	pause := mustParse(t, text(t, "test/node/images/pause/Dockerfile"), nil)
	if pause.from != "scratch" || pause.user == "" || len(pause.entrypoint) != 1 {
		t.Errorf("pause: %+v", pause)
	}
	sandbox := mustParse(t, text(t, "test/node/images/sandbox/Dockerfile"), nil)
	if sandbox.from != "scratch" || sandbox.user != "1000:100" || sandbox.workdir != "/home/jovyan" {
		t.Errorf("sandbox: %+v", sandbox)
	}
}

// Folders that are complete are used as they are, also where apt is missing.
func TestPackagesThatAreUnpackedAlreadyAreNotAskedFor(t *testing.T) {
	dir := filepath.Join(lay(t, map[string]string{"debs/.request": " busybox-static runc\n", "debs/f": "kept"}), "debs")
	tool := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(root, "tools/debs"), args...)
		cmd.Env = append(os.Environ(), "PATH="+without(t, "apt-get", "apt-cache"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, packages := range [][]string{{"busybox-static", "runc"}, {"runc", "busybox-static"}} {
		if out, err := tool(append([]string{dir}, packages...)...); err != nil {
			t.Errorf("%v: %v\n%s", packages, err, out)
		}
	}
	// Another list, or the same with what it depends on, is another request.
	for _, args := range [][]string{{dir, "runc"}, {"-r", dir, "runc", "busybox-static"}} {
		if out, err := tool(args...); err == nil {
			t.Errorf("%v: was taken for what is there\n%s", args, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
		t.Errorf("a failed request took what was there: %v", err)
	}
	if left, err := filepath.Glob(dir + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	if out, err := tool(dir); err == nil || !strings.Contains(out, "usage:") {
		t.Errorf("without packages: %v\n%s", err, out)
	}
}

// without is a PATH with the system's programs, where some fail.
func without(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexit 100\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir + ":" + os.Getenv("PATH")
}
