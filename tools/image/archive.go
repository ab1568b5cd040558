package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// blob is one file of the archive.
type blob struct {
	name string
	size int64
	open func() (io.ReadCloser, error)
}

// archive writes the image as an OCI layout in a tar. index.json carries its name
// for containerd and by the specification; manifest.json repeats it in the form
// that `docker load` knew before it knew layouts, over the same blobs.
func archive(out, name string, img v1.Image) error {
	blobs, err := blobsOf(name, img)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(out), filepath.Base(out)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // without effect once renamed
	defer file.Close()
	w := tar.NewWriter(file)
	for _, b := range blobs {
		if err := b.write(w); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), out)
}

func (b blob) write(w *tar.Writer) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: b.name, Mode: 0o644, Size: b.size}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	r, err := b.open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

func blobsOf(name string, img v1.Image) ([]blob, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	var blobs []blob
	var layerNames []string
	seen := map[string]bool{}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return nil, err
		}
		size, err := layer.Size()
		if err != nil {
			return nil, err
		}
		layerNames = append(layerNames, nameOf(digest))
		if !seen[digest.Hex] {
			seen[digest.Hex] = true
			blobs = append(blobs, blob{nameOf(digest), size, layer.Compressed})
		}
	}
	config, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	configBytes, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	manifestBytes, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	index, err := indexOf(name, img)
	if err != nil {
		return nil, err
	}
	docker, err := json.Marshal([]any{map[string]any{
		"Config": nameOf(config), "RepoTags": []string{name}, "Layers": layerNames,
	}})
	if err != nil {
		return nil, err
	}
	blobs = append(blobs, bytesBlob(nameOf(config), configBytes), bytesBlob(nameOf(manifest), manifestBytes))
	sort.Slice(blobs, func(i, k int) bool { return blobs[i].name < blobs[k].name })
	return append(blobs,
		bytesBlob("index.json", index),
		bytesBlob("manifest.json", docker),
		bytesBlob("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)),
	), nil
}

// indexOf is the layout's index: one image under its whole name for containerd,
// and under its tag for whoever goes by the specification.
func indexOf(name string, img v1.Image) ([]byte, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	size, err := img.Size()
	if err != nil {
		return nil, err
	}
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	return json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests: []v1.Descriptor{{
			MediaType: types.OCIManifestSchema1,
			Size:      size,
			Digest:    digest,
			Platform:  &v1.Platform{OS: config.OS, Architecture: config.Architecture},
			Annotations: map[string]string{
				"io.containerd.image.name":          name,
				"org.opencontainers.image.ref.name": tag,
			},
		}},
	})
}

func nameOf(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func bytesBlob(name string, b []byte) blob {
	return blob{name, int64(len(b)), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(b))), nil }}
}

// describe says in three columns what was written.
func describe(name, out string, img v1.Image) (string, error) {
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return "", err
	}
	layers, err := img.Layers()
	if err != nil {
		return "", err
	}
	var text strings.Builder
	var whole int64
	fmt.Fprintf(&text, "image   %s (%s/%s)\ndigest  %s\n", name, config.OS, config.Architecture, digest)
	for i, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return "", err
		}
		whole += size
		fmt.Fprintf(&text, "layer   %6.1f MB  %s\n", megabytes(size), config.History[i].CreatedBy)
	}
	fmt.Fprintf(&text, "size    %6.1f MB  %s\n", megabytes(whole), out)
	return text.String(), nil
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }
