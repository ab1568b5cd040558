package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
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
		timeout: 300, size: 2 << 30, kept: 10 << 30, total: 50 << 30, files: 200_000, free: 10, memory: 256 << 20,
	}
}

func gitVariables() map[string]string {
	const prefix = "DATALAYER_NODE_MOUNT_GATEWAY_"
	return map[string]string{
		prefix + "REPOSITORIES": "true", "DATALAYER_CLONE_TIMEOUT_SECONDS": "60", prefix + "CHECKOUT_SIZE": "1Gi", prefix + "CHECKOUTS_KEPT": "0",
		prefix + "CHECKOUT_FILES": "500", prefix + "CHECKOUTS_TOTAL": "20Gi", prefix + "CHECKOUTS_FREE": "0",
		prefix + "GIT_MEMORY": "160Mi", prefix + "GIT_USER": "7:8", prefix + "GIT_CA_FILE": "/etc/ca.pem", prefix + "GIT_PROXY": "http://p:1",
		prefix + "GIT_ALLOW": "10.0.0.7:443", prefix + "GIT_DENY": "10.0.0.0/8",
	}
}

func gitOfVariables() repositories {
	return repositories{
		on: true, timeout: 60, user: beneath.Owner{UID: 7, GID: 8}, size: 1 << 30, total: 20 << 30, files: 500, memory: 160 << 20, caFile: "/etc/ca.pem", proxy: "http://p:1",
		allow: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.7:443")}, deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}
}

func gitFlags() map[string]string {
	return map[string]string{
		"repositories": "0", "clone-timeout": "86400", "checkout-size": "1048576", "checkouts-kept": "1Ki",
		"checkout-files": "100", "checkouts-total": "1Mi", "checkouts-free": "90", "git-memory": "1Gi", "git-user": "9:9",
		"git-ca-file": "/other.pem", "git-proxy": "https://ada:secret@p", "git-allow": "[::ffff:10.0.0.1]:22, [fd00::7]:1", "git-deny": "10.1.2.3/16,fd00::1",
	}
}

func gitOfFlags() repositories {
	return repositories{
		timeout: 86400, user: beneath.Owner{UID: 9, GID: 9}, size: 1 << 20, kept: 1 << 10, total: 1 << 20, files: 100, free: 90, memory: 1 << 30,
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
	s := settle(t, map[string]string{"node-id": "a", "checkouts-kept": "0", "checkouts-free": "0", "git-ca-file": ca, "git-deny": "10.9.0.0/16", "clone-timeout": "60"}, nil)
	c, err := s.checkoutConfig(t.Context(), "boot", slog.New(slog.DiscardHandler))
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
	if c.Limits.Budget != 0 || c.Limits.Free != 0 || c.Limits.Timeout != time.Minute || string(c.CA) != "PEM" || c.Root != s.root+"/checkouts" || c.Boot != "boot" {
		t.Errorf("%+v", c)
	}
	s.git.caFile += "-gone"
	if _, err := s.checkoutConfig(t.Context(), "boot", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--git-ca-file") {
		t.Errorf("a missing file: %v", err)
	}
}

// The account is the one that the image is given.
func TestGitRunsAsTheImagesOwnAccount(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"passwd", "group", "shadow", "gshadow"} {
		if err := errors.Join(os.MkdirAll(root+"/etc", 0o755), os.WriteFile(root+"/etc/"+name, []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, nil))
	passwd := root + "/etc/passwd"
	if user, err := gitUser(passwd, log); err != nil || user != (beneath.Owner{UID: 65534, GID: 65534}) || !strings.Contains(said.String(), "--git-user") {
		t.Errorf("without it %v runs git, %v, and the log says %q", user, err, said.String())
	}
	if out, err := exec.Command("../../image/account", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said.Reset()
	// Not 1000:100, which tenants are, nor what a system gives away by itself.
	if user, err := gitUser(passwd, log); err != nil || user != (beneath.Owner{UID: 61000, GID: 61000}) || said.String() != "" {
		t.Errorf("%v runs git, %v, and the log says %q", user, err, said.String())
	}
	// Whoever else has a part of the name does not count.
	for _, line := range []string{"node-mounts-gitx:x:1:1::/:/x", "x:x:1:1:node-mounts-git:/:/x", "node-mounts-git:x:1"} {
		if err := os.WriteFile(passwd, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, err := gitUser(passwd, log); err != nil || user.UID != 65534 {
			t.Errorf("%s: %v runs git, %v", line, user, err)
		}
	}
	if err := os.WriteFile(passwd, []byte("node-mounts-git:x:many:1::/:/x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if user, err := gitUser(passwd, log); err == nil {
		t.Errorf("an account without a number: %v", user)
	}
}

func TestAUserThatIsSetRunsGit(t *testing.T) {
	heres, err := gitUser("/etc/passwd", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]beneath.Owner{"": heres, "7:8": {UID: 7, GID: 8}} {
		c, err := settle(t, map[string]string{"node-id": "a", "git-user": set}, nil).checkoutConfig(t.Context(), "boot", slog.New(slog.DiscardHandler))
		if got := (beneath.Owner{UID: c.User, GID: c.Group}); err != nil || got != want {
			t.Errorf("%q: %v runs git, %v", set, got, err)
		}
	}
}

func TestAProxysPasswordIsInNoError(t *testing.T) {
	_, err := resolve(lookup(map[string]string{"node-id": "a", "git-proxy": "ftp://ada:canary@p"}), lookup(nil))
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "--git-proxy") {
		t.Errorf("the error is %v", err)
	}
}

func TestTheAPIServerIsRefusedHoweverItIsWritten(t *testing.T) {
	look := func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != "api.example.org" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")}, nil
	}
	t.Setenv("NODE_IP", "")
	for host, want := range map[string][]string{
		"": {}, "10.96.0.1": {"10.96.0.1/32"}, "fd00::1": {"fd00::1/128"}, "[fd00::1]": {"fd00::1/128"}, "::ffff:10.96.0.1": {"10.96.0.1/32"},
		"api.example.org": {"10.0.0.9/32", "fd00::9/128"},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", host)
		got, err := neverReached(t.Context(), look)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: %v %v, expected %v", host, got, err, want)
		}
	}
	for _, variable := range []string{"KUBERNETES_SERVICE_HOST", "NODE_IP"} {
		t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
		t.Setenv(variable, "gone.example.org")
		if got, err := neverReached(t.Context(), look); err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%s cannot be resolved: %v %v", variable, got, err)
		}
	}
}

func TestNoRepositoryIsFetchedWhereTheAPIServerIsNotKnown(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "api.invalid")
	s := settle(t, map[string]string{"node-id": "a", "repositories": "true"}, nil)
	if _, err := s.checkouts("boot", slog.New(slog.DiscardHandler))(t.Context()); err == nil || !strings.Contains(err.Error(), "api.invalid") {
		t.Errorf("%v", err)
	}
}
