package agentcmd

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
)

func gitDefaults() repositories {
	return repositories{
		timeout: 300, user: beneath.Owner{UID: 65534, GID: 65534}, size: 2 << 30, kept: 10 << 30, memory: 256 << 20,
	}
}

func gitVariables() map[string]string {
	const prefix = "DATALAYER_NODE_MOUNT_GATEWAY_"
	return map[string]string{
		prefix + "REPOSITORIES": "true", "DATALAYER_CLONE_TIMEOUT_SECONDS": "60", prefix + "CHECKOUT_SIZE": "1Gi", prefix + "CHECKOUTS_KEPT": "0",
		prefix + "GIT_MEMORY": "64Mi", prefix + "GIT_USER": "7:8", prefix + "GIT_CA_FILE": "/etc/ca.pem", prefix + "GIT_PROXY": "http://p:1",
		prefix + "GIT_ALLOW": "10.0.0.7:443", prefix + "GIT_DENY": "10.0.0.0/8",
	}
}

func gitOfVariables() repositories {
	return repositories{
		on: true, timeout: 60, user: beneath.Owner{UID: 7, GID: 8}, size: 1 << 30, memory: 64 << 20, caFile: "/etc/ca.pem", proxy: "http://p:1",
		allow: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.7:443")}, deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}
}

func gitFlags() map[string]string {
	return map[string]string{
		"repositories": "0", "clone-timeout": "86400", "checkout-size": "1048576", "checkouts-kept": "1Ki", "git-memory": "1Gi", "git-user": "9:9",
		"git-ca-file": "/other.pem", "git-proxy": "https://ada:secret@p", "git-allow": "[::ffff:10.0.0.1]:22, [fd00::7]:1", "git-deny": "10.1.2.3/16,fd00::1",
	}
}

func gitOfFlags() repositories {
	return repositories{
		timeout: 86400, user: beneath.Owner{UID: 9, GID: 9}, size: 1 << 20, kept: 1 << 10, memory: 1 << 30,
		caFile: "/other.pem", proxy: "https://ada:secret@p",
		allow: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:22"), netip.MustParseAddrPort("[fd00::7]:1")},
		deny:  []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::1/128")},
	}
}

func TestRepositoriesAreServedOnlyWhereTheyAreTurnedOn(t *testing.T) {
	for _, on := range []string{"false", "true"} {
		s := settle(t, map[string]string{"node-id": "a", "repositories": on}, nil)
		pol, err := policy(s)
		if err != nil {
			t.Fatal(err)
		}
		opens := s.checkouts("boot", slog.New(slog.DiscardHandler)) != nil
		if want := on == "true"; pol.Serves[grant.KindGit] != want || opens != want {
			t.Errorf("%s: served %v, opened %v", on, pol.Serves[grant.KindGit], opens)
		}
	}
}

func TestGitSeesNothingOfTheNodeAndReachesNeitherNodeNorAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	t.Setenv("NODE_IP", "fd00::5")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := settle(t, map[string]string{"node-id": "a", "checkouts-kept": "0", "git-ca-file": ca, "git-deny": "10.9.0.0/16", "clone-timeout": "60"}, nil)
	c, err := s.checkoutConfig("boot", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/var/run/secrets", s.kubelet, s.sharedRoot, s.root + "/pods", s.root + "/journal"} {
		if !slices.Contains(c.Hide, dir) {
			t.Errorf("git sees %s", dir)
		}
	}
	for _, denied := range []string{"10.9.0.0/16", "10.96.0.1/32", "fd00::5/128"} {
		if !slices.Contains(c.Network.Deny, netip.MustParsePrefix(denied)) {
			t.Errorf("git reaches %s", denied)
		}
	}
	if c.Limits.Budget >= 0 || c.Limits.Timeout != time.Minute || string(c.CA) != "PEM" || c.Root != s.root+"/checkouts" || c.Boot != "boot" {
		t.Errorf("%+v", c)
	}
	s.git.caFile += "-gone"
	if _, err := s.checkoutConfig("boot", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--git-ca-file") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestAProxysPasswordIsInNoError(t *testing.T) {
	_, err := resolve(lookup(map[string]string{"node-id": "a", "git-proxy": "ftp://ada:canary@p"}), lookup(nil))
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "--git-proxy") {
		t.Errorf("the error is %v", err)
	}
}
