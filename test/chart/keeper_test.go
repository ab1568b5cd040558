package chart

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apilabels "k8s.io/apimachinery/pkg/labels"

	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/netaddr"
)

// buckets are the values beneath nodeMountGateway that turn them on.
const buckets = "buckets: true, credentials: true"

func keepers(t testing.TB, r rendered) *appsv1.DaemonSet {
	t.Helper()
	return named[*appsv1.DaemonSet](t, r.objects, fullname+"-keeper")
}

func withBuckets(t testing.TB, more ...string) rendered {
	t.Helper()
	return must(t, append([]string{least, "nodeMountGateway: {" + buckets + "}"}, more...)...)
}

func TestThereIsAKeeperOnlyWhereAKindNeedsIt(t *testing.T) {
	if text := must(t, least, "nodeMountGateway: {repositories: true, nfs: true, credentials: true}").text; strings.Contains(text, "node-mounts-keeper") {
		t.Error("there is one that nothing needs")
	}
	r := withBuckets(t)
	keepers(t, r)
	if !strings.Contains(r.notes, "delete pod --field-selector spec.nodeName=NODE -l app.kubernetes.io/component=keeper,") {
		t.Errorf("nobody is told how it is replaced: %s", r.notes)
	}
}

func TestTheKeepersPodMayDoNoMoreThanItMust(t *testing.T) {
	set := keepers(t, withBuckets(t))
	spec := set.Spec.Template.Spec
	c := spec.Containers[0]
	if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("it is replaced by %+v", set.Spec.UpdateStrategy)
	}
	if spec.HostPID || spec.HostNetwork || spec.HostIPC || spec.ServiceAccountName != "" || *spec.AutomountServiceAccountToken || len(spec.Containers) != 1 {
		t.Errorf("of the node or the API it has more than nothing: %+v", spec)
	}
	sc := c.SecurityContext
	if sc.Privileged != nil || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem || *sc.RunAsUser != 0 ||
		!slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(sc.Capabilities.Add, []corev1.Capability{"SETUID", "SETGID", "KILL"}) ||
		spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context %+v of %+v", sc, spec.SecurityContext)
	}
	if _, limited := c.Resources.Limits[corev1.ResourceMemory]; limited || c.LivenessProbe != nil {
		t.Errorf("one child, or one slow answer, ends all: %+v, %+v", c.Resources.Limits, c.LivenessProbe)
	}
	if spec.PriorityClassName != "system-node-critical" || len(spec.Tolerations) == 0 {
		t.Errorf("it is not where the agent is: %s, %v", spec.PriorityClassName, spec.Tolerations)
	}
	if check := c.ReadinessProbe.Exec.Command; check[0] != c.Command[0] || check[1] != "--check" || check[2] != c.Args[0] {
		t.Errorf("it is ready by %v and runs with %v", check, c.Args)
	}
}

// The agent reaches the socket through kubelet's folder, by these names.
func TestTheKeepersSocketIsWhereTheAgentLooks(t *testing.T) {
	set := keepers(t, withBuckets(t))
	spec := set.Spec.Template.Spec
	for _, v := range spec.Volumes {
		if v.EmptyDir == nil || v.EmptyDir.Medium != "" {
			t.Errorf("the volume %s is %+v", v.Name, v.VolumeSource)
		}
	}
	mounts := map[string]string{}
	for _, m := range spec.Containers[0].VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	args := spec.Containers[0].Args
	if !slices.Contains(args, "--socket="+mounts[kube.KeeperVolume]+"/"+kube.KeeperSocket) || !slices.Contains(args, "--cache-root="+mounts["cache"]) {
		t.Errorf("it runs with %v, and has %v", args, mounts)
	}
	// What the agent asks the API for finds the keeper's Pods and no others.
	r := withBuckets(t)
	_, text, _ := strings.Cut(env(t, r, "DATALAYER_NODE_MOUNT_GATEWAY_KEEPER"), "/")
	selector, err := apilabels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, ds := range all[*appsv1.DaemonSet](must(t, least, "{nodeMountGateway: {"+buckets+"}, claimHolder: {enabled: true}}").objects) {
		if got, want := selector.Matches(apilabels.Set(ds.Spec.Template.Labels)), ds.Name == fullname+"-keeper"; got != want {
			t.Errorf("%s finds %s: %v", text, ds.Name, got)
		}
	}
}

