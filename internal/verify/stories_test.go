package verify_test

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/internal/verify/verifytest"
)

// may changes what an account may do.
func may(account verify.Account, verb, resource, sub, in string, yes bool) func(*verify.Facts) {
	return func(f *verify.Facts) {
		f.May[verify.Question{Account: account, Verb: verb, Resource: resource, Subresource: sub, In: in}] = verify.Known[bool]{Value: yes}
	}
}

func credentials(f *verify.Facts) {
	for _, a := range f.Answers.Value {
		a.Document.Credentials = true
	}
}

func all(changes ...func(*verify.Facts)) func(*verify.Facts) {
	return func(f *verify.Facts) {
		for _, c := range changes {
			c(f)
		}
	}
}

func accessStories() map[string]story {
	reads := may(agentAccount, "get", "secrets", "", runtimes, true)
	return map[string]story{
		"the agent may not patch":                  {mayPatch, may(agentAccount, "patch", "pods", "", runtimes, false), verify.Fail, "may not patch pods in datalayer-runtimes"},
		"the agent may not watch":                  {mayPatch, may(agentAccount, "watch", "pods", "", runtimes, false), verify.Fail, "may not watch pods"},
		"nobody tells what the agent may":          {mayPatch, func(f *verify.Facts) { clear(f.May) }, verify.Fail, "was not asked"},
		"rights cannot be asked for":               {mayPatch, refuseReviews, verify.Fail, "forbidden"},
		"no agent whose rights could be asked for": {mayPatch, func(f *verify.Facts) { f.DaemonSets.Value = nil }, verify.Skip, "no agent"},

		"Secrets may be read and are not":      {secretAccess, reads, verify.Fail, "may get secrets in datalayer-runtimes; credentials off"},
		"Secrets are read and may not be":      {secretAccess, credentials, verify.Fail, "credentials are on and datalayer-system/datalayer-node-mounts may not get secrets"},
		"Secrets are read and may be":          {secretAccess, all(credentials, reads), verify.OK, "can-i get secrets: yes; credentials on"},
		"Secrets of other namespaces":          {secretAccess, all(credentials, reads, may(agentAccount, "get", "secrets", "", "kube-system", true)), verify.Fail, "may get secrets in kube-system"},
		"Secrets of every namespace":           {secretAccess, all(credentials, reads, may(agentAccount, "get", "secrets", "", "", true)), verify.Fail, "may get secrets in every namespace"},
		"Secrets may be listed":                {secretAccess, all(credentials, reads, may(agentAccount, "list", "secrets", "", runtimes, true)), verify.Fail, "may list secrets"},
		"agents that differ about Secrets":     {secretAccess, on(func(n *nodeview.Node) { n.Credentials = true }), verify.Fail, "differ"},
		"no agent tells about Secrets":         {secretAccess, unaskable, verify.Skip, "no agent tells"},
		"a right to Secrets that is not known": {secretAccess, refuseReviews, verify.Fail, "forbidden"},

		"a runtime that may not patch":            {runtimeGrants, noRights, verify.OK, "can patch pods: no"},
		"a runtime that may write the status":     {runtimeGrants, all(noRights, may(runtimeAccount, "patch", "pods", "status", runtimes, true)), verify.Warn, "can patch pods: yes"},
		"a runtime that may create Pods":          {runtimeGrants, all(noRights, automounted, may(runtimeAccount, "create", "pods", "", runtimes, true)), verify.Fail, "can create pods: yes"},
		"a token in every container":              {runtimeGrants, automounted, verify.Fail, "automountServiceAccountToken is on"},
		"a Pod's word against its account's":      {runtimeGrants, func(f *verify.Facts) { f.Pods.Value[0].Spec.AutomountServiceAccountToken = ptr.To(true) }, verify.Fail, "automountServiceAccountToken is on"},
		"an account's word against its Pod's":     {runtimeGrants, all(automounted, func(f *verify.Facts) { f.Pods.Value[0].Spec.AutomountServiceAccountToken = ptr.To(false) }), verify.Warn, "not in any container that runs user code"},
		"a token in the user's container":         {runtimeGrants, spec(func(p *corev1.PodSpec) { verifytest.MountToken(&p.Containers[0]) }), verify.Fail, `container "runtime" mounts the token volume "token"`},
		"a token in a sidecar":                    {runtimeGrants, spec(sidecar), verify.Fail, `container "sidecar" mounts the token volume`},
		"a token in a debugging container":        {runtimeGrants, spec(debugger), verify.Fail, `container "debug" mounts the token volume`},
		"a token in an init container":            {runtimeGrants, spec(func(p *corev1.PodSpec) { verifytest.MountToken(&p.InitContainers[0]) }), verify.Warn, "not in any container"},
		"a token of another audience":             {runtimeGrants, spec(cloudToken), verify.Warn, "not in any container"},
		"a token in a Secret":                     {runtimeGrants, spec(secretToken), verify.Fail, `container "runtime" mounts the token volume "old"`},
		"a companion whose processes are shared":  {runtimeGrants, spec(func(p *corev1.PodSpec) { p.ShareProcessNamespace = ptr.To(true) }), verify.Fail, "shareProcessNamespace"},
		"a companion with the host's processes":   {runtimeGrants, spec(func(p *corev1.PodSpec) { p.HostPID = true }), verify.Fail, "hostPID"},
		"a companion of another name":             {runtimeGrants, func(f *verify.Facts) { f.Settings.Companions = []string{"helper"} }, verify.Fail, `container "companion" mounts`},
		"an account that Pods have in its place":  {runtimeGrants, otherAccount, verify.Fail, "other-sa can patch"},
		"no Pods, an account that says nothing":   {runtimeGrants, all(noPods, automounted), verify.Warn, "no Pod of it is there, and one that says nothing"},
		"no Pods, an account that says no":        {runtimeGrants, noPods, verify.Warn, "none gets its token unasked"},
		"Pods whose account is not there":         {runtimeGrants, func(f *verify.Facts) { clear(f.Automount) }, verify.Fail, "automountServiceAccountToken is on"},
		"no Pods and no account":                  {runtimeGrants, all(noPods, func(f *verify.Facts) { clear(f.Automount) }), verify.Warn, "no such account"},
		"an account that cannot be read":          {runtimeGrants, unreadableAccount, verify.Fail, "forbidden"},
		"a runtime's rights cannot be asked for":  {runtimeGrants, refuseReviews, verify.Fail, "forbidden"},
		"Pods that cannot be read, for the token": {runtimeGrants, func(f *verify.Facts) { f.Pods.Err = errForbidden }, verify.Fail, "forbidden"},
	}
}

