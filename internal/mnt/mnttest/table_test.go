package mnttest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
)

func TestTheTableInMemoryConforms(t *testing.T) {
	mnttest.Conform(t, func(t *testing.T) mnttest.Bench { return newBench(t) })
}

type bench struct {
	table               *mnttest.Table
	root, volume, claim string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{table: mnttest.New(), root: filepath.Join(dir, "root"), volume: filepath.Join(dir, "volume"), claim: filepath.Join(dir, "claim")}
	for _, d := range []string{b.root, b.volume, b.claim} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.table.MountTmpfs(b.volume)
	b.table.MountDisk(b.claim)
	return b
}

func (b *bench) Table() mnt.Table                 { return b.table }
func (b *bench) Root() string                     { return b.root }
func (b *bench) Volume() string                   { return b.volume }
func (b *bench) Claim() string                    { return b.claim }
func (b *bench) Mount(_ *testing.T, point string) { b.table.MountDisk(point) }

func (b *bench) MakePrivate(_ *testing.T, point string) { b.table.MakePrivate(point) }

func (b *bench) Container(t *testing.T) mnttest.Container {
	v := b.table.Container(b.volume)
	t.Cleanup(v.Stop)
	return container{v}
}

type container struct{ *mnttest.View }

func (c container) Mounts(*testing.T) []mnt.Mount { return c.View.Mounts() }

func (c container) Hold(_ *testing.T, target string) func() { return c.View.Hold(target) }
