package mnt

import (
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// Probe implements Table.
func (k *Kernel) Probe(dir *beneath.Dir) error {
	fd, err := clone(dir)
	if err == nil {
		defer unix.Close(fd)
		err = setattr(fd, unix.AT_RECURSIVE, ReadOnly|NoSUID|NoDev, unix.MS_PRIVATE)
	}
	return probed(dir, err)
}

func probed(dir *beneath.Dir, err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return wrap("probe mount_setattr on", dir, err)
	}
	return nil
}

// Shared tells whether the mount that p lies on is in a peer group, so that
// what is mounted beneath it reaches the node and its Pods.
func Shared(mounts []Mount, p string) bool {
	m, ok := Covering(mounts, p)
	return ok && m.Peer != 0
}

// Covering finds the mount that the absolute path p lies on, by walking p over
// the mounts as the kernel does. Neither the longest mount point nor the last
// line is the answer: a mount may be hidden beneath another that is attached
// further up, and one that arrives by propagation goes beneath what stands
// there already.
func Covering(mounts []Mount, p string) (Mount, bool) {
	listed := make(map[int]bool, len(mounts))
	for _, m := range mounts {
		listed[m.ID] = true
	}
	cur, found := entered(mounts, p, func(m Mount) bool { return m.Parent == m.ID || !listed[m.Parent] })
	for range mounts {
		next, ok := entered(mounts, p, func(m Mount) bool { return m.Parent == cur.ID && m.ID != cur.ID })
		if !ok {
			break
		}
		cur = next
	}
	return cur, found
}

// Beneath is the part of a mount table that a path from p downwards can lie on:
// the mount that p lies on, and those beneath p that stand on it, at any depth.
// Covering finds the same in it as in the whole.
func Beneath(mounts []Mount, p string) []Mount {
	on, ok := Covering(mounts, p)
	if !ok {
		return nil
	}
	children := make(map[int][]Mount, len(mounts))
	for _, m := range mounts {
		if m.ID != m.Parent && Within(p, m.Point) {
			children[m.Parent] = append(children[m.Parent], m)
		}
	}
	part := []Mount{on}
	for i := 0; i < len(part); i++ {
		part = append(part, children[part[i].ID]...)
		delete(children, part[i].ID)
	}
	return part
}

// entered is the mount among those with this parent that a walk along p meets
// first: the one attached furthest up.
func entered(mounts []Mount, p string, hasParent func(Mount) bool) (first Mount, found bool) {
	for _, m := range mounts {
		if hasParent(m) && Within(m.Point, p) && (!found || len(m.Point) < len(first.Point)) {
			first, found = m, true
		}
	}
	return first, found
}

// Within tells whether the absolute path p is dir or lies beneath it.
func Within(dir, p string) bool {
	dir, p = path.Clean(dir), path.Clean(p)
	return p == dir || dir == "/" || len(p) > len(dir) && p[:len(dir)] == dir && p[len(dir)] == '/'
}
