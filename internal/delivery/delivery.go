// Package delivery makes and undoes the mounts of one grant.
//
// The kind of a grant says what it is; its delivery says what the node has to
// do. Kinds that are delivered alike share one: to add a kind that mounts like
// an existing one is an entry in grant's kind table and nothing here.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Delivery makes the mounts of the kinds it serves.
type Delivery interface {
	// Deliver attaches the mount in the Pod's tree and proves that its storage
	// answers. When it fails, something may be half made: the caller calls Undo. A
	// kind that has no use for a Secret leaves c alone.
	Deliver(ctx context.Context, tree *beneath.Dir, m plan.Mount, c Credential) (mnt.Record, error)

	// Undo takes the mount away again. It is bounded, and right to call for a
	// mount that is half made or already gone. While the mount is in use it stays,
	// and the error is mnt.ErrBusy; with detach it goes all the same, from every
	// table at once. That it succeeds does not say that no process has it any more.
	Undo(ctx context.Context, tree *beneath.Dir, target string, detach bool) error

	// Usable says why nothing can be delivered on this node now, nil when
	// something can.
	Usable(ctx context.Context) error

	// Alive asks the storage of a standing mount whether it still answers. on is what
	// it shares with other mounts, which a thread that hangs is charged to.
	Alive(ctx context.Context, tree *beneath.Dir, target string, on ...deadline.Key) error
}

// Credential is the Secret that a grant names, as it was read for this try. The
// zero value stands for none.
type Credential struct {
	Ref  secret.Ref
	Data secret.Data
}

// What a Delivery can be beside that. Its user asks it, by a type assertion.
type (
	// Renewer can make a mount anew whose storage has gone for good.
	Renewer interface {
		// Renewed tells whether what a dead mount was made of is there again, on another
		// filesystem than rec is of. It is bounded, and makes nothing.
		Renewed(ctx context.Context, m plan.Mount, rec mnt.Record) bool
	}

	// Severer makes mounts that are of no use to whoever still has one that is undone:
	// no call into it is answered.
	Severer interface{ Severs() }

	// Releaser keeps something for as long as a mount stands.
	Releaser interface {
		// Unused says that no mount of the grant stands: somebody else than Undo has taken
		// it away.
		Unused(uid, target string)
	}

	// Background makes beside the passes what it mounts: its Deliver says ErrUnderway
	// meanwhile.
	Background interface {
		// Making tells whether what m mounts is being made: there is no use in delivering it.
		Making(uid string, m plan.Mount) bool
		// Abandon says that the grant is not asked for any more. What is being made for it
		// ends, and nothing mounted is touched.
		Abandon(uid, target string)
		// Underway says what is being done while Making.
		Underway() string
	}
)

var (
	_ Renewer  = (*Bind)(nil)
	_ Renewer  = (*Materialize)(nil)
	_ Severer  = (*Process)(nil)
	_ Releaser = (*Materialize)(nil)
	_ Releaser = (*Process)(nil)

	_ Background = (*Materialize)(nil)
	_ Background = (*Process)(nil)
)

// ErrClaimMissing says that the shared claim is not mounted where the agent
// looks for it. Nothing is made there: a home folder created on the agent's own
// disk would be lost with the agent.
var ErrClaimMissing = errors.New("the shared claim is not mounted on this node")

// ErrReadOnly says that what is to be written to can only be read on this node.
var ErrReadOnly = errors.New("the claim, or the filesystem of the source, is mounted read-only on this node")

// ErrTargetTaken says that something other than the agent's own folder stands
// at the target in the tree. Only root on the node can put it there.
var ErrTargetTaken = errors.New("something else stands at the target in the Pod's tree")

// mountPoint makes the place of a mount in the tree, and opens it. It comes last: until
// a mount is there to be attached, the sandbox never sees an empty folder.
func mountPoint(tree *beneath.Dir, target string) (*beneath.Dir, error) {
	if err := tree.Mkdir(target, targetMode); err != nil {
		return nil, err
	}
	dir, err := tree.OpenTarget(target)
	if errors.Is(err, beneath.ErrEscapes) || errors.Is(err, unix.ENOTDIR) {
		return nil, errors.Join(ErrTargetTaken, err)
	}
	return dir, err
}

// Explain is the one place that turns an error of a delivery into the code and
// the sentence of the answer.
func Explain(err error) (grant.Code, string) {
	if code, text := explainFilesystem(err); text != "" {
		return code, text
	}
	if code, text := explainContent(err); text != "" {
		return code, text
	}
	if code, text := explainProcess(err); text != "" {
		return code, text
	}
	if lost, ok := errors.AsType[*beneath.MarkError](err); ok {
		return grant.CodeMountFailed, lost.Error() + ": it drops the sticky bit, or sets modes itself, and the sandbox user could not write there: " +
			"make the folder on the claim and give it to that user, or use storage that keeps modes"
	}
	switch {
	case errors.Is(err, ErrTargetTaken):
		return grant.CodeMountFailed, ErrTargetTaken.Error()
	case errors.Is(err, beneath.ErrEscapes):
		return grant.CodeInvalidSource, "the source leads outside the shared claim or through a symbolic link: name the real folder"
	case errors.Is(err, unix.ENOTDIR):
		return grant.CodeInvalidSource, "the source is not a folder"
	case errors.Is(err, unix.ENAMETOOLONG):
		return grant.CodeInvalidSource, "a name in the source is too long for the filesystem"
	case errors.Is(err, ErrClaimMissing):
		return grant.CodeMountFailed, ErrClaimMissing.Error() + ": check the agent's volume and --shared-root"
	case errors.Is(err, ErrReadOnly), errors.Is(err, unix.EROFS):
		return grant.CodeMountFailed, ErrReadOnly.Error() + ": mount it writable, or grant it ro"
	case errors.Is(err, beneath.ErrNotWritable):
		return grant.CodeMountFailed, "the storage made the new folder unwritable for the sandbox user: " + reason(err)
	case errors.Is(err, beneath.ErrMounted):
		return grant.CodeMountFailed, "another mount stands at the target: the agent looks again by itself"
	case errors.Is(err, deadline.ErrHung):
		return grant.CodeMountFailed, "the storage does not answer: the agent goes on trying"
	case errors.Is(err, proof.ErrDeleted):
		return grant.CodeMountFailed, proof.ErrDeleted.Error() + ": revoke it, and grant it again"
	case errors.Is(err, fs.ErrNotExist):
		return grant.CodeMountFailed, "the source does not exist: create it, or grant another one"
	}
	return grant.CodeMountFailed, "the mount failed: " + reason(err)
}

// reason is the kernel's own word for an error, without the node's paths: no error
// gets into an answer by another way.
func reason(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return fmt.Sprintf("%s (%s)", unix.ErrnoName(errno), errno.Error())
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err.Error()
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err.Error()
	}
	return err.Error()
}

// ofSystem tells whether an error is one of the system's, which may have paths in it.
func ofSystem(err error) bool {
	_, errno := errors.AsType[unix.Errno](err)
	_, path := errors.AsType[*fs.PathError](err)
	_, link := errors.AsType[*os.LinkError](err)
	return errno || path || link
}
