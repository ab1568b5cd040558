package delivery

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/netaddr"
)

// Servers are the NFS servers that a node mounts from. A grant names one, and so
// has the node itself speak to it, from a network where more is in reach than a
// sandbox's network policy would allow.
//
// Without any, every address is allowed that is not the node itself or local to
// its link. With some, only those are; and an address of those special ones must
// be listed itself, because a name leads wherever its owner says.
type Servers struct {
	names    []string // in lower case, without the root's dot
	prefixes []netip.Prefix
}

// ParseServers reads names of hosts, addresses, and networks such as 10.0.0.0/8.
func ParseServers(list []string) (Servers, error) {
	var s Servers
	for _, text := range list {
		if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && a.Zone() == "" {
			a = a.Unmap()
			s.prefixes = append(s.prefixes, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		if p, err := netip.ParsePrefix(text); err == nil {
			if p != p.Masked() {
				return Servers{}, errors.New("a network has bits set beyond its length, such as 10.0.0.1/8")
			}
			s.prefixes = append(s.prefixes, p)
			continue
		}
		name := canonical(text)
		if name == "" || strings.ContainsAny(name, "/:*[] ") {
			return Servers{}, errors.New("want names of hosts, addresses, and networks such as 10.0.0.0/8")
		}
		s.names = append(s.names, name)
	}
	return s, nil
}

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// unrestricted tells whether none are listed.
func (s Servers) unrestricted() bool { return len(s.names)+len(s.prefixes) == 0 }

// mayName tells whether it is worth looking the name up: it is listed, or its
// addresses may be.
func (s Servers) mayName(host string) bool {
	return s.unrestricted() || len(s.prefixes) > 0 || slices.Contains(s.names, canonical(host))
}

// lists tells whether the address itself is listed, alone or in a network.
func (s Servers) lists(a netip.Addr) bool {
	return slices.ContainsFunc(s.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// refuses says why host may not be mounted from at the address, "" when it may.
func (s Servers) refuses(host string, a netip.Addr) string {
	if s.lists(a) {
		return ""
	}
	if why := special(a); why != "" {
		return why
	}
	if s.unrestricted() || slices.Contains(s.names, canonical(host)) {
		return ""
	}
	return "is not among those that this node mounts from (--nfs-servers)"
}

const (
	unless = ": it is not mounted from unless --nfs-servers has the address"
	isNode = "is the node itself" + unless
)

// special says what an address is that no server has, "" for every other.
func special(a netip.Addr) string {
	switch netaddr.Special(a) {
	case netaddr.Usual:
		return ""
	case netaddr.Loopback:
		return isNode
	case netaddr.Link:
		return "has an address of the node's own link, as metadata services have" + unless
	case netaddr.Metadata:
		return "has the address of a metadata service" + unless
	case netaddr.Many:
		return "has an address of many" + unless
	case netaddr.Zoned:
		return "has an address with a zone" + unless
	}
	return "has an address that is none" + unless
}