func TestTheKeepersChildrenHaveTheTimeThatItIsTold(t *testing.T) {
	for seconds, more := range map[int64]string{25: "{}", 600: "keeper: {graceSeconds: 600}"} {
		spec := keepers(t, withBuckets(t, more)).Spec.Template.Spec
		if !slices.Contains(spec.Containers[0].Args, fmt.Sprintf("--grace=%ds", seconds)) || *spec.TerminationGracePeriodSeconds < seconds+5 {
			t.Errorf("it is given %d s and has %v", *spec.TerminationGracePeriodSeconds, spec.Containers[0].Args)
		}
	}
	if got := keepers(t, withBuckets(t)).Spec.Template.Spec.Volumes[1].EmptyDir.SizeLimit.String(); got != "50Gi" {
		t.Errorf("the caches' limit is %s", got)
	}
	if got := keepers(t, withBuckets(t, `keeper: {cacheSizeLimit: ""}`)).Spec.Template.Spec.Volumes[1].EmptyDir.SizeLimit; got != nil {
		t.Errorf("the caches' limit is %v", got)
	}
}

// Policies add up, so none but its own may choose the keeper's Pods.
func TestTheKeeperReachesNamesAndBucketsAndIsReachedByNobody(t *testing.T) {
	r := withBuckets(t, "networkPolicy: {nodeCidrs: [10.1.0.0/16, \"fd01::/64\"]}", "apiServer: {cidr: 10.96.0.1/32}")
	pod := apilabels.Set(keepers(t, r).Spec.Template.Labels)
	chosen := 0
	for _, p := range all[*networkingv1.NetworkPolicy](r.objects) {
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil {
			t.Fatal(err)
		}
		if selector.Matches(apilabels.Set(agents(t, r).Spec.Template.Labels)) == selector.Matches(pod) {
			t.Errorf("%s chooses both of agent and keeper, or none", p.Name)
		}
		if !selector.Matches(pod) {
			continue
		}
		chosen++
		if len(p.Spec.Ingress) != 0 || len(p.Spec.PolicyTypes) != 2 || len(p.Spec.Egress) != 2 {
			t.Fatalf("%+v", p.Spec)
		}
		if to := p.Spec.Egress[1]; len(to.Ports) != 1 || to.Ports[0].Port.IntValue() != 443 || len(to.To) != 2 {
			t.Errorf("buckets are reached by %+v", to)
		}
		for address, want := range map[string]bool{
			"192.0.2.1": true, "10.2.0.1": true, "2001:db8::1": true, "fd02::1": true,
			"169.254.169.254": false, "10.1.2.3": false, "10.96.0.1": false, "fe80::1": false, "fd01::5": false, "fd00:ec2::254": false,
			"100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false, "fd20:ce::254": false,
		} {
			if got := reaches(t, p.Spec.Egress[1].To, netip.MustParseAddr(address)); got != want {
				t.Errorf("%s is reached: %v", address, got)
			}
			// What no Secret may name for being a metadata service is not reached by a name either.
			if k := netaddr.Special(netip.MustParseAddr(address)); (k == netaddr.Metadata || k == netaddr.Link) && want {
				t.Errorf("%s is %s", address, k)
			}
		}
	}
	if chosen != 1 {
		t.Errorf("%d policies choose the keeper", chosen)
	}
	stores := withBuckets(t, "nodeMountGateway: {s3: {ports: [9000, 443], egressTo: [{namespaceSelector: {matchLabels: {app: minio}}}]}}")
	to := named[*networkingv1.NetworkPolicy](t, stores.objects, fullname+"-keeper").Spec.Egress[1]
	if len(to.Ports) != 2 || len(to.To) != 1 || to.To[0].NamespaceSelector.MatchLabels["app"] != "minio" {
		t.Errorf("of the stores that are named it reaches %+v", to)
	}
	if got := len(all[*networkingv1.NetworkPolicy](withBuckets(t, "networkPolicy: {enabled: false}").objects)); got != 0 {
		t.Errorf("%d policies, and none was wanted", got)
	}
}

func reaches(t *testing.T, peers []networkingv1.NetworkPolicyPeer, a netip.Addr) bool {
	t.Helper()
	return slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		in := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(a) }
		return in(p.IPBlock.CIDR) && !slices.ContainsFunc(p.IPBlock.Except, in)
	})
}

// A namespace that lets no privileged Pod in lets the keeper in.
func TestTheKeeperIsWithinTheBaselineOfPodSecurity(t *testing.T) {
	server := servertest.Start(t)
	client := server.Client(t)
	const strict = "strict"
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: strict, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "latest"},
	}}, metav1.CreateOptions{})
	ok(t, err)
	_, err = client.CoreV1().ServiceAccounts(strict).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: fullname}}, metav1.CreateOptions{})
	ok(t, err)
	r := withBuckets(t, `priorityClassName: ""`)
	for _, set := range []*appsv1.DaemonSet{keepers(t, r), agents(t, r)} {
		pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
		pod.Name = set.Name
		_, err := client.CoreV1().Pods(strict).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if set.Name == fullname+"-keeper" {
			ok(t, err)
		} else if err == nil || !strings.Contains(err.Error(), `violates PodSecurity "baseline`) {
			t.Errorf("the agent, which is privileged: %v", err) // else the namespace would let everybody in
		}
	}
}
