package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/proof"
)

// patient does to mounts what a server or a process that hangs may keep from ever
// ending. It waits for its bound, and a mount costs one thread however often it is
// tried.
type patient struct {
	table  mnt.Table
	budget *deadline.Budget
	bound  time.Duration
}

// unmount is the function of that name.
func (p patient) unmount(ctx context.Context, tree *beneath.Dir, target string, detach bool) error {
	return p.do(ctx, "unmount:", tree, target, func(tree *beneath.Dir) error {
		return unmount(ctx, p.table, tree, target, detach)
	})
}

// ask puts a question to whoever serves the mount at target. The thread that it hangs
// is charged to what and the mount, and to what the mount is on.
func (p patient) ask(ctx context.Context, what string, tree *beneath.Dir, target string, question func(root *beneath.Dir) error, on ...deadline.Key) error {
	return p.do(ctx, what, tree, target, func(tree *beneath.Dir) error {
		dir, err := tree.Open(target)
		if err != nil {
			return err
		}
		defer dir.Close()
		tree.Close() // the question may hang, and must not keep the tree busy
		place, err := p.table.At(dir)
		if err != nil {
			return err
		}
		if !place.MountRoot {
			return fmt.Errorf("%s: %w", dir.Path(), proof.ErrNotAMount)
		}
		return question(dir)
	}, on...)
}

func (p patient) do(ctx context.Context, what string, tree *beneath.Dir, target string, call func(tree *beneath.Dir) error, on ...deadline.Key) error {
	keys := append([]deadline.Key{{Name: what + tree.Path() + "/" + target, Limit: 1}}, on...)
	_, err := deadline.On(ctx, p.budget, p.bound, tree, func(tree *beneath.Dir) (struct{}, error) {
		return struct{}{}, call(tree)
	}, keys...)
	return err
}
