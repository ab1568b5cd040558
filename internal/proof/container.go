package proof

import (
	"errors"
	"fmt"
	"path"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

// ErrUnknown says that no proof is possible now: no container that mounts the
// volume is running, or its processes cannot be seen. It is neither a yes nor
// a no.
var ErrUnknown = errors.New("no container's view of the mounts can be read yet")

// Views reads mount tables of processes. *procs.Finder is one.
type Views interface {
	Mounts(p procs.Process) ([]mnt.Mount, error)
}

// View is the mount table that one running container has.
type View struct {
	Use    plan.Use
	Mounts []mnt.Mount
}

// Of reads the view of every running container among uses, in which a process
// among ps is found. ErrUnknown when there is none at all; a container that has
// just ended is left out.
func Of(views Views, uses []plan.Use, ps []procs.Process) ([]View, error) {
	var out []View
	for _, u := range uses {
		if u.ID == "" {
			continue
		}
		mounts, err := first(views, u.ID, ps)
		switch {
		case errors.Is(err, procs.ErrGone):
			continue
		case err != nil:
			return nil, err
		}
		out = append(out, View{Use: u, Mounts: mounts})
	}
	if len(out) == 0 {
		return nil, ErrUnknown
	}
	return out, nil
}

// first reads the table of the container's oldest process that is still there:
// its init, before anything that the tenant started with a table of its own.
func first(views Views, id string, ps []procs.Process) ([]mnt.Mount, error) {
	for _, p := range ps {
		if p.Container != id {
			continue
		}
		mounts, err := views.Mounts(p)
		if errors.Is(err, procs.ErrGone) {
			continue
		}
		return mounts, err
	}
	return nil, fmt.Errorf("container %s: %w", id, procs.ErrGone)
}

// Sees tells whether the container has the mount that rec records at target,
// with the flags it was made with.
func (v View) Sees(target string, rec mnt.Record) bool {
	point := path.Join(v.Use.Path, target)
	for _, m := range v.Mounts {
		if m.Point == point && rec.Matches(m) {
			return true
		}
	}
	return false
}
