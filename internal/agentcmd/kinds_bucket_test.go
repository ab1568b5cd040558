package agentcmd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/bucket"
	"github.com/datalayer/node-mounts/internal/keeper"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

func bucketDefaults() buckets {
	return buckets{program: "/usr/local/bin/node-mounts-s3", pathStyle: true, cache: 1 << 30, memory: 512 << 20}
}

func bucketVariables() map[string]string {
	const prefix = "DATALAYER_NODE_MOUNT_GATEWAY_"
	return map[string]string{
		prefix + "KEEPER": "mounts/app=keeper,x=y", prefix + "BUCKETS": "true", prefix + "BUCKET_PROGRAM": "/usr/bin/mount-s3", prefix + "BUCKET_REGION": "eu-west-1",
		prefix + "BUCKET_ENDPOINT": "https://minio.example.org", prefix + "BUCKET_PATH_STYLE": "false", prefix + "BUCKET_INSECURE": "true",
		prefix + "BUCKET_ALLOW": "Minio.example.org:9000", prefix + "BUCKET_DENY": "10.0.0.0/8", prefix + "BUCKET_PROXY": "http://p:1",
		prefix + "BUCKET_CA_FILE": "/etc/ca.pem", prefix + "BUCKET_CACHE": "2Gi", prefix + "BUCKET_MEMORY": "1Gi",
	}
}

func bucketsOfVariables() buckets {
	return buckets{
		on: true, program: "/usr/bin/mount-s3", region: "eu-west-1", endpoint: "https://minio.example.org", insecure: true,
		allow: []string{"minio.example.org:9000"}, deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, proxy: "http://p:1",
		caFile: "/etc/ca.pem", cache: 2 << 30, memory: 1 << 30,
	}
}

func bucketFlags() map[string]string {
	return map[string]string{
		"keeper": "/run/keeper.sock", "buckets": "0", "bucket-program": "/opt/s3", "bucket-region": "us-west-2", "bucket-endpoint": "https://other",
		"bucket-path-style": "1", "bucket-insecure": "0", "bucket-allow": "a, b:9000", "bucket-deny": "10.1.2.3/16,fd00::1",
		"bucket-proxy": "https://ada:secret@p", "bucket-ca-file": "/other.pem", "bucket-cache": "64Mi", "bucket-memory": "128Mi",
	}
}

func bucketsOfFlags() buckets {
	return buckets{
		program: "/opt/s3", region: "us-west-2", endpoint: "https://other", pathStyle: true, allow: []string{"a", "b:9000"},
		deny:  []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::1/128")},
		proxy: "https://ada:secret@p", caFile: "/other.pem", cache: 64 << 20, memory: 128 << 20,
	}
}

// bucketsOn are the settings of an agent that serves buckets.
func bucketsOn(more map[string]string) map[string]string {
	flags := map[string]string{"node-id": "a", "buckets": "true", "keeper": "mounts/app=keeper", "credentials": "true"}
	for flag, v := range more {
		flags[flag] = v
	}
	return flags
}

var errFound = errors.New("it was looked for by its Pods")

func found(context.Context) (net.Conn, error) { return nil, errFound }

func TestBucketsNeedAKeeperAndSecrets(t *testing.T) {
	for flag, off := range map[string]string{"keeper": "", "credentials": "false"} {
		_, err := resolve(lookup(bucketsOn(map[string]string{flag: off})), lookup(nil))
		if advice.Status(err) != advice.StatusUsage || !strings.Contains(err.Error(), "--buckets needs --"+flag) || advice.Hint(err) == "" {
			t.Errorf("without --%s: %v", flag, err)
		}
	}
}