func refuseReviews(f *verify.Facts) {
	for q := range f.May {
		f.May[q] = verify.Known[bool]{Err: errForbidden}
	}
}

func noRights(f *verify.Facts) {
	for q := range f.May {
		if q.Account == runtimeAccount {
			f.May[q] = verify.Known[bool]{}
		}
	}
}

func automounted(f *verify.Facts) {
	f.Automount[runtimeAccount] = verify.Known[*bool]{Value: ptr.To(true)}
}

func unreadableAccount(f *verify.Facts) {
	f.Automount[runtimeAccount] = verify.Known[*bool]{Err: errForbidden}
}

func noPods(f *verify.Facts) { f.Pods.Value = nil }

// otherAccount: the Pods have another account than the one that is known by name.
func otherAccount(f *verify.Facts) {
	other := verify.Account{Namespace: runtimes, Name: "other-sa"}
	f.Pods.Value[0].Spec.ServiceAccountName = other.Name
	f.Automount[other] = verify.Known[*bool]{Value: ptr.To(true)}
	for q, answer := range f.May {
		if q.Account == runtimeAccount {
			q.Account = other
			f.May[q] = answer
		}
	}
}

// spec changes the spec of the Pod.
func spec(change func(*corev1.PodSpec)) func(*verify.Facts) {
	return func(f *verify.Facts) { change(&f.Pods.Value[0].Spec) }
}

func sidecar(p *corev1.PodSpec) {
	c := corev1.Container{Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}
	verifytest.MountToken(&c)
	p.InitContainers = append(p.InitContainers, c)
}

func debugger(p *corev1.PodSpec) {
	var c corev1.Container
	verifytest.MountToken(&c)
	p.EphemeralContainers = append(p.EphemeralContainers, corev1.EphemeralContainer{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", VolumeMounts: c.VolumeMounts},
	})
}

