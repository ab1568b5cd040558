package checkout

import (
	"context"
	"net"
	"net/netip"
)

// Policy says which addresses git may connect to. A tenant chose the host, and git
// runs in the node's network: what only the node can reach must stay out of reach.
type Policy struct {
	// Allow are exceptions from everything below, by address and port. Tests allow a
	// port of loopback; an administrator may allow a server on the node's network.
	Allow []netip.AddrPort
	// Deny are refused beside what is always refused: the API server, the nodes.
	Deny []netip.Prefix
	// Resolve looks a name up; nil is the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// neverFetched are addresses that no repository has and that the node must not be
// made to ask: metadata services that are not link-local, and ranges that nothing is
// reachable in but what somebody wants to hide.
func neverFetched() []netip.Prefix {
	var all []netip.Prefix
	for _, p := range []string{
		"0.0.0.0/8", "240.0.0.0/4", // "this host", reserved and broadcast
		"168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128", // metadata
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func (p Policy) refuses(a netip.Addr, port uint16) bool {
	// Addresses that mean another one: ::ffff:a.b.c.d, the NAT64 prefix, 6to4 and the
	// old IPv4-compatible form are translated on the way or by the kernel.
	inner := embedded(a)
	for _, allowed := range p.Allow {
		if allowed.Port() == port && (allowed.Addr() == a || allowed.Addr() == inner) {
			return false
		}
	}
	return p.denies(a) || (inner != a && p.denies(inner))
}

func (p Policy) denies(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() ||
		a.IsLinkLocalUnicast() || a.IsInterfaceLocalMulticast() {
		return true
	}
	for _, set := range [][]netip.Prefix{neverFetched(), p.Deny} {
		for _, prefix := range set {
			if prefix.Contains(a) {
				return true
			}
		}
	}
	return false
}

// embedded is the IPv4 address that an IPv6 address stands for, else the address.
func embedded(a netip.Addr) netip.Addr {
	if a.Is4() || a.Is4In6() {
		return a.Unmap()
	}
	b := a.As16()
	switch {
	case b[0] == 0x20 && b[1] == 0x02: // 2002::/16
		return netip.AddrFrom4([4]byte(b[2:6]))
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a),
		netip.MustParsePrefix("::/96").Contains(a) && !a.IsLoopback() && !a.IsUnspecified():
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return a
}

// resolve looks the host up, once, and returns the addresses that may be used. They
// are pinned: a second look-up could answer otherwise.
func (p Policy) resolve(ctx context.Context, r remote) ([]netip.Addr, error) {
	found := []netip.Addr{}
	if a, ok := r.literal(); ok {
		found = append(found, a)
	} else {
		look := p.Resolve
		if look == nil {
			look = func(ctx context.Context, host string) ([]netip.Addr, error) {
				return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
			}
		}
		var err error
		if found, err = look(ctx, r.host); err != nil || len(found) == 0 {
			return nil, &Error{Unreachable, "the name of the server cannot be resolved", "", err}
		}
	}
	var usable []netip.Addr
	for _, a := range found {
		if !p.refuses(a, r.port) {
			usable = append(usable, a.Unmap())
		}
	}
	if len(usable) == 0 {
		return nil, fail(Refused, "the server's address is one that this node does not fetch from")
	}
	return usable, nil
}
