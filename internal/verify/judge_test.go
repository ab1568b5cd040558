package verify_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/internal/verify/verifytest"
)

// The ten rows of the reference, in its order and with its names.
func TestTheFirstTenRowsHaveTheirNames(t *testing.T) {
	want := []string{
		"Node driver DaemonSet", "Mount propagation (rshared)", "Kernel supports mount_setattr (5.12+)",
		"Node Mount Gateway enabled on the node", "Operator and agent agree", "Shared filesystem claim",
		"Agent may patch a pod", "A runtime may NOT grant itself a mount", "Agent Secret access matches config", "No leaked mounts",
	}
	seen := map[string]bool{}
	for i, c := range verify.Checks() {
		if i < len(want) && c.Name != want[i] {
			t.Errorf("row %d is %q, want %q", i, c.Name, want[i])
		}
		if seen[c.Name] || c.Name == "" || !strings.HasSuffix(c.What, ".") || !strings.HasSuffix(c.Do, ".") {
			t.Errorf("row %d is not complete: %+v", i, c)
		}
		seen[c.Name] = true
	}
}

func TestAHealthyClusterIsOKInEveryRow(t *testing.T) {
	results := verify.Judge(healthy())
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.Check] = true
		want := verify.OK
		if r.Check == runtimeGrants {
			want = verify.Warn // the companion needs the permission
		}
		if r.Status != want {
			t.Errorf("%+v, want %s", r, want)
		}
		if r.Status == verify.OK && r.Hint != "" {
			t.Errorf("a hint where nothing is to do: %+v", r)
		}
	}
	for _, c := range verify.Checks() {
		if !seen[c.Name] {
			t.Errorf("no result of %q", c.Name)
		}
	}
}

const (
	daemonSet     = "Node driver DaemonSet"
	propagation   = "Mount propagation (rshared)"
	kernel        = "Kernel supports mount_setattr (5.12+)"
	enabled       = "Node Mount Gateway enabled on the node"
	agree         = "Operator and agent agree"
	claim         = "Shared filesystem claim"
	mayPatch      = "Agent may patch a pod"
	runtimeGrants = "A runtime may NOT grant itself a mount"
	secretAccess  = "Agent Secret access matches config"
	leaked        = "No leaked mounts"
	memory        = "Gateway volume is memory-backed"
	reaches       = "Gateway volume reaches the containers"
	runtimeClass  = "Runtime class supported"
	seccomp       = "Seccomp"
	trees         = "Trees are tmpfs"
	kubeletRoot   = "kubelet root found"
	selinux       = "SELinux is off"
	network       = "NetworkPolicy lets the watch through"
	outlives      = "Claim outlives the agent"
	keeperThere   = "Keeper there"
	keeperVersion = "Keeper not older than the agent"
	everyNode     = "Every node asked"
)

// story is one thing that differs from a healthy cluster, and what one row says.
type story struct {
	check  string
	change func(*verify.Facts)
	status verify.Status
	says   string // part of the detail
}

func stories() map[string]map[string]story {
	return map[string]map[string]story{
		"cluster": clusterStories(), "node": nodeStories(), "claim": claimStories(), "access": accessStories(),
		"pod": podStories(), "network": networkStories(), "nodes": coverageStories(), "keeper": keeperStories(),
	}
}

func TestEveryFaultIsFoundByItsRow(t *testing.T) {
	tested := map[string]bool{}
	for _, group := range stories() {
		for name, s := range group {
			tested[s.check] = true
			t.Run(name, func(t *testing.T) {
				f := healthy()
				s.change(&f)
				found := of(verify.Judge(f), s.check)
				i := slices.IndexFunc(found, func(r verify.Result) bool { return r.Status == s.status && strings.Contains(r.Detail, s.says) })
				if i < 0 {
					t.Fatalf("no %s that says %q in %+v", s.status, s.says, found)
				}
				if worst := verify.Worst(found); worst != s.status {
					t.Errorf("the row is %s, want %s: %+v", worst, s.status, found)
				}
				if bad := s.status == verify.Fail || s.status == verify.Warn; bad != (found[i].Hint != "") {
					t.Errorf("what to do about it: %+v", found[i])
				}
			})
		}
	}
	for _, c := range verify.Checks() {
		if !tested[c.Name] {
			t.Errorf("nothing makes %q fail", c.Name)
		}
	}
}

func of(results []verify.Result, check string) []verify.Result {
	var found []verify.Result
	for _, r := range results {
		if r.Check == check {
			found = append(found, r)
		}
	}
	return found
}

var errForbidden = errors.New("user is forbidden")

