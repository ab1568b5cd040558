// Package proof gathers evidence that a mount is what was granted: that its
// storage answers, and that the Pod's containers see it.
package proof

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
)

// ErrNotAMount says that a plain directory stands where a mount should.
var ErrNotAMount = errors.New("the mount is not there")

// ErrDeleted says that the mounted folder was deleted on its storage. The mount
// stands; nothing can be read or made in it.
var ErrDeleted = errors.New("the folder was deleted while it was mounted")

// Storage asks mounts in a tree whether their storage answers.
type Storage struct {
	Table  mnt.Table
	Budget *deadline.Budget
	// Bound is how long the storage may take.
	Bound time.Duration
	// PerMount is how many threads one mount may cost while it hangs.
	PerMount int
}

// Per filesystem, how many calls may be under way, and how many threads may hang: in all
// of it, and in some folders while others answer. Those may be the homes of more people
// than a node has Pods.
const (
	callsPerFilesystem     = 16
	threadsPerFilesystem   = 24
	scatteredPerFilesystem = 128
)

// Filesystem is what a thread is charged to that a filesystem hangs, so that one that
// is dead leaves the others alone, whatever lies on it and whoever asks.
func Filesystem(dev mnt.Dev) deadline.Key {
	return deadline.Key{Name: "filesystem:" + dev.String(), Limit: threadsPerFilesystem, AtOnce: callsPerFilesystem, Scattered: scatteredPerFilesystem}
}

// Answers opens the mount at target, compares it with the record (where one is
// given), and reads its directory: a call that reaches the storage, not a
// cached attribute. A thread that hangs is charged to on, too. Errors: ErrNotAMount,
// deadline.ErrHung, or the storage's.
func (s *Storage) Answers(ctx context.Context, tree *beneath.Dir, target string, rec *mnt.Record, on ...deadline.Key) error {
	keys := append([]deadline.Key{{Name: "mount:" + tree.Path() + "/" + target, Limit: s.PerMount}}, on...)
	_, err := deadline.On(ctx, s.Budget, s.Bound, tree, func(tree *beneath.Dir) (struct{}, error) {
		return struct{}{}, s.answers(tree, target, rec)
	}, keys...)
	return err
}

// answers closes tree: what follows may hang, and must not keep the tree busy.
func (s *Storage) answers(tree *beneath.Dir, target string, rec *mnt.Record) error {
	dir, err := tree.Open(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	tree.Close()
	place, err := s.Table.At(dir)
	if err != nil {
		return err
	}
	if !place.MountRoot || rec != nil && place.ID != rec.ID {
		return fmt.Errorf("%s: %w", dir.Path(), ErrNotAMount)
	}
	return Reads(dir)
}

// Reads reads the directory, and then asks its server: a client keeps names and
// attributes, and some of them open a folder without a question, so that reading
// alone goes on well for long after a server has gone. A storage that squashes root
// may refuse the agent what it gives the user. That is an answer too. It may hang.
// Errors: ErrDeleted, or the storage's.
func Reads(dir *beneath.Dir) error {
	// A fresh description of the same directory: O_PATH descriptors read nothing.
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(dir.Fd()))
	if errors.Is(err, fs.ErrPermission) {
		return Asks(dir)
	}
	if err != nil {
		return deleted(err)
	}
	defer f.Close()
	if _, err := f.ReadDir(1); err != nil && !errors.Is(err, io.EOF) {
		return deleted(err)
	}
	return Asks(dir)
}

// Asks asks the server of a directory for its attributes, whatever the client keeps
// of them. It may hang. Errors: ErrDeleted, or the storage's.
func Asks(dir *beneath.Dir) error {
	var stx unix.Statx_t
	return deleted(beneath.Uninterrupted(func() error {
		return unix.Statx(dir.Fd(), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &stx)
	}))
}

// AsksServer asks a filesystem how much room it has. The kernel keeps no answer to that,
// and a process that serves something far away asks there. It may hang.
func AsksServer(root *beneath.Dir) error {
	var room unix.Statfs_t
	return beneath.Uninterrupted(func() error { return unix.Fstatfs(root.Fd(), &room) })
}

// deleted tells a directory that is no more from a storage that fails: servers say so
// in these two ways.
func deleted(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return fmt.Errorf("%w: %w", ErrDeleted, err)
	}
	return err
}
