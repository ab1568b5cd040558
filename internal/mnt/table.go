// Package mnt is the node's mount table. Nothing else in the agent mounts or
// unmounts (a test enforces it).
//
// A mount is described by what it is, not by how it is reached: device, root
// within that device, flags. Places are beneath.Dir descriptors, so a path is
// never resolved a second time between a check and a mount call.
package mnt

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// ErrBusy is returned by Unmount where the kernel says EBUSY: a process has a
// file open or its working directory inside, or another mount stands beneath.
var ErrBusy = errors.New("busy")

// ErrNotMounted is returned by Unmount for a name that no mount stands on.
var ErrNotMounted = errors.New("no mount stands here")

// ErrUnsupported is returned by Probe for a kernel without the calls that a
// correct mount needs.
var ErrUnsupported = errors.New("this kernel cannot set mount attributes before a mount is attached (mount_setattr, Linux 5.12)")

// Flags are the per-mount attributes a grant can have. There is no flag that
// weakens a mount: attributes are only ever set, never cleared.
type Flags uint8

// The attributes, as in mount_setattr(2).
const (
	ReadOnly Flags = 1 << iota
	NoSUID
	NoDev
	NoExec
)

// PublicationFlags are those of a publication's own mount. The grants in it have
// each their own.
const PublicationFlags = ReadOnly | NoSUID | NoDev | NoExec

var flagTable = [...]struct {
	flag Flags
	name string // in mountinfo
	attr uint64 // in mount_setattr
}{
	{ReadOnly, "ro", unix.MOUNT_ATTR_RDONLY},
	{NoSUID, "nosuid", unix.MOUNT_ATTR_NOSUID},
	{NoDev, "nodev", unix.MOUNT_ATTR_NODEV},
	{NoExec, "noexec", unix.MOUNT_ATTR_NOEXEC},
}

// String lists the set attributes as mount options, "rw" where ReadOnly is not
// among them: "rw,nosuid,nodev".
func (f Flags) String() string {
	var names []string
	if f&ReadOnly == 0 {
		names = append(names, "rw")
	}
	for _, n := range flagTable {
		if f&n.flag != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ",")
}

// attrs are the attributes as mount_setattr(2) and fsmount(2) take them.
func (f Flags) attrs() uint64 {
	var attrs uint64
	for _, n := range flagTable {
		if f&n.flag != 0 {
			attrs |= n.attr
		}
	}
	return attrs
}

// ParseFlags reads the per-mount options of mountinfo ("ro,nosuid,relatime").
// Options that are no Flags are ignored.
func ParseFlags(options string) Flags {
	var f Flags
	for opt := range strings.SplitSeq(options, ",") {
		for _, n := range flagTable {
			if opt == n.name {
				f |= n.flag
			}
		}
	}
	return f
}

// Dev is a device number, as mountinfo and statx name a filesystem.
type Dev struct {
	Major, Minor uint32
}

// String is "major:minor".
func (d Dev) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Record is what the journal keeps of a mount, taken when it was made. It
// recognises the mount again after a restart of the agent.
type Record struct {
	Dev  Dev    `json:"dev"`
	Root string `json:"root"` // the directory within the filesystem that is mounted
	// Inode is the root directory's: it stays when the directory is renamed, and
	// Root does not.
	Inode uint64 `json:"inode,omitempty"`
	Flags Flags  `json:"flags"`
	// ID is the kernel's unique mount id (Linux 6.8), 0 where there is none. It
	// is never reused, but it is another one in another mount namespace.
	ID uint64 `json:"id,omitempty"`
}

// SameAs tells whether the mount at p has the directory that r recorded as its
// root, under whatever name.
func (r Record) SameAs(p Place) bool {
	return p.MountRoot && p.Dev == r.Dev && p.Inode == r.Inode && r.Inode != 0
}

// Now is r under the name that the folder has at p, where that is the same
// folder: it may have been renamed since it was mounted.
func (r Record) Now(p Place) Record {
	if p.Root != "" && r.SameAs(p) {
		r.Root = p.Root
	}
	return r
}

// Matches tells whether m is the mount that r recorded: same filesystem, same
// root, and at least the flags it was made with.
func (r Record) Matches(m Mount) bool {
	return m.Dev == r.Dev && m.Root == r.Root && m.Flags&r.Flags == r.Flags
}

