package delivery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/thread"
)

// NFS says how exports are mounted, and of which servers.
type NFS struct {
	Servers Servers
	// SoftTimeout is how long a call into a mount waits for a server before it
	// fails with EIO.
	SoftTimeout time.Duration
	// HostProc is /proc/<pid> of a process of the node itself, whose network the
	// mounts are to speak through. "" is the agent's own network.
	HostProc string
	// Resolve looks a name up.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// HostProc is the node's first process, as an agent with hostPID sees it.
const HostProc = "/proc/1"

// DefaultSoftTimeout is the soft timeout of an agent that is not told another.
const DefaultSoftTimeout = 30 * time.Second

// ServerError says what is wrong with a server, or with the node's way to it.
type ServerError struct {
	Server string
	Reason string // the second half of a sentence that starts with the server
	Err    error
}

func (e *ServerError) Error() string { return fmt.Sprintf("the NFS server %s %s", e.Server, e.Reason) }

func (e *ServerError) Unwrap() error { return e.Err }

// ErrNoClient says that the node's kernel cannot mount NFS.
var ErrNoClient = errors.New("this node's kernel has no NFS client: load its modules (modprobe nfsv4), and install the package that has them where there are none")

// nfsPort is where every version is spoken to. NFS 3 has another service besides,
// mountd, whose port the server's portmapper tells.
const (
	nfsPort        = 2049
	portmapperPort = 111
)

// retransmissions within one soft timeout. Over TCP the kernel waits timeo for an
// answer, and one timeo more after each (nfs_init_timeout_values).
const retransmissions = 2

// export is a source, taken apart.
type export struct {
	host string // a name or an address, without brackets
	path string // absolute
}

// parseExport takes apart what grant has checked already.
func parseExport(source string) (export, error) {
	i := strings.Index(source, ":/")
	if i <= 0 {
		return export{}, fmt.Errorf("the source %q is no export", source)
	}
	return export{host: strings.Trim(source[:i], "[]"), path: source[i+1:]}, nil
}

// resolve finds the addresses of a server that may be mounted from. What is
// mounted is an address that was checked, never the name: a second look-up could
// answer with another.
func (n NFS) resolve(ctx context.Context, host string, bound time.Duration) ([]netip.Addr, error) {
	addresses := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		addresses = append(addresses, a)
	} else {
		if !n.Servers.mayName(host) {
			return nil, refuseServer(host, "is not among those that this node mounts from (--nfs-servers)")
		}
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		if addresses, err = n.Resolve(ctx, host); err != nil {
			return nil, &ServerError{Server: host, Reason: "has no address: " + dnsReason(err), Err: err}
		}
	}
	var allowed []netip.Addr
	reason := "has no address"
	for _, a := range addresses {
		a = a.Unmap()
		if why := n.Servers.refuses(host, a); why != "" {
			reason = why
		} else if !slices.Contains(allowed, a) {
			allowed = append(allowed, a)
		}
	}
	if len(allowed) == 0 {
		return nil, refuseServer(host, reason)
	}
	return allowed, nil
}

func dnsReason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return "the name does not exist"
	}
	return "the name could not be looked up"
}

// ErrServerRefused says that configuration keeps the node from a server.
var ErrServerRefused = errors.New("refused by configuration")

func refuseServer(host, reason string) error {
	return &ServerError{Server: host, Reason: reason, Err: ErrServerRefused}
}

// version3 is the last to be tried, and for read-only grants alone: its locks need
// rpcbind and statd on the node. Without those two sandboxes would both be given the
// lock that they ask for, which is no loss where neither can write.
const version3 = "3"

// versions are tried in this order.
func versions(readOnly bool) []string {
	all := []string{"4.2", "4.1", "4.0"}
	if readOnly {
		all = append(all, version3)
	}
	return all
}

// mount mounts the export, attached nowhere.
func (n NFS) mount(table mnt.Table, e export, addresses []netip.Addr, bound time.Duration, readOnly bool, flags mnt.Flags) (m mnt.Detached, err error) {
	err = thread.Own(func() (err error) {
		m, err = n.mountHere(table, e, addresses, bound, readOnly, flags)
		return err
	})
	return m, err
}

// mountHere is mount, on a thread of its own: that enters the node's network.
func (n NFS) mountHere(table mnt.Table, e export, addresses []netip.Addr, bound time.Duration, readOnly bool, flags mnt.Flags) (mnt.Detached, error) {
	if err := enterHost(n.HostProc); err != nil {
		return nil, fmt.Errorf("entering the node's network: %w", err)
	}
	var server, client netip.Addr
	var err error
	for _, server = range addresses {
		if client, err = reach(server, nfsPort, bound/time.Duration(len(addresses))); err == nil {
			break
		}
	}
	if err != nil {
		return nil, &ServerError{Server: e.host, Reason: fmt.Sprintf("cannot be reached at %s, port %d: %s", server, nfsPort, reason(err)), Err: err}
	}
	if client == server && !n.Servers.lists(server) {
		// An address of the node's that is not loopback: only the connection tells.
		return nil, refuseServer(e.host, isNode)
	}
	for _, version := range versions(readOnly) {
		if version == version3 {
			if err := portmapper(server, e, bound); err != nil {
				return nil, err
			}
		}
		var m mnt.Detached
		m, err = table.Mount(mnt.Filesystem{
			Type: driver(version), Source: sourceOf(server, e), Settings: n.settings(server, client, version), ReadOnly: readOnly,
		}, flags)
		if err == nil {
			return m, nil
		}
		// What a server, or this kernel, says of a version it does not have.
		if !errors.Is(err, unix.EPROTONOSUPPORT) && !isUnknownVersion(err) {
			break
		}
	}
	return nil, explained(e, readOnly, err)
}

