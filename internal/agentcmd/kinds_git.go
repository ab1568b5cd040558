package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/delivery"
)

// repositories are the settings of the kind git.
type repositories struct {
	on         bool
	timeout    int // seconds
	user       beneath.Owner
	size, kept int64
	memory     int64
	caFile     string
	proxy      string
	allow      []netip.AddrPort
	deny       []netip.Prefix
}

const (
	leastCloneTimeout = 1
	mostCloneTimeout  = 86400
	// gitJobs is how many repositories are fetched at the same time. git's memory is
	// the agent's container's: the limit of one process and this bound it.
	gitJobs = 4
)

// gitOptions say whether repositories are fetched, and within which limits.
func gitOptions() []Option {
	return []Option{
		{
			Flag: "repositories", Env: "DATALAYER_NODE_MOUNT_GATEWAY_REPOSITORIES", Default: "false", Type: "true|false",
			Help: "serve the kind git; needs git and, for ssh, OpenSSH's client",
			set:  func(s *settings, v string) error { return truth(&s.git.on, v) },
		},
		{
			Flag: "clone-timeout", Env: "DATALAYER_CLONE_TIMEOUT_SECONDS", Default: "300", Type: "seconds",
			Help: "how long a checkout may take before its grant fails",
			set: func(s *settings, v string) error {
				return number(&s.git.timeout, v, leastCloneTimeout, mostCloneTimeout)
			},
		},
		{
			Flag: "checkout-size", Env: "DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUT_SIZE", Default: "2Gi", Type: "size",
			Help: "how much of the node's disk one checkout may take, its repository included",
			set:  func(s *settings, v string) error { return size(&s.git.size, v, 1<<20) },
		},
		{
			Flag: "checkouts-kept", Env: "DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUTS_KEPT", Default: "10Gi", Type: "size",
			Help: "how much checkouts that no Pod uses may take together before they are removed; 0: none is kept",
			set:  func(s *settings, v string) error { return size(&s.git.kept, v, 0) },
		},
		{
			Flag: "git-memory", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_MEMORY", Default: "256Mi", Type: "size",
			Help: fmt.Sprintf("how much memory one process of git may take; up to %d repositories are fetched at once, in the agent's container", gitJobs),
			set:  func(s *settings, v string) error { return size(&s.git.memory, v, 32<<20) },
		},
		{
			Flag: "git-user", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_USER", Default: "65534:65534", Type: "uid:gid",
			Help: "who runs git: somebody in the image's /etc/passwd who owns nothing and is not --owner",
			set: func(s *settings, v string) error {
				if err := owner(&s.git.user, v); err != nil {
					return err
				}
				if s.git.user.UID == 0 || s.git.user.GID == 0 {
					return errors.New("git does not run as root")
				}
				return nil
			},
		},
	}
}

// gitServerOptions say which servers git reaches, and how.
func gitServerOptions() []Option {
	return []Option{
		{
			Flag: "git-ca-file", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_CA_FILE", Type: "path",
			Help: "certificates in PEM that git trusts beside the system's; read when the agent starts",
			set: func(s *settings, v string) error {
				s.git.caFile = ""
				if v == "" {
					return nil
				}
				return dir(&s.git.caFile, v)
			},
		},
		{
			Flag: "git-proxy", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_PROXY", Type: "url", Hidden: true,
			Help: "proxy for https repositories, http:// or https://; it looks names up, and decides which addresses may be reached",
			set:  func(s *settings, v string) error { return proxy(&s.git.proxy, v) },
		},
		{
			Flag: "git-allow", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_ALLOW", Type: "list",
			Help: "address:port of servers that may be fetched from although they are on a network that is refused",
			set:  func(s *settings, v string) error { return ports(&s.git.allow, v) },
		},
		{
			Flag: "git-deny", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_DENY", Type: "list",
			Help: "addresses and networks that nothing is fetched from, beside loopback, link-local, metadata services, the API server and the node",
			set:  func(s *settings, v string) error { return networks(&s.git.deny, v) },
		},
	}
}