func cloudToken(p *corev1.PodSpec) {
	v := verifytest.TokenVolume("cloud")
	v.Projected.Sources[0].ServiceAccountToken.Audience = "sts.example.org"
	p.Volumes = append(p.Volumes, v)
	p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "cloud", MountPath: "/cloud"})
}

func secretToken(p *corev1.PodSpec) {
	p.Volumes = append(p.Volumes, corev1.Volume{Name: "old", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: verify.DefaultRuntimeAccount + "-token-x7k2p"},
	}})
	p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "old", MountPath: "/old"})
}

func podStories() map[string]story {
	gateway := func(p *corev1.PodSpec) *corev1.VolumeMount { return &p.Containers[0].VolumeMounts[0] }
	return map[string]story{
		"a volume on the disk":              {memory, spec(func(p *corev1.PodSpec) { p.Volumes[0].EmptyDir.Medium = "" }), verify.Fail, "on the node's disk"},
		"a volume of huge pages":            {memory, spec(func(p *corev1.PodSpec) { p.Volumes[0].EmptyDir.Medium = "HugePages" }), verify.Fail, "on the node's disk"},
		"a label without the volume":        {memory, spec(func(p *corev1.PodSpec) { p.Volumes[0].Name = "other" }), verify.Fail, "1 of 1 Pod: datalayer-runtimes/sandbox: no volume"},
		"a volume of another type":          {memory, spec(func(p *corev1.PodSpec) { p.Volumes[0].VolumeSource = verifytest.TokenVolume("x").VolumeSource }), verify.Fail, "no emptyDir"},
		"a volume without the label":        {memory, func(f *verify.Facts) { f.Pods.Value[0].Labels = nil }, verify.Warn, "not the label"},
		"no Pods to look at":                {memory, noPods, verify.Skip, "no Pod"},
		"Pods that cannot be read":          {memory, func(f *verify.Facts) { f.Pods.Err = errForbidden }, verify.Fail, "forbidden"},
		"no propagation":                    {reaches, spec(func(p *corev1.PodSpec) { gateway(p).MountPropagation = nil }), verify.Fail, `container "runtime" mounts it without`},
		"a subPath":                         {reaches, spec(func(p *corev1.PodSpec) { gateway(p).SubPath = "x" }), verify.Fail, "with a subPath"},
		"a subPath from the environment":    {reaches, spec(func(p *corev1.PodSpec) { gateway(p).SubPathExpr = "$(X)" }), verify.Fail, "with a subPath"},
		"a second container without it":     {reaches, spec(secondWithout), verify.Fail, `container "companion" mounts it without`},
		"a volume that nobody mounts":       {reaches, spec(func(p *corev1.PodSpec) { p.Containers[0].VolumeMounts = nil }), verify.Fail, "no container mounts it"},
		"a static Pod":                      {reaches, mirror, verify.Fail, "static Pod"},
		"a sandboxed runtime class":         {runtimeClass, class("gvisor"), verify.Fail, `runtime class "gvisor"`},
		"a sandboxed handler":               {runtimeClass, all(class("safe"), handler("safe", "kata-qemu")), verify.Fail, `handler "kata-qemu"`},
		"a runtime class like any other":    {runtimeClass, all(class("nvidia"), handler("nvidia", "nvidia")), verify.OK, "1 Pod"},
		"a runtime class that is not known": {runtimeClass, class("nvidia"), verify.Warn, "could not be read"},
		"a user namespace":                  {runtimeClass, spec(func(p *corev1.PodSpec) { p.HostUsers = ptr.To(false) }), verify.Fail, "hostUsers"},
		"no seccomp profile":                {seccomp, spec(func(p *corev1.PodSpec) { p.SecurityContext = nil }), verify.Warn, `container "runtime" has no seccompProfile`},
		"an unconfined container":           {seccomp, spec(unconfined), verify.Fail, `container "companion" is Unconfined`},
		"a privileged container":            {seccomp, spec(func(p *corev1.PodSpec) { privileged(&p.Containers[0]) }), verify.Fail, `container "runtime" is privileged`},
		"a privileged init container":       {seccomp, spec(func(p *corev1.PodSpec) { privileged(&p.InitContainers[0]) }), verify.OK, "filtered"},
		"a privileged sidecar":              {seccomp, spec(privilegedSidecar), verify.Fail, `container "sidecar" is privileged`},
	}
}