func clusterStories() map[string]story {
	return map[string]story{
		"no DaemonSet":                           {daemonSet, func(f *verify.Facts) { f.DaemonSets.Value = nil }, verify.Fail, "there is none"},
		"the DaemonSet cannot be read":           {daemonSet, func(f *verify.Facts) { f.DaemonSets = verify.Known[[]appsv1.DaemonSet]{Err: errForbidden} }, verify.Fail, "forbidden"},
		"an agent is not ready":                  {daemonSet, func(f *verify.Facts) { f.DaemonSets.Value[0].Status.NumberReady = 1 }, verify.Fail, "1/2 ready"},
		"the DaemonSet covers nothing":           {daemonSet, func(f *verify.Facts) { f.DaemonSets.Value[0].Status = appsv1.DaemonSetStatus{} }, verify.Fail, "no node"},
		"a rollout is under way":                 {daemonSet, func(f *verify.Facts) { f.DaemonSets.Value[0].Status.UpdatedNumberScheduled = 1 }, verify.Warn, "1 of this revision"},
		"the agent's half alone":                 {agree, func(f *verify.Facts) { f.Operators.Value[0].Spec.Template.Spec.Containers[0].Env[0].Value = "false" }, verify.Fail, "the Operator's half is off"},
		"the agent's half alone, as it begins":   {agree, agentFirst, verify.OK, "not expected"},
		"the Operator's half alone":              {agree, func(f *verify.Facts) { noDocuments(f); f.DaemonSets.Value = nil }, verify.Fail, "the agent's half is off: there is no DaemonSet"},
		"the Operator's half, agents serve none": {agree, noDocuments, verify.Fail, "no agent serves /gateway"},
		"the Operator's half, the switch is off": {agree, func(f *verify.Facts) { noDocuments(f); switchOff(f) }, verify.Fail, "=false"},
		"neither half":                           {agree, func(f *verify.Facts) { noDocuments(f); f.Operators.Value[0].Spec = appsv1.DeploymentSpec{} }, verify.OK, "neither half"},
		"another Operator, told by its Pods":     {agree, func(f *verify.Facts) { f.Operators.Value = nil }, verify.OK, "by 1 Pod"},
		"nothing tells of an Operator":           {agree, func(f *verify.Facts) { f.Operators.Value, f.Pods.Value = nil, nil }, verify.Skip, "no Deployment datalayer-operator"},
		"Deployments cannot be read":             {agree, func(f *verify.Facts) { f.Operators.Err = errForbidden }, verify.Fail, "forbidden"},
		"nobody may ask, the DaemonSet tells":    {agree, func(f *verify.Facts) { unaskable(f) }, verify.OK, "DaemonSet alone"},
	}
}

func agentFirst(f *verify.Facts) {
	f.Settings.AgentOnly = true
	f.Operators.Value, f.Pods.Value = nil, nil
}

func switchOff(f *verify.Facts) {
	c := &f.DaemonSets.Value[0].Spec.Template.Spec.Containers[0]
	c.Env = append(c.Env, corev1.EnvVar{Name: verify.EnabledVariable, Value: "false"})
}

// noDocuments: the agents run and serve nothing.
func noDocuments(f *verify.Facts) {
	for i := range f.Answers.Value {
		f.Answers.Value[i].Document, f.Answers.Value[i].Err = nil, fmt.Errorf("%w: connection refused", verify.ErrNoGateway)
	}
}

func unaskable(f *verify.Facts) {
	for i := range f.Answers.Value {
		f.Answers.Value[i].Document, f.Answers.Value[i].Err = nil, errForbidden
	}
}

// on changes what the second node tells.
func on(change func(*nodeview.Node)) func(*verify.Facts) {
	return func(f *verify.Facts) { change(f.Answers.Value[1].Document) }
}

