// Package demo runs the main job on one machine without a cluster: a node in
// namespaces of its own, the agent, a Kubernetes API in memory, and a sandbox
// that is already running when folders are granted to it. Everything it says is
// seen from inside the sandbox.
package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// ErrFailed is returned when something that was shown did not go as it must.
var ErrFailed = errors.New("the demo saw something that must not happen")

// ErrOutput is returned, with the reason, when what is shown cannot be written.
// The demo stops there, and has put everything away by then.
var ErrOutput = errors.New("cannot write what the demo shows")

// Format is how the demo reports.
type Format string

// The formats.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Run shows the whole story on out. The process must be in a mount namespace of
// its own (simnode.Enter).
func Run(ctx context.Context, out io.Writer, format Format) error {
	text := &printer{w: out}
	if format == JSON {
		text.w = io.Discard
	}
	text.line("Node Mounts, on one node in namespaces of its own (Linux %s): no cluster, nothing outside is touched.", obs.KernelRelease())
	text.line("A sandbox is running as uid 1000. Its folder %s is empty.", simnode.DefaultMountPath)
	if text.err != nil {
		return text.err
	}
	var log bytes.Buffer
	doc, err := tell(ctx, text, &log)
	if err == nil && !doc.OK {
		err = ErrFailed
	}
	if err != nil && ctx.Err() == nil && text.err == nil && log.Len() > 0 {
		fmt.Fprintf(os.Stderr, "--- what the agent logged ---\n%s", log.String())
	}
	if format == JSON && ctx.Err() == nil {
		if werr := doc.writeJSON(out); werr != nil {
			return errors.Join(err, outputError{werr})
		}
	}
	return err
}

// tell makes the node, goes through the story, and looks at what is left.
func tell(ctx context.Context, text *printer, log io.Writer) (Document, error) {
	doc := Document{Kernel: obs.KernelRelease(), OK: true, Steps: []Step{}}
	before, err := mountPoints()
	if err != nil {
		return doc, err
	}
	n, err := start(ctx, log)
	if err != nil {
		return doc, err
	}
	err = n.story(ctx, text, &doc)
	err = errors.Join(err, n.Close())
	for _, s := range doc.Steps {
		for _, c := range s.Checks {
			doc.OK = doc.OK && c.OK
		}
	}
	left, lerr := leftovers(before, n.sim.Dir)
	doc.Left = left
	doc.OK = doc.OK && len(left) == 0
	if err == nil && lerr == nil {
		text.end(doc)
		err = text.err
	}
	return doc, errors.Join(err, lerr)
}

// leftovers are the mounts that were not there before, and the demo's folder.
func leftovers(before map[string]bool, dir string) ([]string, error) {
	after, err := mountPoints()
	left := []string{}
	for p := range after {
		if !before[p] {
			left = append(left, p)
		}
	}
	if _, serr := os.Stat(dir); serr == nil {
		left = append(left, dir)
	}
	return left, err
}

func mountPoints() (map[string]bool, error) {
	mounts, err := (&mnt.Kernel{}).List()
	points := make(map[string]bool, len(mounts))
	for _, m := range mounts {
		points[m.Point] = true
	}
	return points, err
}

// dataset puts a small dataset on the claim, with a program in it, as an
// administrator would.
func (n *node) dataset() error {
	dir := filepath.Join(n.sim.Claim, "datasets", "mnist")
	return errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "README"), []byte("60,000 small pictures\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"), 0o755),
	)
}

var (
	home    = grant.Mount{Kind: grant.KindFiles, Source: "home/users/ada", Target: "ada", Mode: grant.ReadWrite, AllowExec: true}
	data    = grant.Mount{Kind: grant.KindSharedFolder, Source: "datasets/mnist", Target: "mnist", Mode: grant.ReadOnly}
	escape  = grant.Mount{Kind: grant.KindSharedFolder, Source: "datasets/escape", Target: "escape", Mode: grant.ReadOnly}
	missing = grant.Mount{Kind: grant.KindSharedFolder, Source: "datasets/none", Target: "none", Mode: grant.ReadOnly}
)
