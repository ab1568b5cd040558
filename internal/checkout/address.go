package checkout

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/datalayer/node-mounts/internal/netaddr"
)

// Policy says which addresses git may connect to. A tenant chose the host, and git
// runs in the node's network: what only the node can reach must stay out of reach.
type Policy struct {
	// Allow are exceptions from everything below, by address and port. Tests allow a
	// port of loopback; an administrator may allow a server on the node's network.
	Allow []netip.AddrPort
	// Deny are refused beside what is always refused: the API server, the nodes.
	Deny []netip.Prefix
	// Own are processes, such as "/proc/1", whose network's own addresses are refused
	// too, as they are at each look-up: the node's. Those of this process always are.
	Own []string
	// Resolve looks a name up; nil is the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// refuses says whether nothing is fetched from an address. own are the addresses of
// the namespace that git runs in.
func (p Policy) refuses(a netip.Addr, port uint16, own []netip.Prefix) bool {
	meanings := netaddr.Meanings(a)
	for _, allowed := range p.Allow {
		if allowed.Port() == port && slices.Contains(meanings, allowed.Addr()) {
			return false
		}
	}
	return netaddr.Special(a) != netaddr.Usual || netaddr.Within(p.Deny, a) || netaddr.Within(own, a)
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
			return nil, &Error{Class: Unreachable, Message: "the name of the server cannot be resolved", Err: err}
		}
	}
	var own []netip.Prefix
	for _, proc := range append([]string{"/proc/thread-self"}, p.Own...) {
		theirs, err := netaddr.Own(proc)
		if err != nil {
			return nil, storage("tell its own addresses from a server's", err)
		}
		own = append(own, theirs...)
	}
	var usable []netip.Addr
	for _, a := range found {
		if !p.refuses(a, r.port, own) {
			usable = append(usable, a.Unmap())
		}
	}
	if len(usable) == 0 {
		return nil, fail(Refused, "the server's address is one that this node does not fetch from")
	}
	return usable, nil
}
