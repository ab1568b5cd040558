package agentcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
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
	"github.com/datalayer/node-mounts/internal/netaddr"
)

// repositories are the settings of the kind git.
type repositories struct {
	on         bool
	timeout    int // seconds
	user       beneath.Owner
	size, kept int64
	total      int64
	files      int
	free       int // percent
	memory     int64
	caFile     string
	proxy      string
	allow      []netip.AddrPort
	deny       []netip.Prefix
}

const (
	leastCloneTimeout = 1
	mostCloneTimeout  = 86400
	// gitJobs is how many repositories are fetched at the same time.
	gitJobs = 4
	// gitJobsPerHost leaves one of them to the others where a server stalls.
	gitJobsPerHost = gitJobs - 1
)

// leastGitMemory is what git's helper for credentials, which is this program, needs to
// start with room to spare: it does not beneath 80 MiB, and then every credential is
// called missing.
const leastGitMemory = 128 << 20

// GitProcesses is how many processes of git there are at the most that may take memory.
// It is that of the agent's container: the limit of one process and this bound it.
const GitProcesses = gitJobs * checkout.Processes

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
			Flag: "checkout-files", Env: "DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUT_FILES", Default: "200000", Type: "number",
			Help: "how many files, folders and links one checkout may have, its repository included",
			set:  func(s *settings, v string) error { return number(&s.git.files, v, 100, 100_000_000) },
		},
		{
			Flag: "checkouts-total", Env: "DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUTS_TOTAL", Default: "50Gi", Type: "size",
			Help: "how much all checkouts may take together, those in use included; beyond it nothing is fetched",
			set:  func(s *settings, v string) error { return size(&s.git.total, v, 1<<20) },
		},
		{
			Flag: "checkouts-free", Env: "DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUTS_FREE", Default: "10", Type: "percent",
			Help: "how much of the disk, in bytes and in files, checkouts leave free: less of it free, and nothing is fetched",
			set:  func(s *settings, v string) error { return number(&s.git.free, v, 0, 90) },
		},
		{
			Flag: "git-memory", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_MEMORY", Default: "256Mi", Type: "size",
			Help: fmt.Sprintf("how much memory one process of git may take; there are up to %d at once, in the agent's container", GitProcesses),
			set:  func(s *settings, v string) error { return size(&s.git.memory, v, leastGitMemory) },
		},
		{
			Flag: "git-user", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_USER", Type: "uid:gid",
			Help: "who runs git: somebody in the image's /etc/passwd who owns nothing and is not --owner; empty: " + gitAccount + ", and nobody where there is none",
			set: func(s *settings, v string) error {
				s.git.user = beneath.Owner{}
				if v == "" {
					return nil
				}
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

// gitAccount is the account that the image has for git alone.
const gitAccount = "node-mounts-git"

// gitUser is who runs git where no flag says it. nobody is whoever else on the node has
// no account of its own: what one of them is made to do, it may do to the others.
func gitUser(passwd string, log *slog.Logger) (beneath.Owner, error) {
	accounts, err := os.ReadFile(passwd)
	if err != nil {
		return beneath.Owner{}, fmt.Errorf("look for git's account: %w", err)
	}
	for line := range strings.Lines(string(accounts)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 7 || fields[0] != gitAccount {
			continue
		}
		var user beneath.Owner
		if err := owner(&user, fields[2]+":"+fields[3]); err != nil {
			return user, fmt.Errorf("git's account in %s: %w", passwd, err)
		}
		return user, nil
	}
	log.Warn("git runs as nobody, which other programs of the node may be as well: use an image with the account " + gitAccount + ", or set --git-user")
	return beneath.Owner{UID: nobody, GID: nobody}, nil
}

const (
	passwdFile = "/etc/passwd"
	// nobody is the user and the group of that name.
	nobody = 65534
)

// gitServerOptions say which servers git reaches, and how.
func gitServerOptions() []Option {
	return []Option{
		{
			Flag: "git-ca-file", Env: "DATALAYER_NODE_MOUNT_GATEWAY_GIT_CA_FILE", Type: "path",
			Help: "certificates in PEM that git trusts beside the system's; read when the agent starts",
			set:  func(s *settings, v string) error { return optionalPath(&s.git.caFile, v) },
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

// optionalPath reads a path, or nothing.
func optionalPath(to *string, v string) error {
	*to = ""
	if v == "" {
		return nil
	}
	return absolute(to, v)
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

// resolver looks a name up.
type resolver func(ctx context.Context, host string) ([]netip.Addr, error)

func systemResolver(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// lookUpTime bounds the look-up of the API server's name.
const lookUpTime = 10 * time.Second

// neverReached are the addresses of the API server, which every container of a cluster
// is told, and of the node, by the chart. Nothing that a tenant names is sent there, so
// where they cannot be told, nothing is sent at all. Some clusters name the API server:
// its addresses are those of now.
func neverReached(ctx context.Context, look resolver) (all []netip.Prefix, err error) {
	ctx, stop := context.WithTimeout(ctx, lookUpTime)
	defer stop()
	for _, name := range []string{"KUBERNETES_SERVICE_HOST", "NODE_IP"} {
		host := os.Getenv(name)
		if host == "" {
			continue
		}
		if bare, ok := strings.CutPrefix(host, "["); ok {
			host = strings.TrimSuffix(bare, "]")
		}
		found := []netip.Addr{}
		if a, err := netip.ParseAddr(host); err == nil {
			found = append(found, a)
		} else if found, err = look(ctx, host); err != nil || len(found) == 0 {
			return nil, fmt.Errorf("the agent must know the addresses that tenants may not have it connect to, and %s (%q) is none and cannot be looked up: %w", name, host, cmp.Or(err, errNoAddress))
		}
		for _, a := range found {
			a = a.WithZone("").Unmap()
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all, nil
}

var errNoAddress = errors.New("it has no address")

// checkouts opens the store that git's checkouts are kept in, nil where none are
// served.
func (s settings) checkouts(boot string, log *slog.Logger) func(context.Context) (delivery.Checkouts, error) {
	if !s.git.on {
		return nil
	}
	return func(ctx context.Context) (delivery.Checkouts, error) {
		c, err := s.checkoutConfig(ctx, boot, log)
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

func (s settings) checkoutConfig(ctx context.Context, boot string, log *slog.Logger) (checkout.Config, error) {
	user := s.git.user
	if user == (beneath.Owner{}) {
		var err error
		if user, err = gitUser(passwdFile, log); err != nil {
			return checkout.Config{}, err
		}
	}
	c := checkout.Config{
		Root: filepath.Join(s.root, "checkouts"), Boot: boot,
		User: user.UID, Group: user.GID, Owner: checkout.Owner{UID: s.owner.UID, GID: s.owner.GID},
		// What of the node this container has: git needs none of it, and a kernel
		// without Landlock would let it look.
		Hide: []string{"/var/run/secrets", s.kubelet, s.sharedRoot, filepath.Join(s.root, "pods"), filepath.Join(s.root, "journal")},
		Limits: checkout.Limits{
			Bytes: s.git.size, Inodes: int64(s.git.files), Memory: s.git.memory, Timeout: time.Duration(s.git.timeout) * time.Second,
			Total: s.git.total, Free: s.git.free, Budget: s.git.kept, Jobs: gitJobs, PerHost: gitJobsPerHost,
		},
		Network: checkout.Policy{Allow: s.git.allow, Deny: s.git.deny},
		Proxy:   s.git.proxy, Log: log,
	}
	never, err := neverReached(ctx, systemResolver)
	if err != nil {
		return c, &checkout.Error{
			Class: checkout.Failed, Message: "the node does not know yet which addresses it must not fetch from: the agent goes on trying", Detail: err.Error(), Err: err, Node: true,
		}
	}
	c.Network.Deny = append(slices.Clone(c.Network.Deny), never...)
	if _, err := netaddr.Own(delivery.HostProc); err == nil {
		c.Network.Own = []string{delivery.HostProc}
	} else {
		log.Warn("of the node's own addresses only NODE_IP is known, and repositories may be asked for at the others: let the agent see the node's processes (hostPID), or list them in --git-deny", "error", err)
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