// Covers tells whether m is a mount of the folder that r recorded, or of one in
// it. One that has been deleted since is still covered: mountinfo says
// "root//deleted".
func (r Record) Covers(m Mount) bool {
	const deleted = "//deleted"
	return m.Dev == r.Dev && Within(strings.TrimSuffix(r.Root, deleted), strings.TrimSuffix(m.Root, deleted))
}

// Mount is one line of a mount table.
type Mount struct {
	ID, Parent int // mountinfo ids: reused once the mount is gone
	Dev        Dev
	Root       string // directory within the filesystem
	Point      string // where it is attached, in the reader's namespace
	Flags      Flags  // per mount, not of the superblock
	FSType     string
	Source     string
	Peer       int // peer group ("shared:N"), 0 when none
	Master     int // the peer group it is a slave of ("master:N"), 0 when none
}

// Place is what stands at an open directory.
type Place struct {
	Dev   Dev
	Inode uint64
	// Root is the root of the mount within its filesystem, under its present
	// name; "" where the kernel does not tell (before Linux 6.8).
	Root string
	ID   uint64 // unique mount id, 0 where the kernel has none
	// MountRoot: the directory is the root of a mount, not a plain directory.
	MountRoot bool
}

// Connection is one FUSE connection, and never another one.
type Connection interface {
	// Abort ends it: calls into its filesystem that wait, and all later ones, fail. Where
	// it has gone already, it does nothing.
	Abort() error
	Close()
}

// Table makes, finds and removes mounts. Implementations are safe for
// concurrent use. The kernel's is Kernel; mnttest has one in memory. Both pass
// mnttest.Conform.
type Table interface {
	// NewTree mounts a small tmpfs on the directory, in a peer group of its own.
	// It is where the grants of one Pod are attached.
	NewTree(on *beneath.Dir) (Record, error)

	// Publish attaches a read-only slave of tree, with the grants that stand in
	// it, on the Pod's volume. What is attached to the tree later arrives there;
	// nothing attached there ever reaches the tree.
	Publish(tree, volume *beneath.Dir) (Record, error)

	// Bind attaches a private copy of source, and of the mounts beneath it, on
	// target, with flags (and NoSUID and NoDev always) set on each before any of
	// them is attached.
	Bind(source, target *beneath.Dir, flags Flags) (Record, error)

	// Mount makes a mount of a filesystem, attached nowhere, with flags (and NoSUID
	// and NoDev always) from its first instant. It asks the filesystem's server,
	// where it has one, and may not return: callers put a deadline around it. A
	// superblock that speaks to a network keeps the network namespace of the thread
	// that calls. Errors: ErrNoFilesystem, *KernelError.
	Mount(fs Filesystem, flags Flags) (Detached, error)

	// Attach attaches what Mount made on target.
	Attach(m Detached, target *beneath.Dir) (Record, error)
	// Swap attaches what Mount made in the place of the mount that stands on the
	// directory name in dir, and detaches that one, whoever uses it. Where the kernel
	// can (Linux 6.5), there is no instant without a mount. One that fails leaves what it
	// found, or what the next one takes away. Errors: ErrNotMounted.
	Swap(m Detached, dir *beneath.Dir, name string) (Record, error)
	// Connection opens the FUSE connection of the filesystem that has this device number
	// now. Numbers are given again at once: it is to be opened while a mount of the
	// filesystem is known to stand, and asked afterwards.
	Connection(dev Dev) (Connection, error)

	// Unmount takes exactly one mount, the topmost, off the directory name in
	// dir. With lazy it is detached although it is in use (MNT_DETACH): it goes
	// from the table at once, and processes inside keep what they have.
	// Errors: ErrBusy, ErrNotMounted.
	Unmount(dir *beneath.Dir, name string, lazy bool) error

	// At says what stands at dir. It reads no mount table and asks no server.
	At(dir *beneath.Dir) (Place, error)

	// InMemory tells whether dir lies on a tmpfs. It asks the filesystem.
	InMemory(dir *beneath.Dir) (bool, error)

	// Probe tells whether correct mounts can be made at all, by making a detached
	// one of dir and dropping it. Errors: ErrUnsupported, EPERM.
	Probe(dir *beneath.Dir) error

	// Children are the mounts that stand on the mount which dir lies on, and not
	// those on them; FSType and Source are "". Before Linux 6.8 it reads the whole
	// table.
	Children(dir *beneath.Dir) ([]Mount, error)

	// List reads the whole mount table, 5–10 µs a mount: for the start and for
	// the slow sweep, never for one grant.
	List() ([]Mount, error)
}
