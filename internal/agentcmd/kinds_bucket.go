package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/bucket"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper"
)

// buckets are the settings of the kind cloud-storage.
type buckets struct {
	on            bool
	program       string
	region        string
	endpoint      string
	pathStyle     bool
	insecure      bool
	allow         []string
	deny          []netip.Prefix
	proxy         string
	caFile        string
	cache, memory int64
}

// keeperTimeout is how long the keeper may take for one answer.
const keeperTimeout = 5 * time.Second

// keeperOptions say where the keeper of the node is.
func keeperOptions() []Option {
	return []Option{
		{
			Flag: "keeper", Env: "DATALAYER_NODE_MOUNT_GATEWAY_KEEPER", Type: "namespace/selector|path",
			Help: "the keeper that runs filesystem processes: the namespace and the labels of its Pods (mounts/app=keeper), or the path of its socket",
			set: func(s *settings, v string) error {
				if filepath.IsAbs(v) {
					return absolute(&s.keeper, v)
				}
				s.keeper = v
				namespace, selector, _ := strings.Cut(v, "/")
				if v != "" && (label(&namespace, namespace) != nil || selector == "") {
					return errors.New("want NAMESPACE/LABEL=VALUE or an absolute path")
				}
				return nil
			},
		},
	}
}

// bucketOptions say whether buckets are served, and how.
func bucketOptions() []Option {
	return []Option{
		{
			Flag: "buckets", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKETS", Default: "false", Type: "true|false",
			Help: "serve the kind cloud-storage; needs the keeper (--keeper) and Secrets (--credentials)",
			set:  func(s *settings, v string) error { return truth(&s.buckets.on, v) },
		},
		{
			Flag: "bucket-program", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_PROGRAM", Default: "/usr/local/bin/node-mounts-s3", Type: "path",
			Help: "what serves a bucket as a filesystem: the built-in program, or mount-s3 (Mountpoint for Amazon S3)",
			set:  func(s *settings, v string) error { return absolute(&s.buckets.program, v) },
		},
		{
			Flag: "bucket-cache", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_CACHE", Default: "1Gi", Type: "size",
			Help: "how much of the keeper's disk one mount may take for what is read and written",
			set:  func(s *settings, v string) error { return size(&s.buckets.cache, v, 64<<20) },
		},
		{
			Flag: "bucket-memory", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_MEMORY", Default: "512Mi", Type: "size",
			Help: "how much memory the process of one mount may take before it is ended and started anew",
			set:  func(s *settings, v string) error { return size(&s.buckets.memory, v, 128<<20) },
		},
	}
}

// bucketServerOptions say which servers of buckets are reached, and how.
func bucketServerOptions() []Option {
	return []Option{
		{
			Flag: "bucket-region", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_REGION", Type: "region",
			Help: "region of buckets whose Secret names none; empty: a Secret for Amazon's has to name one",
			set:  func(s *settings, v string) error { s.buckets.region = v; return nil },
		},
		{
			Flag: "bucket-endpoint", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_ENDPOINT", Type: "url",
			Help: "S3 endpoint of buckets whose Secret names none; empty: Amazon's",
			set:  func(s *settings, v string) error { s.buckets.endpoint = v; return nil },
		},
		{
			Flag: "bucket-path-style", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_PATH_STYLE", Default: "true", Type: "true|false",
			Help: "ask for endpoint/bucket instead of bucket.endpoint, as most servers other than Amazon's want it; Amazon's are asked in their own way",
			set:  func(s *settings, v string) error { return truth(&s.buckets.pathStyle, v) },
		},
		{
			Flag: "bucket-insecure", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_INSECURE", Default: "false", Type: "true|false",
			Help: "let a Secret name an endpoint without TLS",
			set:  func(s *settings, v string) error { return truth(&s.buckets.insecure, v) },
		},
		{
			Flag: "bucket-allow", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_ALLOW", Type: "list",
			Help: "hosts, or host:port, that a Secret may name as endpoint although their address is refused",
			set:  func(s *settings, v string) error { s.buckets.allow = list(strings.ToLower(v)); return nil },
		},
		{
			Flag: "bucket-deny", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_DENY", Type: "list",
			Help: "addresses and networks that a Secret may not name as endpoint, beside loopback, link-local, metadata services, the API server and the node",
			set:  func(s *settings, v string) error { return networks(&s.buckets.deny, v) },
		},
		{
			Flag: "bucket-proxy", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_PROXY", Type: "url", Hidden: true,
			Help: "proxy for all requests to buckets, http:// or https://; mount-s3 uses none",
			set:  func(s *settings, v string) error { return proxy(&s.buckets.proxy, v) },
		},
		{
			Flag: "bucket-ca-file", Env: "DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_CA_FILE", Type: "path",
			Help: "certificates in PEM that endpoints are trusted by beside the system's; read when the agent starts",
			set:  func(s *settings, v string) error { return optionalPath(&s.buckets.caFile, v) },
		},
	}
}

// processes sets up the keeper and what it runs, where a kind needs it. find connects
// to the keeper of this node where its Pods are known and not its socket.
func (s settings) processes(ctx context.Context, cfg *agent.Config, find keeperDial, log *slog.Logger) error {
	if !s.buckets.on {
		return nil
	}
	if filepath.IsAbs(s.keeper) {
		find = keeper.DialSocket(s.keeper)
	}
	k := &keeper.Client{Dial: find, Timeout: keeperTimeout}
	cfg.Keeper = k
	runner, err := s.bucketRunner(ctx, k, cfg.Secrets, log)
	if err != nil {
		return err
	}
	cfg.Runners = map[grant.Kind]delivery.Runner{grant.KindCloudStorage: runner}
	return nil
}

// keeperDial connects to the keeper.
type keeperDial = func(context.Context) (net.Conn, error)

func (s settings) bucketRunner(ctx context.Context, k *keeper.Client, secrets agent.Secrets, log *slog.Logger) (*bucket.Runner, error) {
	never, err := neverReached(ctx, systemResolver)
	if err != nil {
		return nil, refuse(err, "see whether the cluster's DNS answers on this node")
	}
	set := bucket.Settings{
		Program: s.buckets.program, MountS3: filepath.Base(s.buckets.program) == "mount-s3",
		Region: s.buckets.region, EndpointURL: s.buckets.endpoint, PathStyle: s.buckets.pathStyle,
		Owner: s.owner, Proxy: s.buckets.proxy, CacheSize: s.buckets.cache, Memory: s.buckets.memory,
		Endpoints: bucket.Endpoints{Insecure: s.buckets.insecure, Allow: s.buckets.allow, Deny: append(slices.Clone(s.buckets.deny), never...)},
	}
	if s.buckets.caFile != "" {
		ca, err := os.ReadFile(s.buckets.caFile)
		if err != nil {
			return nil, refuse(fmt.Errorf("read --bucket-ca-file: %w", err), "check the path, or unset it")
		}
		set.CA = ca
	}
	if err := set.Check(); err != nil {
		return nil, usage(err, "see the flags that begin with --bucket")
	}
	return &bucket.Runner{
		Settings: set, Credentials: &awscreds.Server{Secrets: secrets, Clock: clock.RealClock{}, Log: log, Lifetime: set.Lifetime()},
		Listener: k.Listener, Log: log, Life: ctx,
	}, nil
}
