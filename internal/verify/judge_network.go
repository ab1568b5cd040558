package verify

import (
	"fmt"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// networkPolicy judges by the text of the policies. Plugins differ in whether they
// look at a packet before or after the service's address is replaced by an
// endpoint's, so both should be let through, or one of them where an agent is ready
// and proves that it is the one that counts. Some plugins enforce nothing: an agent
// that is ready in spite of a policy makes it a warning.
func networkPolicy(f Facts) []Result {
	switch {
	case len(f.DaemonSets.Value) == 0:
		return one(Skip, "there is no agent that a policy could stop")
	case f.Policies.Err != nil:
		return unread("network policies", f.Policies.Err)
	}
	var names []string
	for _, ds := range f.DaemonSets.Value {
		selecting := egressPolicies(f.Policies.Value, ds)
		if ds.Spec.Template.Spec.HostNetwork || len(selecting) == 0 {
			continue
		}
		switch {
		case f.API.Err == nil:
		case anyReady(f): // where the API server is could not be read; they have found it
			names = append(names, policyNames(selecting)+" lets agents be ready")
			continue
		default:
			return unread("the address of the API server", f.API.Err)
		}
		var stopped []string
		for _, a := range f.API.Value {
			if !slices.ContainsFunc(selecting, func(p networkingv1.NetworkPolicy) bool { return letsThrough(p, a) }) {
				stopped = append(stopped, netip.AddrPortFrom(a.IP, uint16(a.Port)).String()) //nolint:gosec // the API keeps ports within 16 bits
			}
		}
		partly := len(stopped) < len(f.API.Value)
		if len(stopped) > 0 && (!partly || !anyReady(f)) {
			r := Result{Status: Fail, Detail: fmt.Sprintf("%s does not let the agents reach %s", policyNames(selecting), some(stopped, ", "))}
			if partly || anyReady(f) {
				r.Status = Warn
			}
			return []Result{r}
		}
		names = append(names, policyNames(selecting))
	}
	if len(names) == 0 {
		return one(OK, "no policy limits what the agents may reach")
	}
	return one(OK, some(names, ", "))
}

func anyReady(f Facts) bool {
	return slices.ContainsFunc(f.Answers.Value, func(a NodeAnswer) bool { return a.Document != nil && a.Document.Ready })
}

func policyNames(policies []networkingv1.NetworkPolicy) string {
	var names []string
	for _, p := range policies {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return some(names, ", ")
}

// egressPolicies are those that limit what the DaemonSet's Pods may reach.
func egressPolicies(policies []networkingv1.NetworkPolicy, ds appsv1.DaemonSet) []networkingv1.NetworkPolicy {
	var selecting []networkingv1.NetworkPolicy
	for _, p := range policies {
		egress := slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) || len(p.Spec.PolicyTypes) == 0 && len(p.Spec.Egress) > 0
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if p.Namespace == ds.Namespace && egress && err == nil && selector.Matches(labels.Set(ds.Spec.Template.Labels)) {
			selecting = append(selecting, p)
		}
	}
	return selecting
}

func letsThrough(p networkingv1.NetworkPolicy, a Address) bool {
	return slices.ContainsFunc(p.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
		port := len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool { return hasPort(p, a.Port) })
		peer := len(r.To) == 0 || slices.ContainsFunc(r.To, func(to networkingv1.NetworkPolicyPeer) bool { return hasAddress(to, a.IP) })
		return port && peer
	})
}

// hasPort: a port that is named means a Pod's, and the API server is none.
func hasPort(p networkingv1.NetworkPolicyPort, port int32) bool {
	if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
		return false
	}
	switch {
	case p.Port == nil:
		return true
	case p.Port.Type != intstr.Int:
		return false
	case p.EndPort != nil:
		return p.Port.IntVal <= port && port <= *p.EndPort
	}
	return p.Port.IntVal == port
}

// hasAddress: a peer that selects Pods does not mean the API server, which runs in
// the host's network or outside of the cluster.
func hasAddress(to networkingv1.NetworkPolicyPeer, ip netip.Addr) bool {
	if to.IPBlock == nil {
		return false
	}
	within := func(cidr string) bool {
		block, err := netip.ParsePrefix(cidr)
		return err == nil && block.Masked().Contains(ip)
	}
	return within(to.IPBlock.CIDR) && !slices.ContainsFunc(to.IPBlock.Except, within)
}
