// Package charts carries the Helm chart, so that a program installs the agents of
// its own version and nobody looks for the chart that fits.
package charts

import (
	"embed"
	"io/fs"
)

// all: names that begin with an underscore or a dot are part of a chart, and
// embed leaves them out otherwise.
//
//go:embed all:node-mounts
var files embed.FS

// NodeMounts returns the chart node-mounts, with Chart.yaml at its root.
func NodeMounts() (fs.FS, error) { return fs.Sub(files, "node-mounts") }