func secondWithout(p *corev1.PodSpec) {
	p.Containers[1].VolumeMounts = append(p.Containers[1].VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: "/mnt/datalayer"})
}

func mirror(f *verify.Facts) {
	f.Pods.Value[0].Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
}

func class(name string) func(*verify.Facts) {
	return spec(func(p *corev1.PodSpec) { p.RuntimeClassName = &name })
}

func handler(class, handler string) func(*verify.Facts) {
	return func(f *verify.Facts) { f.Handlers.Value = map[string]string{class: handler} }
}

func unconfined(p *corev1.PodSpec) {
	p.Containers[1].SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
}

func privileged(c *corev1.Container) {
	c.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
}

func privilegedSidecar(p *corev1.PodSpec) {
	sidecar(p)
	p.InitContainers[1].VolumeMounts = nil
	privileged(&p.InitContainers[1])
}

func coverageStories() map[string]story {
	third := func(change func(*corev1.Node)) func(*verify.Facts) {
		return func(f *verify.Facts) {
			n := verifytest.Node("three")
			change(&n)
			f.Nodes.Value = append(f.Nodes.Value, n)
		}
	}
	tainted := func(t corev1.Taint) func(*verify.Facts) {
		return third(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{t} })
	}
	taint := corev1.Taint{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
	tolerate := func(o corev1.Toleration) func(*verify.Facts) {
		return all(tainted(taint), func(f *verify.Facts) {
			f.DaemonSets.Value[0].Spec.Template.Spec.Tolerations = []corev1.Toleration{o}
		})
	}
	require := func(terms ...corev1.NodeSelectorTerm) func(*verify.Facts) {
		return all(third(func(n *corev1.Node) { n.Labels["pool"] = "big" }), func(f *verify.Facts) {
			f.DaemonSets.Value[0].Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		})
	}
	pool := func(op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: op, Values: values}}}
	}
	named := func(name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
	}
	return map[string]story{
		"nobody may ask":                    {everyNode, unaskable, verify.Fail, "could not be asked: user is forbidden"},
		"nobody could be asked at all":      {everyNode, func(f *verify.Facts) { f.Answers = verify.Known[[]verify.NodeAnswer]{Err: errForbidden} }, verify.Fail, "forbidden"},
		"agents that serve none were asked": {everyNode, noDocuments, verify.OK, "2 nodes"},
		"no agents":                         {everyNode, all(noPods, func(f *verify.Facts) { f.Answers.Value, f.Nodes.Value = nil, nil }), verify.Fail, "no agent to ask"},
		"a node without an agent":           {everyNode, third(func(*corev1.Node) {}), verify.Fail, "no agent runs there"},
		"a cordoned node":                   {everyNode, third(func(n *corev1.Node) { n.Spec.Unschedulable = true }), verify.OK, "2 nodes"},
		"a cordoned node with a Pod":        {everyNode, all(third(func(n *corev1.Node) { n.Spec.Unschedulable = true }), move("three")), verify.Fail, "1 gateway Pod waits"},
		"a node of another system":          {everyNode, third(func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "windows" }), verify.OK, "1 other without an agent"},
		"a node with a taint":               {everyNode, tainted(taint), verify.OK, "1 other"},
		"a taint that keeps nothing out":    {everyNode, tainted(corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectPreferNoSchedule}), verify.Fail, "no agent runs"},
		"a node that is not well":           {everyNode, tainted(corev1.Taint{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute}), verify.Fail, "no agent runs"},
		"a taint that is tolerated":         {everyNode, tolerate(corev1.Toleration{Operator: corev1.TolerationOpExists}), verify.Fail, "no agent runs"},
		"a taint tolerated by value":        {everyNode, tolerate(corev1.Toleration{Key: "gpu", Value: "yes"}), verify.Fail, "no agent runs"},
		"a taint of another value":          {everyNode, tolerate(corev1.Toleration{Key: "gpu", Value: "no"}), verify.OK, "1 other"},
		"a taint of another effect":         {everyNode, tolerate(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}), verify.OK, "1 other"},
		"a node selector that matches": {everyNode, all(third(func(n *corev1.Node) { n.Labels["pool"] = "big" }), func(f *verify.Facts) {
			f.DaemonSets.Value[0].Spec.Template.Spec.NodeSelector = map[string]string{"pool": "big"}
		}), verify.Fail, "no agent runs"},
		"a node selector that does not": {everyNode, all(third(func(*corev1.Node) {}), func(f *verify.Facts) {
			f.DaemonSets.Value[0].Spec.Template.Spec.NodeSelector = map[string]string{"pool": "big"}
		}), verify.OK, "1 other"},
		"an affinity that matches":          {everyNode, require(pool(corev1.NodeSelectorOpIn, "small"), pool(corev1.NodeSelectorOpExists)), verify.Fail, "no agent runs"},
		"an affinity that does not":         {everyNode, require(pool(corev1.NodeSelectorOpNotIn, "big")), verify.OK, "1 other"},
		"an affinity by name":               {everyNode, require(named("three")), verify.Fail, "no agent runs"},
		"an affinity by another name":       {everyNode, require(named("four")), verify.OK, "1 other"},
		"an affinity without a term":        {everyNode, require(corev1.NodeSelectorTerm{}), verify.OK, "1 other"},
		"a node that is covered by nothing": {everyNode, all(tainted(taint), move("three")), verify.Fail, "waits"},
		"nodes that cannot be listed":       {everyNode, func(f *verify.Facts) { f.Nodes.Err = errForbidden }, verify.OK, "2 of 2 that the DaemonSet counts"},
		"fewer answers than the DaemonSet counts": {everyNode, func(f *verify.Facts) {
			f.Nodes.Err = errForbidden
			f.Answers.Value = f.Answers.Value[:1]
		}, verify.Fail, "1 of 2"},
	}
}

