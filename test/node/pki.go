package node

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// authority signs the certificates of one node.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// writePKI makes a certificate authority and everybody's certificates and
// kubeconfig files in dir, unless they are there.
func writePKI(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "admin.kubeconfig")); err == nil {
		return nil
	}
	a, err := newAuthority()
	if err != nil {
		return err
	}
	if err := writePair(dir, "ca", a.pem, a.key); err != nil {
		return err
	}
	for name, subject := range map[string]pkix.Name{
		"apiserver":         {CommonName: "kube-apiserver"},
		"apiserver-kubelet": {CommonName: "apiserver-kubelet", Organization: []string{"system:masters"}},
	} {
		cert, key, err := a.sign(subject)
		if err == nil {
			err = writePair(dir, name, cert, key)
		}
		if err != nil {
			return err
		}
	}
	if err := writeTokenKey(dir); err != nil {
		return err
	}
	for _, user := range []struct {
		name    string
		subject pkix.Name
	}{
		{"kubelet", pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}},
		{"controllers", pkix.Name{CommonName: "system:kube-controller-manager"}},
		{"scheduler", pkix.Name{CommonName: "system:kube-scheduler"}},
		{"admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}}, // last: it stands for all of them
	} {
		if err := a.writeKubeconfig(filepath.Join(dir, user.name+".kubeconfig"), user.subject); err != nil {
			return err
		}
	}
	return nil
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(pkix.Name{CommonName: "node-mounts-tests"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// certificate is good for every use and for every address of the API: nobody but
// the tests trusts it.
func certificate(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)) // it cannot fail
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(30 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(nodeAddress), net.ParseIP(serviceAddress)},
	}
}

// sign makes a key and a certificate for it.
func (a *authority) sign(subject pkix.Name) (cert []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate(subject), a.cert, key.Public(), a.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

// writeTokenKey makes the key that signs the tokens of service accounts.
func writeTokenKey(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "tokens.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644); err != nil {
		return err
	}
	text, err := keyPEM(key)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "tokens.key"), text, 0o600)
}

func (a *authority) writeKubeconfig(path string, subject pkix.Name) error {
	cert, key, err := a.sign(subject)
	if err != nil {
		return err
	}
	text, err := keyPEM(key)
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters["node"] = &api.Cluster{Server: "https://" + nodeAddress, CertificateAuthorityData: a.pem}
	config.AuthInfos["user"] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: text}
	config.Contexts["node"] = &api.Context{Cluster: "node", AuthInfo: "user"}
	config.CurrentContext = "node"
	return clientcmd.WriteToFile(*config, path)
}

func writePair(dir, name string, cert []byte, key crypto.PrivateKey) error {
	text, err := keyPEM(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), cert, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), text, 0o600)
}

func keyPEM(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