func nodeStories() map[string]story {
	return map[string]story{
		"private propagation":               {propagation, on(func(n *nodeview.Node) { n.Facts.KubeletPropagation = nodeview.Private }), verify.Fail, "/var/lib/kubelet is private"},
		"the agent's root is a slave":       {propagation, on(func(n *nodeview.Node) { n.Facts.RootPropagation = nodeview.Slave }), verify.Fail, "is slave"},
		"propagation that is not known":     {propagation, on(func(n *nodeview.Node) { n.Facts.KubeletPropagation = "" }), verify.Fail, "is unknown"},
		"propagation of a node not asked":   {propagation, unaskable, verify.Skip, "not asked"},
		"an old kernel":                     {kernel, on(func(n *nodeview.Node) { n.Facts.MountSetattr, n.Facts.Kernel = false, "5.10.0" }), verify.Fail, "5.10.0 has no mount_setattr"},
		"an agent that is not ready":        {enabled, on(func(n *nodeview.Node) { n.Ready, n.Reason = false, "no shared root" }), verify.Fail, "no shared root"},
		"an agent that serves none":         {enabled, noDocuments, verify.Fail, "does not serve"},
		"the gateway switched off":          {enabled, switchOff, verify.Fail, "=false"},
		"an agent that could not be asked":  {enabled, unaskable, verify.Skip, "not asked"},
		"a leaked mount":                    {leaked, on(func(n *nodeview.Node) { n.Leaked, n.Pods[0].Leaked = 2, 2 }), verify.Fail, "2 mount(s) would not unmount (datalayer-runtimes/sandbox: 2)"},
		"a leak of a Pod that is forgotten": {leaked, on(func(n *nodeview.Node) { n.Leaked = 1 }), verify.Fail, "1 mount(s)"},
		"a tree on the disk":                {trees, on(func(n *nodeview.Node) { n.Pods[0].Tree = "ext4" }), verify.Fail, "sandbox is ext4"},
		"no trees yet":                      {trees, func(f *verify.Facts) { f.Answers.Value[0].Document.Pods, f.Answers.Value[1].Document.Pods = nil, nil }, verify.Skip, "no Pod has a tree"},
		"another kubelet root":              {kubeletRoot, on(func(n *nodeview.Node) { n.Facts.KubeletFound = false }), verify.Fail, "/var/lib/kubelet is not where"},
		"SELinux":                           {selinux, on(func(n *nodeview.Node) { n.Facts.SELinux = true }), verify.Fail, "enabled"},
		"no agent at all":                   {kernel, func(f *verify.Facts) { f.Answers.Value = nil }, verify.Skip, "no agent was asked"},
		"a claim kept by a process":         {outlives, fuse, verify.Warn, "fuse.juicefs is kept by a process and may end with the agent's Pod (claimHolder.enabled"},
		"a claim kept by something unknown": {outlives, on(func(n *nodeview.Node) { n.Facts.Claim.Backing = nodeview.BackingUnknown }), verify.Warn, "cannot be told"},
		"a claim with a holder":             {outlives, func(f *verify.Facts) { fuse(f); hold(f, 2) }, verify.OK, "held by the DaemonSet"},
		"a holder on one node alone":        {outlives, func(f *verify.Facts) { fuse(f); hold(f, 1) }, verify.Warn, "ready on 1 of 2"},
		"a holder that is rolled": {outlives, func(f *verify.Facts) {
			fuse(f)
			hold(f, 2)
			f.Others.Value[0].Spec.UpdateStrategy.Type = "RollingUpdate"
		}, verify.Warn, "may end"},
		"a holder of another claim":  {outlives, func(f *verify.Facts) { fuse(f); hold(f, 2); otherClaim(f) }, verify.Warn, "may end"},
		"nothing mounted to outlive": {outlives, on(func(n *nodeview.Node) { n.Facts.Claim.Mounted = false }), verify.Skip, "no claim is mounted"},
	}
}

func fuse(f *verify.Facts) {
	c := &f.Answers.Value[1].Document.Facts.Claim
	c.Filesystem, c.Backing = "fuse.juicefs", nodeview.BackedByProcess
}

func hold(f *verify.Facts, ready int32) {
	ds := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "holder"}}
	ds.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	ds.Spec.Template.Spec.Volumes = []corev1.Volume{verifytest.ClaimVolume("shared")}
	ds.Status.NumberReady = ready
	f.Others.Value = append(f.Others.Value, ds)
}

func otherClaim(f *verify.Facts) {
	f.Others.Value[0].Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "other"
}

func claimStories() map[string]story {
	return map[string]story{
		"the claim does not exist": {claim, func(f *verify.Facts) { f.Claim.Value = nil }, verify.Fail, "datalayer-shared-fs does not exist"},
		"the claim is pending":     {claim, func(f *verify.Facts) { f.Claim.Value.Status.Phase = corev1.ClaimPending }, verify.Fail, "is Pending"},
		"the claim is for one node": {claim, func(f *verify.Facts) {
			f.Claim.Value.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		}, verify.Warn, "not ReadWriteMany"},
		"the claim is being deleted":      {claim, func(f *verify.Facts) { f.Claim.Value.DeletionTimestamp = &metav1.Time{} }, verify.Warn, "being deleted"},
		"the claim cannot be read":        {claim, func(f *verify.Facts) { f.Claim = verify.Known[*corev1.PersistentVolumeClaim]{Err: errForbidden} }, verify.Fail, "forbidden"},
		"nothing is at the claim's path":  {claim, func(f *verify.Facts) { f.DaemonSets.Value[0].Spec.Template.Spec.Containers[0].VolumeMounts = nil }, verify.Fail, "mounts no volume at /mnt/shared-fs"},
		"the claim is not on a node":      {claim, on(func(n *nodeview.Node) { n.Facts.Claim.Mounted = false }), verify.Fail, "no filesystem is mounted at /mnt/shared-fs"},
		"the claim does not answer there": {claim, on(func(n *nodeview.Node) { n.Facts.Claim.Answers = false }), verify.Fail, "does not answer"},
		"a host path instead of a claim": {claim, func(f *verify.Facts) {
			f.DaemonSets.Value[0].Spec.Template.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}
		}, verify.OK, "the node's own /srv"},
		"no agent that mounts a claim": {claim, func(f *verify.Facts) { f.DaemonSets.Value, f.Answers.Value = nil, nil }, verify.Skip, "no agent"},
	}
}

