package verify

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/operator"
)

// Settings are what the cluster is expected to be called and to look like. What is
// empty is what the agents say, and the default where they say nothing.
type Settings struct {
	Names grant.Names
	// Volume is the name of the gateway volume.
	Volume string
	// Namespace is that of the runtimes; "" is what the agents say they serve.
	Namespace string
	// AgentNamespace is that of the agents; "" is wherever they are found.
	AgentNamespace string
	// Operator is the name of the Operator's Deployment, looked for in
	// OperatorNamespace, "" for all.
	Operator, OperatorNamespace string
	// AgentOnly: the Operator's half is not expected to be on yet.
	AgentOnly bool
	// RuntimeAccount is the service account that runtimes use.
	RuntimeAccount string
	// Companions are the containers that run no user code and may have a token.
	Companions []string
	// SandboxedRuntimes are prefixes of runtime classes and their handlers with a
	// kernel of their own.
	SandboxedRuntimes []string
}

// Known is something that was looked up, or why it could not be.
type Known[T any] struct {
	Value T
	Err   error
}

// NodeAnswer is what became of asking the agent of one node.
type NodeAnswer struct {
	Node string
	// Pod is the agent's; "" where none runs.
	Pod   string
	Ready bool
	// Document is what the agent tells of its node. Without it Err says why there is
	// none: it is ErrNoGateway where the agent was asked and serves none.
	Document *nodeview.Node
	Err      error
}

// ErrNoGateway is that an agent's container answers and no gateway in it.
var ErrNoGateway = errors.New("the agent runs and does not serve /gateway")

// silent tells whether the agent was asked, and had nothing to tell.
func (a NodeAnswer) silent() bool { return a.Document == nil && errors.Is(a.Err, ErrNoGateway) }

// Account is a service account.
type Account struct {
	Namespace, Name string
}

func (a Account) String() string { return a.Namespace + "/" + a.Name }

// Question is one thing that an account may or may not do.
type Question struct {
	Account
	Verb, Resource, Subresource string
	// In is the namespace, "" for all of them.
	In string
}

// Address is one address of the API server, as Pods reach it.
type Address struct {
	IP   netip.Addr
	Port int32
}

// Facts are what was found out about a cluster.
type Facts struct {
	Settings Settings

	// DaemonSets are the agents'; Others are all others in their namespaces.
	DaemonSets Known[[]appsv1.DaemonSet]
	Others     Known[[]appsv1.DaemonSet]
	Answers    Known[[]NodeAnswer]
	Nodes      Known[[]corev1.Node]
	// Operators are the Deployments of the Operator's name.
	Operators Known[[]appsv1.Deployment]
	// Claim is the one the agents mount, nil where they mount none.
	Claim Known[*corev1.PersistentVolumeClaim]
	// Pods are those that carry the gateway's label or its volume and have not
	// finished.
	Pods Known[[]corev1.Pod]
	// Handlers are the runtime classes' handlers, by name.
	Handlers Known[map[string]string]
	// Policies are the network policies in the agents' namespaces; API is where the
	// API server is.
	Policies Known[[]networkingv1.NetworkPolicy]
	API      Known[[]Address]
	// Automount is what each account of the runtimes says, nil where the account
	// does not exist; an account that says nothing automounts.
	Automount map[Account]Known[*bool]
	// May are the answers to the questions that questions lists.
	May map[Question]Known[bool]
}

// documents are the answers that have one.
func (f Facts) documents() []nodeview.Node {
	var docs []nodeview.Node
	for _, a := range f.Answers.Value {
		if a.Document != nil {
			docs = append(docs, *a.Document)
		}
	}
	return docs
}

