package node

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestEverybodysCertificateIsGoodForItsUse(t *testing.T) {
	dir := t.TempDir()
	must(t, writePKI(dir))
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	must(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("the authority's file holds no certificate")
	}
	server, err := tls.LoadX509KeyPair(filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key"))
	must(t, err)
	for _, name := range []string{nodeAddress, serviceAddress, "127.0.0.1", "kubernetes.default.svc"} {
		if _, err := server.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("the API server as %s: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"admin": "system:masters", "kubelet": "system:nodes", "controllers": "", "scheduler": "",
	} {
		cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, name+".kubeconfig"))
		must(t, err)
		pair, err := tls.X509KeyPair(cfg.CertData, cfg.KeyData)
		must(t, err)
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := ""
		if o := pair.Leaf.Subject.Organization; len(o) > 0 {
			got = o[0]
		}
		if got != want {
			t.Errorf("%s is of %q, not %q", name, got, want)
		}
	}
}

// A machine that boots again must meet the tokens and certificates it gave out.
func TestCertificatesAreMadeOnce(t *testing.T) {
	dir := t.TempDir()
	must(t, writePKI(dir))
	before, err := os.ReadFile(filepath.Join(dir, "tokens.key"))
	must(t, err)
	must(t, writePKI(dir))
	after, err := os.ReadFile(filepath.Join(dir, "tokens.key"))
	must(t, err)
	if string(before) != string(after) {
		t.Error("the second time there is another key")
	}
}
