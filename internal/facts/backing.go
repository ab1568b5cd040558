package facts

import (
	"net"
	"net/netip"
	"strings"

	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// Backing says what keeps a filesystem answering, by its type and its source. It
// matters because a CSI driver's FUSE process, or the tunnel to an NFS server, may
// run in a Pod: when that is replaced, every mount of the claim dies with it.
//
// virtiofs is served by a process too, but outside of the machine.
func Backing(m mnt.Mount) nodeview.Backing {
	family, _, _ := strings.Cut(m.FSType, ".")
	switch family {
	case "fuse", "fuseblk":
		return nodeview.BackedByProcess
	case "nfs", "nfs4":
		// A server on loopback is a tunnel: amazon-efs-utils mounts 127.0.0.1:/ and
		// has stunnel or its own proxy carry it.
		return byServer(nfsServer(m.Source))
	case "cifs", "smb3":
		host, _, _ := strings.Cut(strings.TrimLeft(m.Source, "/"), "/")
		return byServer(host)
	case "9p":
		// Over virtio the source is a tag, over a descriptor or a socket it may be
		// anything, and the options that tell are not in the mount's own.
		if strings.HasPrefix(m.Source, "/") || loopback(m.Source) {
			return nodeview.BackedByProcess
		}
		return nodeview.BackingUnknown
	case "overlay", "autofs", "":
		return nodeview.BackingUnknown // something else answers
	}
	if strings.HasPrefix(m.Source, "/dev/nbd") {
		return nodeview.BackedByProcess // nbd-client, rbd-nbd
	}
	return nodeview.BackedByKernel
}

func byServer(host string) nodeview.Backing {
	if loopback(host) {
		return nodeview.BackedByProcess
	}
	return nodeview.BackedByKernel
}

// nfsServer is the server of "server:/export", where an IPv6 address is in
// brackets.
func nfsServer(source string) string {
	if rest, ok := strings.CutPrefix(source, "["); ok {
		host, _, _ := strings.Cut(rest, "]")
		return host
	}
	host, _, _ := strings.Cut(source, ":/")
	return host
}

func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	switch host {
	case "localhost", "localhost.localdomain", "localhost6", "ip6-localhost":
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}
