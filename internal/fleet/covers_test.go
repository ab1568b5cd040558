package fleet_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/datalayer/node-mounts/internal/fleet"
)

// coveredNode is a node of two processors on Linux.
func coveredNode(with ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelOSStable: "linux", "size": "8"}}}
	n.Status.NodeInfo.OperatingSystem = "linux"
	for _, change := range with {
		change(n)
	}
	return n
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "yes", Effect: effect})
	}
}

func labelled(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func tolerating(t ...corev1.Toleration) corev1.PodSpec { return corev1.PodSpec{Tolerations: t} }

func TestADaemonSetCoversTheNodesThatItsSelectorAndAffinityChoose(t *testing.T) {
	affine := func(terms ...corev1.NodeSelectorTerm) corev1.PodSpec {
		return corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}}
	}
	term := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	field := func(op corev1.NodeSelectorOperator, name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{name}}}}
	}
	for name, test := range map[string]struct {
		pod  corev1.PodSpec
		want bool
	}{
		"no wishes":                  {corev1.PodSpec{}, true},
		"its label":                  {corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}}, true},
		"another label":              {corev1.PodSpec{NodeSelector: map[string]string{"size": "16"}}, false},
		"no required affinity":       {corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}}, true},
		"affine":                     {affine(term("size", corev1.NodeSelectorOpGt, "4")), true},
		"not affine":                 {affine(term("size", corev1.NodeSelectorOpLt, "4")), false},
		"a label it does not have":   {affine(term("gpu", corev1.NodeSelectorOpNotIn, "yes")), true},
		"one of two terms":           {affine(term("size", corev1.NodeSelectorOpDoesNotExist), term("size", corev1.NodeSelectorOpIn, "8")), true},
		"a term without expressions": {affine(corev1.NodeSelectorTerm{}), false},
		"an operator nobody knows":   {affine(term("size", "About", "8")), false},
		"its name":                   {affine(field(corev1.NodeSelectorOpIn, "a")), true},
		"another name":               {affine(field(corev1.NodeSelectorOpIn, "b")), false},
		"its name and another label": {affine(corev1.NodeSelectorTerm{MatchFields: field(corev1.NodeSelectorOpIn, "a").MatchFields, MatchExpressions: term("gpu", corev1.NodeSelectorOpExists).MatchExpressions}), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fleet.Covers(test.pod, coveredNode()); got != test.want {
				t.Errorf("covered: %t", got)
			}
		})
	}
}

func TestATaintKeepsADaemonSetOffUnlessItOrItsControllerToleratesIt(t *testing.T) {
	const noSchedule, noExecute = corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute
	onHost := corev1.PodSpec{HostNetwork: true}
	for name, test := range map[string]struct {
		pod  corev1.PodSpec
		node *corev1.Node
		want bool
	}{
		"a taint":                    {corev1.PodSpec{}, coveredNode(tainted("gpu", noSchedule)), false},
		"a wish":                     {corev1.PodSpec{}, coveredNode(tainted("gpu", corev1.TaintEffectPreferNoSchedule)), true},
		"all are tolerated":          {tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}), coveredNode(tainted("gpu", noSchedule)), true},
		"tolerated by its value":     {tolerating(corev1.Toleration{Key: "gpu", Value: "yes"}), coveredNode(tainted("gpu", noSchedule)), true},
		"another value is tolerated": {tolerating(corev1.Toleration{Key: "gpu", Value: "no"}), coveredNode(tainted("gpu", noSchedule)), false},
		"another key is tolerated":   {tolerating(corev1.Toleration{Key: "cpu", Operator: corev1.TolerationOpExists}), coveredNode(tainted("gpu", noSchedule)), false},
		"another effect is tolerated": {
			tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: noExecute}), coveredNode(tainted("gpu", noSchedule)), false,
		},
		"one of two is tolerated": {
			tolerating(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}), coveredNode(tainted("gpu", noSchedule), tainted("cpu", noSchedule)), false,
		},
		"the control plane": {corev1.PodSpec{}, coveredNode(tainted("node-role.kubernetes.io/control-plane", noSchedule)), false},
		"the control plane, tolerated": {
			tolerating(corev1.Toleration{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists}),
			coveredNode(tainted("node-role.kubernetes.io/control-plane", noSchedule)), true,
		},
		"cordoned":                           {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodeUnschedulable, noSchedule)), true},
		"not ready":                          {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodeNotReady, noSchedule), tainted(corev1.TaintNodeNotReady, noExecute)), true},
		"unreachable":                        {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodeUnreachable, noExecute)), true},
		"its disk is full":                   {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodeDiskPressure, noSchedule)), true},
		"its memory is full":                 {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodeMemoryPressure, noSchedule)), true},
		"it has no process left":             {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodePIDPressure, noSchedule)), true},
		"without a network":                  {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodeNetworkUnavailable, noSchedule)), false},
		"without a network, on the host's":   {onHost, coveredNode(tainted(corev1.TaintNodeNetworkUnavailable, noSchedule)), true},
		"out of service":                     {corev1.PodSpec{}, coveredNode(tainted(corev1.TaintNodeOutOfService, noExecute)), false},
		"not made ready by its cloud yet":    {corev1.PodSpec{}, coveredNode(tainted("node.cloudprovider.kubernetes.io/uninitialized", noSchedule)), false},
		"a taint that only sounds like ours": {corev1.PodSpec{}, coveredNode(tainted("node.kubernetes.io/mine", noSchedule)), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fleet.Covers(test.pod, test.node); got != test.want {
				t.Errorf("covered: %t", got)
			}
		})
	}
}

func TestAnAgentIsForLinuxAlone(t *testing.T) {
	everything := tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})
	reports := func(system string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = system }
	}
	unlabelled := func(n *corev1.Node) { delete(n.Labels, corev1.LabelOSStable) }
	for name, test := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"Linux":                        {coveredNode(), true},
		"Windows":                      {coveredNode(reports("windows"), labelled(corev1.LabelOSStable, "windows")), false},
		"Windows by its label":         {coveredNode(labelled(corev1.LabelOSStable, "windows")), false},
		"Windows by its kubelet":       {coveredNode(unlabelled, reports("windows")), false},
		"Windows with its usual taint": {coveredNode(labelled(corev1.LabelOSStable, "windows"), tainted("os", corev1.TaintEffectNoSchedule)), false},
		"Linux without a label":        {coveredNode(unlabelled), true},
		"nobody says":                  {coveredNode(unlabelled, reports("")), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fleet.Covers(everything, test.node); got != test.want {
				t.Errorf("covered: %t", got)
			}
		})
	}
}

func TestANodeThatTheDaemonSetIsKeptOffLacksNoAgent(t *testing.T) {
	windows, taken, sick := node("windows", map[string]string{corev1.LabelOSStable: "windows"}), node("taken", nil), node("sick", nil)
	tainted("gpu", corev1.TaintEffectNoSchedule)(taken)
	tainted(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)(sick)
	client := fake.NewClientset(windows, taken, sick, daemonSet(nil))
	if got := found(t, &fleet.Cluster{Client: client}); len(got.Agents) != 1 || got.Agents[0].Node != "sick" {
		t.Errorf("got %+v", got.Agents)
	}
}