// portmapper tries what the kernel asks first where it speaks NFS 3: a firewall that
// is silent would cost it a thread. Half the bound is left for the mount.
func portmapper(server netip.Addr, e export, bound time.Duration) error {
	_, err := reach(server, portmapperPort, bound/2)
	if err != nil {
		return &ServerError{Server: e.host, Reason: fmt.Sprintf("%s, and its portmapper, which NFS 3 needs, cannot be reached at %s, port %d: %s",
			noneOf(versions(false)), server, portmapperPort, reason(err)), Err: err}
	}
	return nil
}

// driver is the version's filesystem, as the kernel calls it.
func driver(version string) string {
	if version == version3 {
		return "nfs"
	}
	return "nfs4"
}

// sourceOf names the export to the kernel, and to whoever reads a mount table.
func sourceOf(server netip.Addr, e export) string {
	host := e.host
	if server.Is6() && strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + e.path
}

// settings are the options of the kernel's NFS client. nosharecache keeps every
// grant on a superblock of its own: a mount table shows "/" as the root of every
// NFS mount whatever its export, so the device is all that tells two of them
// apart, and a read-only grant must not lend its superblock to a writable one.
//
// In NFS 3 the kernel also speaks to the portmapper and to mountd. They are told to
// be at the same address; of what a portmapper answers it takes the port alone.
func (n NFS) settings(server, client netip.Addr, version string) []mnt.Setting {
	proto := "tcp"
	if server.Is6() {
		proto = "tcp6"
	}
	deciseconds := max(1, int(n.SoftTimeout/(retransmissions+1)/(100*time.Millisecond)))
	settings := []mnt.Setting{
		{Key: "addr", Value: server.String()},
		{Key: "proto", Value: proto},
		{Key: "vers", Value: version},
		{Key: "soft"},
		{Key: "timeo", Value: strconv.Itoa(deciseconds)},
		{Key: "retrans", Value: strconv.Itoa(retransmissions)},
		{Key: "nosharecache"},
	}
	if version != version3 {
		return append(settings, mnt.Setting{Key: "clientaddr", Value: client.String()})
	}
	return append(settings,
		mnt.Setting{Key: "port", Value: strconv.Itoa(nfsPort)}, // or the portmapper is asked for it
		mnt.Setting{Key: "mountaddr", Value: server.String()},
		mnt.Setting{Key: "mountproto", Value: proto},
		mnt.Setting{Key: "nolock"})
}

func isUnknownVersion(err error) bool {
	k, ok := errors.AsType[*mnt.KernelError](err)
	return ok && k.Step == "vers"
}

// isWithoutModule tells a kernel that lacks a version from a server that does: both
// say EPROTONOSUPPORT, and only the kernel says this.
func isWithoutModule(err error) bool {
	k, ok := errors.AsType[*mnt.KernelError](err)
	return ok && strings.Contains(k.Words, "Version unavailable")
}

// noneOf is the second half of a sentence that starts with the server.
func noneOf(versions []string) string {
	return fmt.Sprintf("and this node have none of NFS %s in common", strings.Join(versions, ", "))
}

const upgrade = "turn NFS 4 on at the server"

// noVersion says what to do about a server that was asked for every version.
func noVersion(readOnly bool, err error) string {
	switch without := isWithoutModule(err); {
	case without && readOnly:
		return noneOf(versions(false)) + ", and this node's kernel has no NFS 3: load its module (modprobe nfsv3), or " + upgrade
	case without:
		return noneOf(versions(false)) + ": load the module of this node's kernel (modprobe nfsv4)"
	case !readOnly:
		return noneOf(versions(false)) + ", and NFS 3 is for read-only grants alone, because its locks do not hold between sandboxes: grant it read-only, or " + upgrade
	}
	return noneOf(versions(true)) + ": " + upgrade
}

// explained says what the kernel's error means where it means one thing.
func explained(e export, readOnly bool, err error) error {
	says := ""
	if k, ok := errors.AsType[*mnt.KernelError](err); ok && k.Words != "" {
		says = " (" + k.Words + ")"
	}
	refused := func(format string, args ...any) error {
		return &ServerError{Server: e.host, Reason: fmt.Sprintf(format, args...) + says, Err: err}
	}
	switch {
	case errors.Is(err, mnt.ErrNoFilesystem):
		return errors.Join(ErrNoClient, err)
	case errors.Is(err, unix.ENOENT):
		return refused("has no export %s for this node", e.path)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return refused("does not let this node mount %s", e.path)
	case errors.Is(err, unix.EPROTONOSUPPORT), isUnknownVersion(err):
		return refused("%s", noVersion(readOnly, err))
	case errors.Is(err, unix.EOPNOTSUPP):
		return refused("has only NFS 3 for this node, and no mountd that its portmapper knows: start it with version 3, or %s", upgrade)
	case errors.Is(err, unix.ETIMEDOUT):
		return refused("accepts connections but does not answer: see whether its NFS service runs")
	case errors.Is(err, unix.ENOTDIR):
		return refused("exports %s, which is not a folder", e.path)
	}
	return refused("could not be mounted from: %s", reason(err))
}