func networkStories() map[string]story {
	limit := func(rules ...networkingv1.NetworkPolicyEgressRule) func(*verify.Facts) {
		return func(f *verify.Facts) {
			f.Policies.Value = []networkingv1.NetworkPolicy{policy(rules...)}
			for i := range f.Answers.Value {
				f.Answers.Value[i].Document.Ready = false
			}
		}
	}
	port := func(n int) networkingv1.NetworkPolicyEgressRule {
		p := intstr.FromInt(n)
		return networkingv1.NetworkPolicyEgressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: &p}}}
	}
	to := func(cidr string, except ...string) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}}
	}
	end := int32(7000)
	ranged := port(440)
	ranged.Ports[0].EndPort = &end
	udp := corev1.ProtocolUDP
	dns := port(443)
	dns.Ports[0].Protocol = &udp
	named := networkingv1.NetworkPolicyEgressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: &intstr.IntOrString{Type: intstr.String, StrVal: "https"}}}}
	pods := networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}
	return map[string]story{
		"no egress at all":                   {network, limit(), verify.Fail, "does not let the agents reach 10.96.0.1:443, 192.0.2.1:6443"},
		"both ports":                         {network, limit(port(443), port(6443)), verify.OK, "watch"},
		"a range of ports":                   {network, limit(ranged), verify.OK, "watch"},
		"the service's port alone":           {network, limit(port(443)), verify.Warn, "reach 192.0.2.1:6443"},
		"the ports of another protocol":      {network, limit(dns), verify.Fail, "10.96.0.1:443"},
		"a port by name":                     {network, limit(named), verify.Fail, "10.96.0.1:443"},
		"Pods alone":                         {network, limit(pods), verify.Fail, "10.96.0.1:443"},
		"an address block that has them":     {network, limit(to("0.0.0.0/0")), verify.OK, "watch"},
		"an address block with an exception": {network, limit(to("0.0.0.0/0", "10.0.0.0/8")), verify.Warn, "reach 10.96.0.1:443"},
		"an address block without them":      {network, limit(to("10.0.0.0/16")), verify.Fail, "10.96.0.1:443"},
		"a policy of other Pods": {network, func(f *verify.Facts) {
			limit()(f)
			f.Policies.Value[0].Spec.PodSelector.MatchLabels = map[string]string{"app": "other"}
		}, verify.OK, "no policy"},
		"a policy of another namespace": {network, func(f *verify.Facts) { limit()(f); f.Policies.Value[0].Namespace = "other" }, verify.OK, "no policy"},
		"a policy for ingress alone": {network, func(f *verify.Facts) {
			limit()(f)
			f.Policies.Value[0].Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress"}
		}, verify.OK, "no policy"},
		"the host's network":                            {network, func(f *verify.Facts) { limit()(f); f.DaemonSets.Value[0].Spec.Template.Spec.HostNetwork = true }, verify.OK, "no policy"},
		"the service's port, and agents that are ready": {network, func(f *verify.Facts) { f.Policies.Value = []networkingv1.NetworkPolicy{policy(port(443))} }, verify.OK, "watch"},
		"no egress, and agents that are ready":          {network, func(f *verify.Facts) { f.Policies.Value = []networkingv1.NetworkPolicy{policy()} }, verify.Warn, "does not let"},
		"policies that cannot be read":                  {network, func(f *verify.Facts) { f.Policies.Err = errForbidden }, verify.Fail, "forbidden"},
		"an API server that cannot be found":            {network, func(f *verify.Facts) { limit()(f); f.API.Err = errForbidden }, verify.Fail, "forbidden"},
		"agents that are ready, and a policy": {network, func(f *verify.Facts) {
			f.Policies.Value, f.API.Err = []networkingv1.NetworkPolicy{policy()}, errForbidden
		}, verify.OK, "lets agents be ready"},
		"policies, and no agent they may limit": {network, func(f *verify.Facts) { limit()(f); f.DaemonSets.Value = nil }, verify.Skip, "no agent"},
	}
}

func policy(rules ...networkingv1.NetworkPolicyEgressRule) networkingv1.NetworkPolicy {
	return networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "watch"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: verifytest.AgentLabels()},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, Egress: rules,
		},
	}
}

func addresses() []verify.Address {
	return []verify.Address{{IP: netip.MustParseAddr("10.96.0.1"), Port: 443}, {IP: netip.MustParseAddr("192.0.2.1"), Port: 6443}}
}
