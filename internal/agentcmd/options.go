package agentcmd

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/obs"
)

// Option is one setting of the agent. The flag wins over the environment
// variable, and that over the default.
type Option struct {
	Flag    string // without the dashes
	Env     string // "" when no variable sets it
	Default string
	Type    string // what a value is, in a word
	Help    string
	// EmptyCounts: a variable that is set and empty is a value. Elsewhere it is
	// as good as unset, because a manifest has no other way to leave it out.
	EmptyCounts bool
	// Hidden: a value may hold a password, and no error shows it.
	Hidden bool

	set func(s *settings, value string) error
}

// settings are the values of all options, each of the shape it has to have.
type settings struct {
	node                             string
	sharedRoot, root, kubelet, mount string
	namespace                        string
	maxPerPod, maxPerNode            int
	healthPort                       int
	logLevel                         string
	events                           bool
	prefix, volume                   string
	owner                            beneath.Owner
	kubeconfig                       string
	sandboxed                        []string
	credentials, nfs                 bool
	nfsServers                       delivery.Servers
	nfsTimeout                       time.Duration
	git                              repositories
	keeper                           string // where it is
	buckets                          buckets
}

// Options is the table of the agent's settings: the flags, the documentation and
// the tests are made from it.
func Options() []Option {
	return slices.Concat(nodeOptions(), limitOptions(), kindOptions(), gitOptions(), gitServerOptions(), keeperOptions(), bucketOptions(), bucketServerOptions(), podOptions())
}

// nodeOptions say where the agent is.
func nodeOptions() []Option {
	return []Option{
		{
			Flag: "node-id", Env: "NODE_ID", Type: "name",
			Help: "name of this node in the Kubernetes API (spec.nodeName); required",
			set:  func(s *settings, v string) error { return name(&s.node, v, 253) },
		},
		{
			Flag: "shared-root", Env: "DATALAYER_SHARED_FS_MOUNT_PATH", Default: nodeview.DefaultSharedRoot, Type: "path",
			Help: "where the shared claim with the folders to grant is mounted",
			set:  func(s *settings, v string) error { return absolute(&s.sharedRoot, v) },
		},
		{
			Flag: "root", Env: "DATALAYER_NODE_MOUNT_GATEWAY_ROOT", Default: nodeview.DefaultRoot, Type: "path",
			Help: "the agent's own folder: trees and journal; a host path, propagated Bidirectional",
			set:  func(s *settings, v string) error { return absolute(&s.root, v) },
		},
		{
			Flag: "kubelet-dir", Env: "DATALAYER_KUBELET_DIR", Default: "/var/lib/kubelet", Type: "path",
			Help: "kubelet's folder; a host path, propagated Bidirectional",
			set:  func(s *settings, v string) error { return absolute(&s.kubelet, v) },
		},
		{
			Flag: "namespace", Env: "DATALAYER_RUNTIMES_NAMESPACE", Default: nodeview.DefaultNamespace, Type: "name", EmptyCounts: true,
			Help: "namespace whose Pods are served; empty: all namespaces",
			set: func(s *settings, v string) error {
				if v == "" {
					s.namespace = ""
					return nil
				}
				return label(&s.namespace, v)
			},
		},
	}
}

// limitOptions say how much the agent may do, and how it is watched.
func limitOptions() []Option {
	return []Option{
		{
			Flag: "max-mounts-per-pod", Env: "DATALAYER_MAX_MOUNTS_PER_POD", Default: strconv.Itoa(agent.DefaultMaxPerPod), Type: "number",
			Help: "how many mounts one Pod may have",
			set:  func(s *settings, v string) error { return number(&s.maxPerPod, v, 1, grant.MaxEntries) },
		},
		{
			Flag: "max-mounts-per-node", Env: "DATALAYER_MAX_MOUNTS_PER_NODE", Default: strconv.Itoa(agent.DefaultMaxPerNode), Type: "number",
			Help: "how many mounts all Pods of this node may have together",
			set:  func(s *settings, v string) error { return number(&s.maxPerNode, v, 1, maxPerNodeLimit) },
		},
		{
			Flag: "health-port", Env: "DATALAYER_LOCAL_CSI_HEALTH_PORT", Default: "9808", Type: "port",
			Help: "port of /healthz, /readyz, /metrics and /gateway; 0: none",
			set:  func(s *settings, v string) error { return number(&s.healthPort, v, 0, 65535) },
		},
		{
			Flag: "log-level", Env: "DATALAYER_LOG_LEVEL", Default: "info", Type: "level",
			Help: "debug, info, warn or error",
			set: func(s *settings, v string) error {
				s.logLevel = v
				return obs.CheckLevel(v)
			},
		},
		{
			Flag: "events", Env: "DATALAYER_NODE_MOUNT_GATEWAY_EVENTS", Default: "true", Type: "true|false",
			Help: "write Kubernetes events on Pods when their mounts change; needs events: create, patch",
			set:  func(s *settings, v string) error { return truth(&s.events, v) },
		},
		{
			Flag: "kubeconfig", Env: "KUBECONFIG", Type: "path",
			Help: "kubeconfig to use outside a cluster; empty: the Pod's service account",
			set: func(s *settings, v string) error {
				s.kubeconfig = v
				return nil
			},
		},
	}
}

