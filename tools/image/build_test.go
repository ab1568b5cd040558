package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const imageName = "docker.io/example/thing:v1"

// lay makes files from names and contents: a name that ends in / is a folder, a
// content that starts with "->" a link. Modes are 0644, or 0755 for programs.
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(content, "->"); link {
			err = os.Symlink(target, file)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(file, 0o755)
		} else {
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// baseOf makes the archive of a root folder.
func baseOf(t *testing.T, files map[string]string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rootfs.tar.gz")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	zip := gzip.NewWriter(file)
	out := tar.NewWriter(zip)
	for name, content := range files {
		err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: 0o644, Size: int64(len(content))})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(out.Close(), zip.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// built runs the command and returns the archive's name.
func built(t *testing.T, recipe string, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "Dockerfile")
	if err := os.WriteFile(file, []byte(recipe), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "image.tar")
	j, err := jobOf(append([]string{"-f", file, "-t", imageName, "-o", out, "-epoch", "1700000000"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	_, err = j.run()
	return out, err
}

func mustBuild(t *testing.T, recipe string, args ...string) string {
	t.Helper()
	out, err := built(t, recipe, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// opened reads an archive back by its OCI index, and checks every digest in it.
func opened(t *testing.T, archive string) (v1.Image, v1.Descriptor) {
	t.Helper()
	dir := t.TempDir()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	in := tar.NewReader(file)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, header.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d images in the index", len(manifest.Manifests))
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Fatal(err)
	}
	return img, manifest.Manifests[0]
}

// listing is a layer as one line per file: mode, owner, name, link or content.
func listing(t *testing.T, img v1.Image, number int) []string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if number >= len(layers) {
		t.Fatalf("there are %d layers", len(layers))
	}
	r, err := layers[number].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var lines []string
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if number > 0 && h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s has the time %s", h.Name, h.ModTime)
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%04o %d:%d %s %s%s", h.Mode, h.Uid, h.Gid, h.Name, h.Linkname, content)))
	}
}

func TestAnImageIsItsBaseAndALayerForEachCopy(t *testing.T) {
	context := lay(t, map[string]string{"etc/motd": "hello", "bin/sh": "->busybox", "home/ada/": ""})
	if err := os.Chmod(filepath.Join(context, "home/ada"), os.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	programs := lay(t, map[string]string{"agent": "program"})
	archive := mustBuild(t, `FROM debian:x-slim
RUN --mount=type=bind,source=image,target=/t /t/install
COPY --from=none /out/ /
COPY --from=build --chmod=0755 /out/ /usr/local/bin/
COPY --chown=1000:100 . /
COPY etc/motd bin/ /srv/
COPY etc/motd /etc/other
ENV PATH=/bin
ENTRYPOINT ["/agent"]
`, "-base", "debian:x-slim="+baseOf(t, map[string]string{"etc/os-release": "x"}), "-done", "/t/install",
		"-stage", "none:/out=", "-stage", "build:/out="+programs, "-context", context, "-arch", "arm64")
	img, _ := opened(t, archive)

	for number, want := range [][]string{
		{"0644 0:0 ./etc/os-release x"},
		{"0755 0:0 usr/local/bin/agent program"},
		{
			"0755 1000:100 bin/", "0777 1000:100 bin/sh busybox", "0755 1000:100 etc/", "0644 1000:100 etc/motd hello",
			"0755 1000:100 home/", "1777 1000:100 home/ada/",
		},
		{"0644 0:0 srv/motd hello", "0777 0:0 srv/sh busybox"},
		{"0644 0:0 etc/other hello"},
	} {
		if got := listing(t, img, number); !reflect.DeepEqual(got, want) {
			t.Errorf("layer %d is\n  %s\nwant\n  %s", number, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" || config.Created.Unix() != 1700000000 ||
		!reflect.DeepEqual(config.Config.Entrypoint, []string{"/agent"}) || !reflect.DeepEqual(config.Config.Env, []string{"PATH=/bin"}) {
		t.Errorf("the settings are %+v", config)
	}
}

// containerd goes by the annotation, other readers of OCI layouts by the tag, and
// Docker by manifest.json; all must find the same image.
func TestEveryReaderFindsTheSameImageUnderItsName(t *testing.T) {
	archive := mustBuild(t, "FROM scratch\nCOPY f /f\n", "-context", lay(t, map[string]string{"f": "x"}))
	img, descriptor := opened(t, archive)
	want := map[string]string{"io.containerd.image.name": imageName, "org.opencontainers.image.ref.name": "v1"}
	if !reflect.DeepEqual(descriptor.Annotations, want) {
		t.Errorf("annotations are %v", descriptor.Annotations)
	}
	if p := descriptor.Platform; p == nil || p.OS != "linux" || p.Architecture != "amd64" {
		t.Errorf("the platform is %v", p)
	}
	if descriptor.ArtifactType != "" {
		t.Errorf("it calls itself an artifact (%s), which is for what is no image", descriptor.ArtifactType)
	}
	docker, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(docker); err != nil {
		t.Error(err)
	}
	ours, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := docker.ConfigName()
	if err != nil || ours != theirs {
		t.Errorf("manifest.json leads to %v (%v), index.json to %v", theirs, err, ours)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil || len(manifest) != 1 || !reflect.DeepEqual(manifest[0].RepoTags, []string{imageName}) {
		t.Errorf("manifest.json says %v (%v)", manifest, err)
	}
}

func TestTheSameInputsGiveTheSameBytes(t *testing.T) {
	recipe := "FROM b\nCOPY . /\nLABEL b=1\nLABEL a=2\n"
	base := baseOf(t, map[string]string{"etc/os-release": "x"})
	files := map[string]string{"a": "1", "b/c": "2", "b/d": "->c", "e/": ""}
	read := func(content string) string {
		files["a"] = content
		dir := lay(t, files)
		// Another machine, another day: times are not inputs.
		when := time.Unix(int64(len(dir))*1000, 0)
		if err := os.Chtimes(filepath.Join(dir, "a"), when, when); err != nil {
			t.Fatal(err)
		}
		bytes, err := os.ReadFile(mustBuild(t, recipe, "-base", "b="+base, "-context", dir))
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes)
	}
	first, second, other := read("1"), read("1"), read("2")
	if first != second {
		t.Error("two builds of the same inputs differ")
	}
	if first == other {
		t.Error("two builds of different inputs are equal")
	}
}

func TestNothingIsPassedOver(t *testing.T) {
	context := lay(t, map[string]string{"f": "x"})
	base := baseOf(t, nil)
	for name, c := range map[string]struct {
		recipe string
		args   []string
		says   string
	}{
		"a base that nobody made":         {"FROM debian:y\n", nil, "no -base"},
		"a base that is not there":        {"FROM b\n", []string{"-base", "b=/nowhere"}, "/nowhere"},
		"a RUN that the base has not run": {"FROM b\nRUN make\n", []string{"-base", "b=" + base, "-done", "make it"}, "line 2"},
		"a RUN in an empty image":         {"FROM scratch\nRUN make\n", []string{"-done", "make"}, "line 2"},
		"a stage that nobody made":        {"FROM scratch\nCOPY --from=s /out/ /\n", []string{"-stage", "s:/other=" + context}, "no -stage"},
		"a stage's neighbour":             {"FROM scratch\nCOPY --from=s /outer/ /\n", []string{"-stage", "s:/out=" + context}, "no -stage"},
		"a stage that is empty":           {"FROM scratch\nCOPY --from=s /out/ /\n", []string{"-stage", "s:/out=" + t.TempDir()}, "no file"},
		"a file that is not there":        {"FROM scratch\nCOPY g /g\n", nil, "no such file"},
		"a file outside of the context":   {"FROM scratch\nCOPY ../../../../../../etc/passwd /g\n", nil, "no such file"},
		"an unknown instruction":          {"FROM scratch\nVOLUME /v\n", nil, "Dockerfile:2: "},
	} {
		out, err := built(t, c.recipe, append(c.args, "-context", context)...)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want it to say %q", name, err, c.says)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: an archive was written", name)
		}
	}
}

func TestACommandLineWithoutANameOrATimeIsRefused(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	for _, args := range [][]string{
		{"-t", imageName, "-epoch", "0"},
		{"-o", "x", "-epoch", "0"},
		{"-o", "x", "-t", imageName},
		{"-o", "x", "-t", imageName, "-epoch", "0", "more"},
		{"-o", "x", "-t", imageName, "-epoch", "0", "-arg", "noequals"},
	} {
		if _, err := jobOf(args); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

func TestTheReportNamesDigestAndSizes(t *testing.T) {
	out := filepath.Join(t.TempDir(), "i.tar")
	file := filepath.Join(lay(t, map[string]string{"Dockerfile": "FROM scratch\nCOPY Dockerfile /d\n"}), "Dockerfile")
	j, err := jobOf([]string{"-f", file, "-t", imageName, "-o", out, "-epoch", "0"})
	if err != nil {
		t.Fatal(err)
	}
	report, err := j.run()
	if err != nil {
		t.Fatal(err)
	}
	img, _ := opened(t, out)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{imageName, digest.String(), "COPY Dockerfile /d", out} {
		if !strings.Contains(report, part) {
			t.Errorf("%q is not in\n%s", part, report)
		}
	}
}

// Nothing else may be in the archive: readers stop at files they do not expect.
func TestTheArchiveHoldsALayoutAndNothingElse(t *testing.T) {
	archive := mustBuild(t, "FROM scratch\nCOPY f /f\nCOPY f /f\n", "-context", lay(t, map[string]string{"f": "x"}))
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var others []string
	seen := map[string]bool{}
	in := tar.NewReader(file)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if seen[h.Name] {
			t.Errorf("%s is there twice", h.Name)
		}
		seen[h.Name] = true
		if !strings.HasPrefix(h.Name, "blobs/sha256/") {
			others = append(others, h.Name)
		}
		if h.Name == "oci-layout" {
			var version struct{ ImageLayoutVersion string }
			if err := json.NewDecoder(in).Decode(&version); err != nil || version.ImageLayoutVersion != "1.0.0" {
				t.Errorf("the layout's version is %q (%v)", version.ImageLayoutVersion, err)
			}
		}
	}
	if want := []string{"index.json", "manifest.json", "oci-layout"}; !reflect.DeepEqual(others, want) {
		t.Errorf("beside blobs there are %v", others)
	}
}
