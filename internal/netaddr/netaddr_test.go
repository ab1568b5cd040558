package netaddr_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/datalayer/node-mounts/internal/netaddr"
	"github.com/datalayer/node-mounts/internal/netaddr/netaddrtest"
)

func TestAnAddressThatIsNotForAServerIsSpecialInEveryForm(t *testing.T) {
	for kind, addresses := range map[netaddr.Kind][]string{
		netaddr.Loopback: {
			"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
			"2001:0:1:2:3:4:80ff:fffe",
			// The local-use NAT64, with a prefix of 48, 56, 64 and 96 bits.
			"64:ff9b:1:7f00:0:100::", "64:ff9b:1:7f:0:1::", "64:ff9b:1:0:7f:0:100:0", "64:ff9b:1::7f00:1",
		},
		netaddr.Link: {
			"169.254.169.254", "fe80::1", "fec0::1", "feff::1", "::ffff:169.254.169.254", "::ffff:0:a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::",
		},
		netaddr.None:     {"0.0.0.0", "0.1.2.3", "240.0.0.1", "::", "64:ff9b:1::", "64:ff9b::", "::ffff:0:0"},
		netaddr.Many:     {"224.0.0.1", "255.255.255.255", "ff02::1", "64:ff9b::e000:1"},
		netaddr.Metadata: {"100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "64:ff9b::a83f:8110"},
		netaddr.Zoned:    {"fe80::1%eth0", "2001:db8::1%eth0"},
		netaddr.Usual: {
			"140.82.112.3", "10.0.0.7", "100.64.0.1", "2606:4700::1", "fd00::1", "64:ff9b::8c52:7003", "::ffff:140.82.112.3",
			// A cluster of IPv6 alone reaches everybody else by these.
			"64:ff9b:1::8c52:7003", "64:ff9b:1:8c52:70:300::", "2002:8c52:7003::1",
		},
	} {
		for _, text := range addresses {
			if got := netaddr.Special(netip.MustParseAddr(text)); got != kind {
				t.Errorf("%s is %q, expected %q", text, got, kind)
			}
		}
	}
	if got := netaddr.Special(netip.Addr{}); got != netaddr.None {
		t.Errorf("no address is %q", got)
	}
}

func TestAnAddressIsWithinANetworkInEveryForm(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.96.0.1/32"), netip.MustParsePrefix("fd00::/8")}
	for text, want := range map[string]bool{
		"10.96.0.1": true, "::ffff:10.96.0.1": true, "64:ff9b::a60:1": true, "64:ff9b:1::a60:1": true, "64:ff9b:1:a60:0:100::": true,
		"::ffff:0:10.96.0.1": true, "2002:a60:1::": true, "fd00::5": true, "10.96.0.2": false, "fe00::5": false,
	} {
		if got := netaddr.Within(networks, netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

func TestTheOwnAddressesAreThoseOfTheNamespaceAndNotOfServices(t *testing.T) {
	address := netip.MustParseAddr("203.0.113.7")
	for name, want := range map[string]bool{"lo": true, "kube-ipvs0": false} {
		theirs, err := netaddr.Own(netaddrtest.Network(t, name, address))
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(theirs, netip.PrefixFrom(address, 32)); got != want {
			t.Errorf("%s: %t, of %v", name, got, theirs)
		}
	}
	ours, err := netaddr.Own("/proc/thread-self")
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(ours, netip.PrefixFrom(address, 32)) || !slices.Contains(ours, netip.MustParsePrefix("127.0.0.1/32")) {
		t.Errorf("this network has %v", ours)
	}
	if _, err := netaddr.Own("/proc/nobody"); err == nil {
		t.Error("a process that is not there has addresses")
	}
}