// podOptions say what the Pods it serves look like.
func podOptions() []Option {
	return []Option{
		{
			Flag: "annotation-prefix", Default: grant.DefaultPrefix, Type: "domain",
			Help: "domain of the annotations and the label",
			set:  func(s *settings, v string) error { return name(&s.prefix, v, 253) },
		},
		{
			Flag: "volume-name", Default: grant.DefaultVolumeName, Type: "name",
			Help: "name of the gateway volume in a Pod",
			set:  func(s *settings, v string) error { return label(&s.volume, v) },
		},
		{
			Flag: "mount-path", Default: grant.DefaultMountPath, Type: "path",
			Help: "where Pods are expected to mount the volume; shown by /gateway, each Pod's own path is what counts",
			set:  func(s *settings, v string) error { return absolute(&s.mount, v) },
		},
		{
			Flag: "owner", Default: "1000:100", Type: "uid:gid",
			Help: "who is given a home folder that the agent makes",
			set:  func(s *settings, v string) error { return owner(&s.owner, v) },
		},
		{
			Flag: "sandboxed-runtimes", Default: strings.Join(grant.DefaultSandboxedRuntimes(), ","), Type: "list", EmptyCounts: true,
			Help: "runtime classes, by prefix, whose containers do not see the node's mounts",
			set: func(s *settings, v string) error {
				s.sandboxed = list(v)
				return nil
			},
		},
	}
}

// maxPerNodeLimit is where a cap stops being one: the kernel's own limit for a
// mount namespace is 100,000 (fs.mount-max), and each grant is a mount in
// several.
const maxPerNodeLimit = 20000

// resolve gives every option its value. flag and env look one up.
func resolve(flag, env func(string) (string, bool)) (settings, error) {
	s, err := resolveThese(Options(), flag, env)
	if err != nil {
		return s, err
	}
	if err := apart(s); err != nil {
		return s, err
	}
	return s, s.together()
}

// together refuses settings that are of no use without others.
func (s settings) together() error {
	switch {
	case s.buckets.on && s.keeper == "":
		return usage(errors.New("--buckets needs --keeper"), "a bucket is a process, and the keeper runs it: say where it is")
	case s.buckets.on && !s.credentials:
		return usage(errors.New("--buckets needs --credentials"), "a bucket is read with the session in a Secret that its Pod owns")
	}
	return nil
}

func resolveThese(options []Option, flag, env func(string) (string, bool)) (settings, error) {
	var s settings
	for _, o := range options {
		value, origin := o.Default, "--"+o.Flag
		if v, ok := flag(o.Flag); ok {
			value = v
		} else if v, ok := env(o.Env); ok && o.Env != "" && (v != "" || o.EmptyCounts) {
			value, origin = v, o.Env
		}
		if err := o.set(&s, value); err != nil {
			if value == "" {
				return s, usage(fmt.Errorf("%s is not set", origin), "set --%s%s: %s", o.Flag, orEnv(o), o.Help)
			}
			if o.Hidden {
				value = "…"
			}
			return s, usage(fmt.Errorf("%s %.80q: %w", origin, value, err), "--%s: %s", o.Flag, o.Help)
		}
	}
	return s, nil
}

func orEnv(o Option) string {
	if o.Env == "" {
		return ""
	}
	return " or " + o.Env
}

// apart refuses folders that lie in one another where that would mix what the
// agent mounts and removes with what belongs to users or to kubelet.
func apart(s settings) error {
	for _, c := range []struct{ inner, innerFlag, outer, outerFlag string }{
		{s.root, "root", s.sharedRoot, "shared-root"},
		{s.root, "root", s.kubelet, "kubelet-dir"},
		{s.sharedRoot, "shared-root", s.root, "root"},
		{s.kubelet, "kubelet-dir", s.root, "root"},
		{s.kubelet, "kubelet-dir", s.sharedRoot, "shared-root"},
	} {
		if c.inner == c.outer || strings.HasPrefix(c.inner, c.outer+"/") {
			return usage(fmt.Errorf("--%s %s lies in --%s %s", c.innerFlag, c.inner, c.outerFlag, c.outer),
				"give the agent a folder of its own (--root) beside kubelet's and the claim")
		}
	}
	return nil
}

// Kubernetes' rules for names: a label is one part of a domain name.
const (
	labelPattern  = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	domainPattern = `\A` + labelPattern + `(\.` + labelPattern + `)*\z`
)

func name(to *string, v string, most int) error {
	if ok, err := regexp.MatchString(domainPattern, v); err != nil || !ok || len(v) > most {
		return errors.New("want a name of lower-case letters, digits, dashes and dots")
	}
	*to = v
	return nil
}

func label(to *string, v string) error {
	if err := name(to, v, 63); err != nil || strings.Contains(v, ".") {
		return errors.New("want a name of at most 63 lower-case letters, digits and dashes")
	}
	return nil
}

func absolute(to *string, v string) error {
	switch {
	case !filepath.IsAbs(v):
		return errors.New("want an absolute path")
	case strings.ContainsRune(v, 0):
		return errors.New("a path has no NUL")
	case filepath.Clean(v) == "/":
		return errors.New("want a folder, not the whole filesystem")
	}
	*to = filepath.Clean(v)
	return nil
}

func number(to *int, v string, least, most int) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return fmt.Errorf("want a number from %d to %d", least, most)
	}
	*to = n
	return nil
}

// owner reads uid:gid. -1 and its unsigned spelling mean "unchanged" to chown
// and are no owner.
func owner(to *beneath.Owner, v string) error {
	const most = 1<<31 - 1
	u, g, ok := strings.Cut(v, ":")
	var o beneath.Owner
	if !ok || number(&o.UID, u, 0, most) != nil || number(&o.GID, g, 0, most) != nil {
		return errors.New("want uid:gid in numbers, such as 1000:100")
	}
	*to = o
	return nil
}

func list(v string) []string {
	var all []string
	for s := range strings.SplitSeq(v, ",") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}