func TestBucketsAreServedOnlyWhereTheyAreTurnedOn(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	for _, on := range []string{"false", "true"} {
		s := settle(t, bucketsOn(map[string]string{"buckets": on}), nil)
		pol, err := policy(s)
		if err != nil {
			t.Fatal(err)
		}
		var cfg agent.Config
		if err := s.processes(t.Context(), &cfg, found, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		want := on == "true"
		if pol.Serves[grant.KindCloudStorage] != want || (cfg.Runners[grant.KindCloudStorage] != nil) != want || (cfg.Keeper != nil) != want {
			t.Errorf("%s: served %v, runners %v, keeper %v", on, pol.Serves[grant.KindCloudStorage], cfg.Runners, cfg.Keeper)
		}
	}
}

func TestTheKeeperIsFoundByItsPodsOrByItsSocket(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	for where, byPods := range map[string]bool{"mounts/app=keeper": true, filepath.Join(t.TempDir(), "keeper.sock"): false} {
		s := settle(t, bucketsOn(map[string]string{"keeper": where}), nil)
		var cfg agent.Config
		if err := s.processes(t.Context(), &cfg, found, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		_, _, err := cfg.Keeper.List(t.Context())
		if !errors.Is(err, keeper.ErrUnavailable) || strings.Contains(err.Error(), errFound.Error()) != byPods {
			t.Errorf("%s: %v", where, err)
		}
	}
}

func runnerOf(t *testing.T, flags map[string]string) (*bucket.Runner, error) {
	t.Helper()
	return settle(t, bucketsOn(flags), nil).bucketRunner(t.Context(), &keeper.Client{}, nil, slog.New(slog.DiscardHandler))
}

func certificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestNoSecretLeadsABucketToTheNodeOrTheAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	t.Setenv("NODE_IP", "fd00::5")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, certificate(t), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := runnerOf(t, map[string]string{"bucket-ca-file": ca, "bucket-deny": "10.9.0.0/16", "bucket-insecure": "true"})
	if err != nil {
		t.Fatal(err)
	}
	for _, denied := range []string{"10.9.0.0/16", "10.96.0.1/32", "fd00::5/128"} {
		if !slices.Contains(r.Settings.Endpoints.Deny, netip.MustParsePrefix(denied)) {
			t.Errorf("a Secret may name %s", denied)
		}
	}
	if !r.Settings.Endpoints.Insecure || !strings.Contains(string(r.Settings.CA), "CERTIFICATE") || r.Settings.MountS3 {
		t.Errorf("%+v", r.Settings.Endpoints)
	}
	if _, err := runnerOf(t, map[string]string{"bucket-ca-file": ca + "-gone"}); err == nil || !strings.Contains(err.Error(), "--bucket-ca-file") {
		t.Errorf("a missing file: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "api.invalid")
	if _, err := runnerOf(t, nil); err == nil || !strings.Contains(err.Error(), "api.invalid") {
		t.Errorf("an API server that is not known: %v", err)
	}
}

func TestMountS3IsKnownByItsName(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	r, err := runnerOf(t, map[string]string{"bucket-program": "/opt/bin/mount-s3", "bucket-memory": "1Gi"})
	if err != nil || !r.Settings.MountS3 {
		t.Errorf("%v, %v", r, err)
	}
	_, err = runnerOf(t, map[string]string{"bucket-endpoint": "ftp://minio.example.org"})
	if advice.Status(err) != advice.StatusUsage || !strings.Contains(advice.Hint(err), "--bucket") {
		t.Errorf("an endpoint that is none: %v", err)
	}
}

func TestABucketProxysPasswordIsInNoError(t *testing.T) {
	_, err := resolve(lookup(map[string]string{"node-id": "a", "bucket-proxy": "ftp://ada:canary@p"}), lookup(nil))
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "--bucket-proxy") {
		t.Errorf("the error is %v", err)
	}
}

// listed is a keeper that tells what runs.
type listed struct {
	*keeper.Client
	info     keeper.Info
	children []keeper.Child
	err      error
}

func (l listed) List(context.Context) (keeper.Info, []keeper.Child, error) {
	return l.info, l.children, l.err
}

func TestTheViewTellsOfTheKeeper(t *testing.T) {
	if got := (&node{}).keeperView(t.Context()); got != nil {
		t.Errorf("an agent that needs none tells %+v", got)
	}
	two := []keeper.Child{{ID: "a"}, {ID: "b", Ended: &keeper.Exit{}}}
	for name, c := range map[string]struct {
		keeper listed
		want   nodeview.Keeper
	}{
		"there": {
			listed{info: keeper.Info{Instance: "i", Version: "v1"}, children: two},
			nodeview.Keeper{There: true, Version: "v1", Instance: "i", Children: 1},
		},
		"not there": {listed{err: errFound}, nodeview.Keeper{Reason: errFound.Error()}},
	} {
		got := (&node{keeper: c.keeper}).keeperView(t.Context())
		if got == nil || *got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
