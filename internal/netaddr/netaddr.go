// Package netaddr judges addresses that a tenant has chosen and that the node would
// connect to: from its network more is in reach than from a sandbox's.
package netaddr

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/thread"
)

// Kind is what an address is for, where it is not for a server.
type Kind string

// The kinds. Usual is every address that a server may have.
const (
	Usual    Kind = ""
	Zoned    Kind = "zoned"    // it means another host on each of the node's links
	None     Kind = "none"     // no host has it: "this host", reserved
	Loopback Kind = "loopback" // the node itself, or the agent's Pod
	Link     Kind = "link"     // the node's own link or site, where metadata services are
	Many     Kind = "many"     // multicast and broadcast
	Metadata Kind = "metadata" // metadata services elsewhere
)

// special are the ranges that netip has no name for.
func special() map[netip.Prefix]Kind {
	return map[netip.Prefix]Kind{
		netip.MustParsePrefix("255.255.255.255/32"): Many,
		netip.MustParsePrefix("0.0.0.0/8"):          None,
		netip.MustParsePrefix("240.0.0.0/4"):        None,
		netip.MustParsePrefix("fec0::/10"):          Link,     // site-local, before fc00::/7
		netip.MustParsePrefix("100.100.100.200/32"): Metadata, // Alibaba
		netip.MustParsePrefix("168.63.129.16/32"):   Metadata, // Azure
		netip.MustParsePrefix("192.0.0.192/32"):     Metadata, // Oracle
		netip.MustParsePrefix("fd00:ec2::254/128"):  Metadata, // AWS
		netip.MustParsePrefix("fd20:ce::254/128"):   Metadata, // Google
	}
}

// Special is the kind of an address, or of one that it stands for (Meanings).
func Special(a netip.Addr) Kind {
	if a.Zone() != "" {
		return Zoned
	}
	for _, m := range Meanings(a) {
		if k := kindOf(m); k != Usual {
			return k
		}
	}
	return Usual
}

func kindOf(a netip.Addr) Kind {
	switch {
	case !a.IsValid(), a.IsUnspecified():
		return None
	case a.IsLoopback():
		return Loopback
	case a.IsLinkLocalUnicast():
		return Link
	case a.IsMulticast():
		return Many
	}
	// Broadcast lies in a reserved range: the narrowest prefix says it best.
	best, kind := -1, Usual
	for prefix, k := range special() {
		if prefix.Contains(a) && prefix.Bits() > best {
			best, kind = prefix.Bits(), k
		}
	}
	return kind
}

// Meanings are the address and the IPv4 addresses that it may stand for: kernels and
// translators on the way make one of the other. An IPv4 address in an IPv6 form that
// the kernel undoes is that IPv4 address alone.
func Meanings(a netip.Addr) []netip.Addr {
	if a.Is4() || a.Is4In6() || !a.IsValid() {
		return []netip.Addr{a.Unmap()}
	}
	all := []netip.Addr{a}
	if a.IsLoopback() || a.IsUnspecified() {
		return all
	}
	b := a.As16()
	last := netip.AddrFrom4([4]byte(b[12:16]))
	switch {
	case netip.MustParsePrefix("::/96").Contains(a), // IPv4-compatible, the form before ::ffff:0:0/96
		netip.MustParsePrefix("::ffff:0:0:0/96").Contains(a), // IPv4-translated
		netip.MustParsePrefix("64:ff9b::/96").Contains(a):    // NAT64
		all = append(all, last)
	case netip.MustParsePrefix("2002::/16").Contains(a): // 6to4
		all = append(all, netip.AddrFrom4([4]byte(b[2:6])))
	case netip.MustParsePrefix("2001::/32").Contains(a): // Teredo
		all = append(all, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	case netip.MustParsePrefix("64:ff9b:1::/48").Contains(a):
		all = append(all, local(b)...)
	}
	return all
}

// local are the meanings of an address of a NAT64 of one's own (RFC 8215). How long
// its prefix is, only the translator knows; where the IPv4 address lies then is
// RFC 6052's, around an octet of zeros. A reading that begins with zero is none.
func local(b [16]byte) (all []netip.Addr) {
	for _, m := range [][4]byte{
		{b[6], b[7], b[9], b[10]}, {b[7], b[9], b[10], b[11]}, {b[9], b[10], b[11], b[12]}, {b[12], b[13], b[14], b[15]},
	} {
		if m[0] != 0 {
			all = append(all, netip.AddrFrom4(m))
		}
	}
	if len(all) == 0 {
		return []netip.Addr{netip.IPv4Unspecified()}
	}
	return all
}

// Within tells whether an address, or one that it stands for, is in one of the
// networks.
func Within(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(Meanings(a), func(m netip.Addr) bool {
		return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(m) })
	})
}

// Own are the addresses of the network namespace of the process or thread at proc, such
// as "/proc/1". "/proc/thread-self" is this program's.
func Own(proc string) (all []netip.Prefix, err error) {
	err = thread.Own(func() (err error) {
		all, err = ownOf(proc)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the network of %s: %w", proc, err)
	}
	return all, nil
}

// virtual is the interface that has the address of every Service where kube-proxy works
// with IPVS. They are not the node's: Pods are behind them.
const virtual = "kube-ipvs0"

func ownOf(proc string) (all []netip.Prefix, err error) {
	fd, err := unix.Open(filepath.Join(proc, "ns", "net"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		if i.Name == virtual {
			continue
		}
		found, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if n, ok := f.(*net.IPNet); ok {
				if a, ok := netip.AddrFromSlice(n.IP); ok {
					all = append(all, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
				}
			}
		}
	}
	return all, nil
}