func move(to string) func(*verify.Facts) {
	return spec(func(p *corev1.PodSpec) { p.NodeName = to })
}

func keeperStories() map[string]story {
	// on changes what the first node tells.
	on := func(change func(*nodeview.Node)) func(*verify.Facts) {
		return func(f *verify.Facts) { change(f.Answers.Value[0].Document) }
	}
	is := func(k *nodeview.Keeper) func(*verify.Facts) { return on(func(n *nodeview.Node) { n.Keeper = k }) }
	of := func(agent, keeper string) func(*verify.Facts) {
		return on(func(n *nodeview.Node) { n.Version, n.Keeper.Version = agent, keeper })
	}
	everywhere := func(f *verify.Facts) {
		for _, a := range f.Answers.Value {
			a.Document.Serves, a.Document.Keeper = []grant.Kind{grant.KindFiles, grant.KindGit}, nil
		}
	}
	return map[string]story{
		"a keeper that does not answer":        {keeperThere, is(&nodeview.Keeper{Reason: "no keeper runs on this node"}), verify.Fail, "no keeper runs on this node"},
		"a keeper that gives no reason":        {keeperThere, is(&nodeview.Keeper{}), verify.Fail, "no reason"},
		"a bucket's agent that tells of none":  {keeperThere, is(nil), verify.Fail, "serves cloud-storage and tells of no keeper"},
		"no kind that needs a keeper":          {keeperThere, everywhere, verify.Skip, "no kind is served"},
		"a keeper that runs nothing":           {keeperThere, is(&nodeview.Keeper{There: true, Version: "v1.2.3"}), verify.OK, "0 processes"},
		"a keeper of an earlier release":       {keeperVersion, of("v1.10.0", "v1.9.0"), verify.Warn, "keeper v1.9.0, agent v1.10.0"},
		"a keeper of an earlier commit":        {keeperVersion, of("v0.0.0-20260201000000-aaaaaaaaaaaa", "v0.0.0-20260101000000-ffffffffffff+dirty"), verify.Warn, "keeper v0.0.0-2026"},
		"a keeper of a later release":          {keeperVersion, of("v1.9.0", "v1.10.0"), verify.OK, "keeper v1.10.0"},
		"a keeper of a release before the tag": {keeperVersion, of("v1.2.3", "v1.2.3-rc.1"), verify.Warn, "v1.2.3-rc.1"},
		"versions that are none":               {keeperVersion, of("v1.2.3", "(devel)"), verify.Skip, "cannot be told"},
		"the same version that is none":        {keeperVersion, of("unknown", "unknown"), verify.OK, "keeper unknown"},
		"the version of no keeper":             {keeperVersion, is(&nodeview.Keeper{Reason: "gone"}), verify.Skip, "no keeper"},
	}
}
