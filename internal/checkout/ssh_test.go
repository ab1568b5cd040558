package checkout_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/test/gitserver"
)

func mustAddress(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestARepositoryOverSSHOpensToItsKeyOnTheKnownHostAlone(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{"README": "over ssh\n"})
	server := gitserver.StartSSH(t, w.repos)
	w.open(nil, loopback(server.Address()))
	ask := checkout.Request{URL: server.URL(repo), Revision: sha}

	w.fails(ask, checkout.AuthRefused)
	for name, c := range map[string]checkout.Credential{
		"no key":         {KnownHosts: server.KnownHosts()},
		"no known hosts": {SSHKey: server.Key()},
		"a broken key":   {SSHKey: []byte("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n"), KnownHosts: server.KnownHosts()},
		"another key":    {SSHKey: server.OtherKey(), KnownHosts: server.KnownHosts()},
		"another host":   {SSHKey: server.Key(), KnownHosts: server.OtherKnownHosts(t)},
	} {
		t.Run(name, func(t *testing.T) {
			ask, w := ask, w.in(t)
			ask.Credential = &c
			t.Log(w.failure(ask, checkout.AuthRefused))
		})
	}
	ask.Credential = &checkout.Credential{SSHKey: server.Key(), KnownHosts: server.KnownHosts()}
	if got := content(t, w.mustGet(ask), "README"); got != "over ssh\n" {
		t.Errorf("README holds %q", got)
	}
	// The key is the agent's: not even its socket is left.
	w.nothingLeft()
	ask.Credential = &checkout.Credential{SSHKey: server.OtherKey(), KnownHosts: server.KnownHosts()}
	w.fails(ask, checkout.AuthRefused)
	ask.Revision = "abababababababababababababababababababab"
	ask.Credential = &checkout.Credential{SSHKey: server.Key(), KnownHosts: server.KnownHosts()}
	w.fails(ask, checkout.NotFound)
}

func TestACommitBeneathABranchIsFoundOverSSHInTheOldProtocol(t *testing.T) {
	for _, tips := range []string{"false", "true"} {
		t.Run("allowTipSHA1InWant="+tips, func(t *testing.T) {
			w := newWorld(t)
			repo := w.repository()
			sha := repo.Files("main", map[string]string{"README": "the one\n"})
			last := sha
			for i := range 60 {
				last = repo.Files("main", map[string]string{"README": fmt.Sprint(i)}, last)
			}
			repo.Git("config", "uploadpack.allowTipSHA1InWant", tips)
			server := gitserver.StartOldSSH(t, w.repos)
			w.open(nil, loopback(server.Address()))
			ask := checkout.Request{
				URL: server.URL(repo), Revision: sha,
				Credential: &checkout.Credential{SSHKey: server.Key(), KnownHosts: server.KnownHosts()},
			}
			if got := content(t, w.mustGet(ask), "README"); got != "the one\n" {
				t.Errorf("README holds %q", got)
			}
			ask.Revision = "abababababababababababababababababababab"
			w.fails(ask, checkout.NotFound)
		})
	}
}