// served are the namespaces whose Pods the agents serve; [""] is all.
func (f Facts) served() []string {
	if f.Settings.Namespace != "" {
		return []string{f.Settings.Namespace}
	}
	var all []string
	for _, d := range f.documents() {
		all = append(all, d.Namespace)
	}
	if len(all) == 0 {
		for _, ds := range f.DaemonSets.Value {
			if ns, ok := setting(ds, "DATALAYER_RUNTIMES_NAMESPACE", "namespace"); ok {
				all = append(all, ns)
			}
		}
	}
	switch {
	case len(all) == 0:
		return []string{DefaultNamespace}
	case slices.Contains(all, ""):
		return []string{""}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// agentAccounts are the service accounts of the agents.
func (f Facts) agentAccounts() []Account {
	var all []Account
	for _, ds := range f.DaemonSets.Value {
		a := Account{ds.Namespace, ds.Spec.Template.Spec.ServiceAccountName}
		if a.Name == "" {
			a.Name = "default"
		}
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// runtimeAccounts are the accounts that runtimes have, by their name and by the
// Pods that are there.
func (f Facts) runtimeAccounts() []Account {
	var all []Account
	add := func(a Account) {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	for _, ns := range f.served() {
		if ns != "" {
			add(Account{ns, f.Settings.RuntimeAccount})
		}
	}
	for _, p := range f.Pods.Value {
		add(accountOf(p))
	}
	if len(all) == 0 {
		add(Account{DefaultNamespace, f.Settings.RuntimeAccount})
	}
	return all
}

func accountOf(p corev1.Pod) Account {
	if p.Spec.ServiceAccountName == "" {
		return Account{p.Namespace, "default"}
	}
	return Account{p.Namespace, p.Spec.ServiceAccountName}
}

// driver is the agent's container, whatever else its Pod has.
func driver(ds appsv1.DaemonSet) corev1.Container {
	containers := ds.Spec.Template.Spec.Containers
	for _, c := range containers {
		if c.Name == fleet.Container {
			return c
		}
	}
	if len(containers) > 0 {
		return containers[0]
	}
	return corev1.Container{}
}

// setting is what the agent's container says about a setting, as flag or as
// variable; "" is none. A flag wins, as it does in the agent.
func setting(ds appsv1.DaemonSet, variable, flag string) (string, bool) {
	c := driver(ds)
	if value, ok := given(slices.Concat(c.Command, c.Args), flag); ok {
		return value, true
	}
	for _, e := range c.Env {
		if e.Name == variable && e.ValueFrom == nil {
			return e.Value, true
		}
	}
	return "", false
}

// given is the value of a flag among arguments.
func given(args []string, flag string) (string, bool) {
	if flag == "" {
		return "", false
	}
	for i, a := range args {
		if value, ok := strings.CutPrefix(a, "--"+flag+"="); ok {
			return value, true
		}
		if a == "--"+flag && i+1 < len(args) {
			return args[i+1], true
		}
	}
	return "", false
}

// claimPath is where the agent has the claim.
func (f Facts) claimPath(ds appsv1.DaemonSet) string {
	if docs := f.documents(); len(docs) > 0 && docs[0].Facts.Claim.Path != "" {
		return docs[0].Facts.Claim.Path
	}
	if path, ok := setting(ds, "DATALAYER_SHARED_FS_MOUNT_PATH", "shared-root"); ok && path != "" {
		return path
	}
	return nodeview.DefaultSharedRoot
}

// claimVolume is the volume that the agent's container has at the claim's path.
func (f Facts) claimVolume(ds appsv1.DaemonSet) *corev1.Volume {
	path := f.claimPath(ds)
	for _, m := range driver(ds).VolumeMounts {
		if m.MountPath != path {
			continue
		}
		for _, v := range ds.Spec.Template.Spec.Volumes {
			if v.Name == m.Name {
				return &v
			}
		}
	}
	return nil
}

// claimName is the persistent volume claim behind it, "" where it is none.
func (f Facts) claimName(ds appsv1.DaemonSet) string {
	if v := f.claimVolume(ds); v != nil && v.PersistentVolumeClaim != nil {
		return v.PersistentVolumeClaim.ClaimName
	}
	return ""
}

// settle fills in the settings that are empty.
func (f *Facts) settle() {
	said := func(flag string) string {
		for _, ds := range f.DaemonSets.Value {
			if v, ok := setting(ds, "", flag); ok {
				return v
			}
		}
		return ""
	}
	s := &f.Settings
	if s.Names == (grant.Names{}) {
		s.Names = grant.NamesFor(said("annotation-prefix"))
	}
	for _, d := range f.documents() {
		s.Volume = cmp.Or(s.Volume, d.VolumeName)
	}
	s.Volume = cmp.Or(s.Volume, said("volume-name"), grant.DefaultVolumeName)
	s.Operator = cmp.Or(s.Operator, DefaultOperator)
	s.RuntimeAccount = cmp.Or(s.RuntimeAccount, DefaultRuntimeAccount)
	if s.Companions == nil {
		s.Companions = []string{operator.DefaultCompanion}
	}
	if s.SandboxedRuntimes == nil {
		s.SandboxedRuntimes = grant.DefaultSandboxedRuntimes()
		if list := said("sandboxed-runtimes"); list != "" {
			s.SandboxedRuntimes = strings.Split(list, ",")
		}
	}
}

func plural(n int, single, many string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, single)
	}
	return fmt.Sprintf("%d %s", n, many)
}
