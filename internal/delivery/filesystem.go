package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Filesystem delivers kinds that the kernel mounts itself: NFS exports. Nothing
// runs afterwards.
//
// How it is undone: like a bind, by one umount. Where it was the last of its
// superblock, that thread also says good-bye to the server, and waits for one that
// has gone as long as the soft timeout; so it is a thread that may be lost, and the
// mount is out of every table before it waits.
//
// What an agent finds that was killed in the middle: nothing, or an empty folder in
// the tree. A mount is attached nowhere until it has answered, and one that is
// attached nowhere ends with the process.
//
// What the sandbox sees when the server goes: calls wait for the soft timeout and
// then say EIO. Nothing becomes an empty folder. When the server is back, so is the
// mount.
type Filesystem struct {
	Table mnt.Table
	NFS   NFS
	// Bound is how long a server may take to accept a connection, then to mount, and
	// later to answer a question; and how long an undoing may take. A pass over the
	// Pod waits as long, so it is less than the soft timeout: a server that is slower
	// is asked again later.
	Bound time.Duration
	// Budget counts the threads that servers hang.
	Budget *deadline.Budget
}

var _ Delivery = (*Filesystem)(nil)

const (
	// threadsPerServer is how many threads one server may cost while it hangs, and
	// callsPerServer how many it may cost at once: each comes back after the soft timeout
	// at the latest. Both for what is mounted, and again for what is being mounted.
	threadsPerServer = 6
	callsPerServer   = 4
	threadsPerExport = 1
)

// Server is what a thread is charged to that hangs in a standing mount of an export: all
// that is mounted of the server hangs with it. What is being mounted has a budget of its
// own: it asks more of the server, its portmapper for one, and that this is silent says
// nothing of what stands.
func Server(source string) []deadline.Key {
	export, err := parseExport(source)
	if err != nil {
		return nil
	}
	return []deadline.Key{export.key("server:")}
}

func (e export) key(of string) deadline.Key {
	return deadline.Key{Name: of + e.host, Limit: threadsPerServer, AtOnce: callsPerServer}
}

// Deliver implements Delivery. The mount point is made last: a grant that is
// refused never shows the sandbox an empty folder.
func (f *Filesystem) Deliver(ctx context.Context, tree *beneath.Dir, m plan.Mount, _ Credential) (mnt.Record, error) {
	export, err := parseExport(m.Source())
	if err != nil {
		return mnt.Record{}, err
	}
	addresses, err := f.NFS.resolve(ctx, export.host, f.Bound)
	if err != nil {
		return mnt.Record{}, err
	}
	made, err := deadline.Do(ctx, f.Budget, 2*f.Bound,
		func() (mnt.Detached, error) {
			return f.NFS.mount(f.Table, export, addresses, f.Bound, m.ReadOnly(), flags(m))
		},
		mnt.Detached.Close,
		deadline.Key{Name: "export:" + m.Source(), Limit: threadsPerExport},
		export.key("mounting:"))
	if errors.Is(err, deadline.ErrHung) {
		return mnt.Record{}, &ServerError{Server: export.host, Reason: "accepts connections but does not answer: see whether its NFS service runs", Err: err}
	}
	if err != nil {
		return mnt.Record{}, err
	}
	defer made.Close()
	target, err := mountPoint(tree, m.Target())
	if err != nil {
		return mnt.Record{}, err
	}
	defer target.Close()
	return f.Table.Attach(made, target)
}

// Undo implements Delivery.
func (f *Filesystem) Undo(ctx context.Context, tree *beneath.Dir, target string, detach bool) error {
	return patient{f.Table, f.Budget, f.Bound}.unmount(ctx, tree, target, detach)
}

// Usable implements Delivery: a node whose kernel has no NFS client serves every
// other kind, and says so to the grants that need it.
func (f *Filesystem) Usable(context.Context) error { return nil }

// Alive implements Delivery. The attributes of the root are asked of the server
// itself: what the client has cached, a list of names included, it goes on
// answering for a minute after the server has gone.
func (f *Filesystem) Alive(ctx context.Context, tree *beneath.Dir, target string, on ...deadline.Key) error {
	return patient{f.Table, f.Budget, f.Bound}.ask(ctx, "mount:", tree, target, proof.Asks, on...)
}

// explainFilesystem is Explain for what servers and Secrets are refused by, "" for
// other errors. It comes first: the errno that such an error carries means
// something else there than in a mount of the claim.
func explainFilesystem(err error) (grant.Code, string) {
	if refused, ok := errors.AsType[*secret.RefusedError](err); ok {
		return grant.CodeSecretRefused, refused.Reason
	}
	server, ok := errors.AsType[*ServerError](err)
	switch {
	case errors.Is(err, secret.ErrUnavailable):
		return grant.CodeMountFailed, "the API server does not answer for the Secret: the agent goes on trying"
	case errors.Is(err, ErrNoClient):
		return grant.CodeMountFailed, ErrNoClient.Error()
	case ok && errors.Is(err, ErrServerRefused):
		return grant.CodeInvalidSource, server.Error()
	case ok:
		return grant.CodeMountFailed, server.Error()
	}
	return "", ""
}