// size reads bytes, with Ki, Mi, Gi or Ti as in Kubernetes.
func size(to *int64, v string, least int64) error {
	number, unit := v, int64(1)
	for suffix, u := range map[string]int64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40} {
		if n, found := strings.CutSuffix(v, suffix); found {
			number, unit = n, u
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit || n*unit < least {
		return fmt.Errorf("want bytes, such as 512Mi or 2Gi, at least %d", least)
	}
	*to = n * unit
	return nil
}

// proxy never repeats what it was given: a proxy's address may hold a password.
func proxy(to *string, v string) error {
	*to = v
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("want a URL such as http://proxy.example.org:3128")
	}
	return nil
}

func ports(to *[]netip.AddrPort, v string) error {
	*to = nil
	for _, text := range list(v) {
		a, err := netip.ParseAddrPort(text)
		if err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
			return errors.New("want addresses with a port, such as 10.0.0.7:443 or [fd00::7]:443")
		}
		*to = append(*to, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
	return nil
}

func networks(to *[]netip.Prefix, v string) error {
	*to = nil
	for _, text := range list(v) {
		p, err := netip.ParsePrefix(text)
		if a, aerr := netip.ParseAddr(text); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
		}
		if err != nil {
			return errors.New("want addresses and networks, such as 10.0.0.7 or 10.0.0.0/8")
		}
		*to = append(*to, p.Masked())
	}
	return nil
}

// neverFetched are the variables that have the addresses of the API server, in every
// container of a cluster, and of the node, by the chart.
func neverFetched() []string { return []string{"KUBERNETES_SERVICE_HOST", "NODE_IP"} }

// checkouts opens the store that git's checkouts are kept in, nil where none are
// served.
func (s settings) checkouts(boot string, log *slog.Logger) func(context.Context) (delivery.Checkouts, error) {
	if !s.git.on {
		return nil
	}
	return func(ctx context.Context) (delivery.Checkouts, error) {
		c, err := s.checkoutConfig(boot, log)
		if err != nil {
			return nil, err
		}
		store, err := checkout.Open(ctx, c)
		if err != nil {
			return nil, err
		}
		return store, nil
	}
}

func (s settings) checkoutConfig(boot string, log *slog.Logger) (checkout.Config, error) {
	c := checkout.Config{
		Root: filepath.Join(s.root, "checkouts"), Boot: boot,
		User: s.git.user.UID, Group: s.git.user.GID, Owner: checkout.Owner{UID: s.owner.UID, GID: s.owner.GID},
		// What of the node this container has: git needs none of it, and a kernel
		// without Landlock would let it look.
		Hide:    []string{"/var/run/secrets", s.kubelet, s.sharedRoot, filepath.Join(s.root, "pods"), filepath.Join(s.root, "journal")},
		Limits:  checkout.Limits{Bytes: s.git.size, Memory: s.git.memory, Timeout: time.Duration(s.git.timeout) * time.Second, Budget: s.git.kept, Jobs: gitJobs},
		Network: checkout.Policy{Allow: s.git.allow, Deny: s.git.deny},
		Proxy:   s.git.proxy, Log: log,
	}
	if s.git.kept == 0 {
		c.Limits.Budget = -1
	}
	c.Network.Deny = slices.Clone(c.Network.Deny)
	for _, name := range neverFetched() {
		if a, err := netip.ParseAddr(os.Getenv(name)); err == nil {
			c.Network.Deny = append(c.Network.Deny, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
		}
	}
	if s.git.caFile != "" {
		ca, err := os.ReadFile(s.git.caFile)
		if err != nil {
			return c, fmt.Errorf("read --git-ca-file: %w", err)
		}
		c.CA = ca
	}
	return c, nil
}
