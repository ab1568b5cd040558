package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// job is one image to build: where the recipe is, and what stands for the parts
// of it that are made elsewhere.
type job struct {
	file    string            // the Dockerfile; its last stage is followed
	context string            // the folder that COPY without --from reads
	bases   map[string]string // name in FROM -> archive (.tar.gz) of its root folder
	done    map[string]bool   // commands of RUN that are in the base already
	stages  map[string]string // "stage:/folder" -> folder on this machine, "" for an empty one
	args    map[string]string // build arguments
	arch    string            // amd64, arm64
	name    string            // registry/repository:tag
	epoch   time.Time         // time of every copied file, and of the image
	out     string            // the archive to write
}

// pairs is a flag that is given many times as KEY=VALUE.
type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return errors.New("want KEY=VALUE")
	}
	p[key] = value
	return nil
}

// names is a flag that is given many times.
type names map[string]bool

func (n names) String() string { return "" }

func (n names) Set(s string) error {
	n[s] = true
	return nil
}

func jobOf(args []string) (job, error) {
	j := job{bases: pairs{}, done: names{}, stages: pairs{}, args: pairs{}}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&j.file, "f", "Dockerfile", "the recipe")
	flags.StringVar(&j.context, "context", "", "folder that COPY reads (default: the recipe's)")
	flags.Var(pairs(j.bases), "base", "`IMAGE=ARCHIVE`: a root folder (.tar.gz) that stands for IMAGE in FROM")
	flags.Var(names(j.done), "done", "a `COMMAND` of RUN that the base has behind it")
	flags.Var(pairs(j.stages), "stage", "`STAGE:/FOLDER=DIR`: DIR stands for /FOLDER of an earlier stage; no DIR: it is empty")
	flags.Var(pairs(j.args), "arg", "`NAME=VALUE`: a build argument")
	flags.StringVar(&j.arch, "arch", "amd64", "architecture of the image")
	flags.StringVar(&j.name, "t", "", "`NAME:TAG`, with the registry")
	epoch := flags.String("epoch", os.Getenv("SOURCE_DATE_EPOCH"), "`SECONDS`: the time of the image and its files")
	flags.StringVar(&j.out, "o", "", "the archive to write")
	flags.SetOutput(io.Discard) // main prints the error, once
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(os.Stdout)
			flags.PrintDefaults()
		}
		return job{}, err
	}
	if flags.NArg() > 0 {
		return job{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if j.out == "" || j.name == "" {
		return job{}, errors.New("-o and -t are needed")
	}
	if j.context == "" {
		j.context = filepath.Dir(j.file)
	}
	seconds, err := strconv.ParseInt(*epoch, 10, 64)
	if err != nil {
		return job{}, fmt.Errorf("-epoch or SOURCE_DATE_EPOCH: %w", err)
	}
	j.epoch = time.Unix(seconds, 0).UTC()
	j.args["TARGETARCH"] = j.arch
	return j, nil
}

// run builds the image and says what came out.
func (j job) run() (string, error) {
	text, err := os.ReadFile(j.file)
	if err != nil {
		return "", err
	}
	recipe, err := parse(string(text), j.args)
	if err != nil {
		return "", fmt.Errorf("%s:%w", j.file, err)
	}
	img, err := j.build(recipe)
	if err != nil {
		return "", fmt.Errorf("%s: %w", j.file, err)
	}
	if err := archive(j.out, j.name, img); err != nil {
		return "", fmt.Errorf("write %s: %w", j.out, err)
	}
	return describe(j.name, j.out, img)
}
