package main

import (
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// build follows the recipe: a layer for the base, one for each COPY that copies
// something, and the settings.
func (j job) build(r recipe) (v1.Image, error) {
	layers, err := j.layers(r)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.Append(img, layers...); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", j.arch
	config.Created = v1.Time{Time: j.epoch}
	config.Config = v1.Config{
		Env:        r.env,
		Labels:     r.labels,
		Entrypoint: r.entrypoint,
		Cmd:        r.cmd,
		User:       r.user,
		WorkingDir: r.workdir,
	}
	return mutate.ConfigFile(img, config)
}

func (j job) layers(r recipe) ([]mutate.Addendum, error) {
	var layers []mutate.Addendum
	if r.from != "scratch" {
		file, ok := j.bases[r.from]
		if !ok {
			return nil, fmt.Errorf("FROM %s: no -base stands for it", r.from)
		}
		layer, err := tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, fmt.Errorf("FROM %s: %s: %w", r.from, file, err)
		}
		layers = append(layers, j.addendum(layer, "FROM "+r.from))
	}
	for _, s := range r.steps {
		if s.run != "" {
			if r.from == "scratch" || !j.done[s.run] {
				return nil, fmt.Errorf("line %d: RUN %s: this builder runs nothing, and no -done says that the base has it", s.line, s.run)
			}
			continue
		}
		layer, err := j.copied(s)
		if err != nil {
			return nil, fmt.Errorf("line %d: COPY: %w", s.line, err)
		}
		if layer != nil {
			layers = append(layers, j.addendum(layer, s.text))
		}
	}
	return layers, nil
}

func (j job) addendum(layer v1.Layer, by string) mutate.Addendum {
	return mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: j.epoch}, CreatedBy: by}}
}

// copied is the layer of one COPY, nil where there is nothing to copy.
func (j job) copied(s step) (v1.Layer, error) {
	files := map[string]string{}
	for _, source := range s.sources {
		root, rest, err := j.locate(s.stage, source)
		if err != nil {
			return nil, err
		}
		if root == "" {
			continue
		}
		before := len(files)
		if err := s.collect(root, rest, files); err != nil {
			return nil, err
		}
		// An image without its programs would be found out on a node.
		if len(files) == before {
			return nil, fmt.Errorf("%s brings no file from %s", source, root)
		}
	}
	if len(files) == 0 {
		return nil, nil
	}
	all := sorted(files)
	open := func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(s.write(w, all, j.epoch)) }()
		return r, nil
	}
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// locate returns the folder that a source is relative to, and the rest of it. The
// folder is "" where an earlier stage has left nothing.
func (j job) locate(stage, source string) (dir, rest string, err error) {
	if stage == "" {
		return j.context, source, nil
	}
	for key, dir := range j.stages {
		name, folder, _ := strings.Cut(key, ":")
		rest, below := strings.CutPrefix(strings.TrimSuffix(source, "/")+"/", strings.TrimSuffix(folder, "/")+"/")
		if name == stage && below {
			return dir, rest, nil
		}
	}
	return "", "", fmt.Errorf("--from=%s %s: no -stage stands for it", stage, source)
}
