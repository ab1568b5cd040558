// Package verify answers whether a cluster can put folders into its Pods, and
// whether only those who should can ask for it. It gathers what the API and the
// agents say, notes what could not be found out, and judges that alone: what was
// gathered can be judged again, and a test can hand in any cluster.
package verify

import (
	"errors"
	"strings"

	"github.com/datalayer/node-mounts/internal/advice"
)

// ErrFailed is that something is not as it must be.
var ErrFailed = advice.Failing(errors.New("a check failed"), "")

// Status is the verdict of a check.
type Status string

// Statuses. What could not be found out is never OK: it is Fail, or Skip where
// another check says why.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
	Skip Status = "skip"
)

// Result is the verdict of one check, on one node where it is about nodes.
type Result struct {
	Check  string `json:"check"`
	Node   string `json:"node,omitempty"`
	Status Status `json:"status"`
	Detail string `json:"detail"`         // what was found
	Hint   string `json:"hint,omitempty"` // what to do; empty where there is nothing to do
}

// Check is one row: what is asked, and what it means when the answer is no.
type Check struct {
	Name string
	What string // what a failure means, a sentence
	Do   string // what to do about it, a sentence

	judge func(Facts) []Result
}

// Checks is the table of checks, in the order in which they are told: the command
// line, the documentation and the tests are made from it.
func Checks() []Check {
	var all []Check
	for _, part := range [][]Check{firstChecks(), accessChecks(), podChecks(), nodeChecks()} {
		all = append(all, part...)
	}
	return all
}

// firstChecks are what has to be true before a folder arrives anywhere.
func firstChecks() []Check {
	return []Check{
		{
			Name:  "Node driver DaemonSet",
			What:  "On some node no agent runs: grants of the Pods there are neither made nor answered.",
			Do:    "Install the agent, or look at what keeps its Pods from being ready: `kubectl describe` on the DaemonSet and its Pods.",
			judge: daemonSet,
		},
		{
			Name:  "Mount propagation (rshared)",
			What:  "Grants succeed on the node and are invisible in the sandbox.",
			Do:    "Run `mount --make-rshared /` on the node and make it permanent, then delete the agent's Pod there: its own mounts (Bidirectional) were left alone, and only new ones are shared.",
			judge: propagation,
		},
		{
			Name:  "Kernel supports mount_setattr (5.12+)",
			What:  "A read-only grant could not be made read-only in the sandbox, so the agent refuses every grant.",
			Do:    "Run a kernel 5.12 or newer on the node, with a seccomp profile that lets the agent call mount_setattr.",
			judge: kernel,
		},
		{
			Name:  "Node Mount Gateway enabled on the node",
			What:  "The agent's half is off, or the agent cannot serve: nothing is mounted on that node.",
			Do:    "Set nodeMountGateway.enabled, or do what the agent's reason says.",
			judge: enabled,
		},
		{
			Name: "Operator and agent agree",
			What: "One half is on without the other: nothing mounts, and nothing says so.",
			Do: "Set DATALAYER_NODE_MOUNT_GATEWAY_ENABLED=true in the Operator and nodeMountGateway.enabled for the agent. " +
				"The agent comes first; between the two, --agent-only asks for its half alone.",
			judge: agree,
		},
		{
			Name:  "Shared filesystem claim",
			What:  "There is nothing to bind: home folders cannot be granted, or would be folders of the node's own disk.",
			Do:    "Create the claim that nodeMountGateway.sharedFilesystemClaim names, ReadWriteMany and bound, in the agent's namespace; look at the storage where it does not answer.",
			judge: claim,
		},
	}
}

// accessChecks are about who may do what.
func accessChecks() []Check {
	return []Check{
		{
			Name:  "Agent may patch a pod",
			What:  "The agent cannot read its Pods or cannot answer: writers wait for ever.",
			Do:    "Give the agent's service account get, list, watch and patch on pods where the runtimes are.",
			judge: mayPatch,
		},
		{
			Name: "A runtime may NOT grant itself a mount",
			What: "A sandbox can reach a token that may rewrite its own grant: it could mount any folder of the claim.",
			Do: "Set automountServiceAccountToken: false on the service account and the Pod, and mount the one projected token into the companion alone. " +
				"The permission by itself is a warning: RBAC cannot say \"your own Pod only\".",
			judge: mayNotGrant,
		},
		{
			Name:  "Agent Secret access matches config",
			What:  "Either a mount that needs a credential cannot read it, or the agent holds a permission that nothing uses.",
			Do:    "Let nodeMountGateway.credentials and the Role agree: secrets get in the namespace of the runtimes, nowhere else, and no list or watch.",
			judge: secretAccess,
		},
		{
			Name:  "No leaked mounts",
			What:  "Each one is a Pod that will hang in Terminating.",
			Do:    "`node-mounts status` shows the Pods; docs/tasks/recover-a-stuck-pod.md says how to free them.",
			judge: leaked,
		},
	}
}

// podChecks are about the Pods that should receive folders.
func podChecks() []Check {
	return []Check{
		{
			Name:  "Gateway volume is memory-backed",
			What:  "kubelet would delete through a mount that was left behind, into somebody's folder; the agent refuses such a Pod.",
			Do:    "Make the pool's Pods with emptyDir.medium: Memory for the gateway volume.",
			judge: memoryBacked,
		},
		{
			Name:  "Gateway volume reaches the containers",
			What:  "The folders do not appear in the container, and the agent refuses the Pod.",
			Do:    "Mount the volume with mountPropagation: HostToContainer and without subPath, in every container that mounts it.",
			judge: reaches,
		},
		{
			Name:  "Runtime class supported",
			What:  "The container runs behind a kernel of its own or in a user namespace, where the node's mounts do not arrive.",
			Do:    "Give pooled Pods a runtime class that uses the node's kernel, and leave hostUsers unset.",
			judge: runtimeClass,
		},
		{
			Name:  "Seccomp",
			What:  "User code may call the kernel unfiltered.",
			Do:    "Set seccompProfile.type: RuntimeDefault on the Pod; only an init container may be privileged.",
			judge: seccomp,
		},
	}
}

// nodeChecks are about what carries the mounts.
func nodeChecks() []Check {
	return []Check{
		{
			Name:  "Trees are tmpfs",
			What:  "The folder that holds a Pod's mounts is on the node's disk, where an emptyDir's teardown deletes instead of unmounting.",
			Do:    "Look at the agent's log on that node, and replace the Pods named.",
			judge: trees,
		},
		{
			Name:  "kubelet root found",
			What:  "kubelet keeps its Pods elsewhere than the agent looks: no volume is found, the agent is not ready and refuses every grant.",
			Do:    "Set the chart's kubelet directory to what kubelet runs with (--root-dir).",
			judge: kubeletRoot,
		},
		{
			Name:  "SELinux is off",
			What:  "The container runtime would relabel users' folders at every container start; the agent refuses every Pod of the node.",
			Do:    "Keep gateway Pods on nodes without SELinux.",
			judge: selinux,
		},
		{
			Name:  "NetworkPolicy lets the watch through",
			What:  "The agent cannot reach the API server: it hears of no grant.",
			Do:    "Allow egress to the API server: apiServer.port and apiServer.cidr of the chart, with the port that its endpoints have.",
			judge: networkPolicy,
		},
		{
			Name:  "Claim outlives the agent",
			What:  "A process keeps the claim's filesystem answering and may end when the agent's Pod is replaced, with every home folder of the node.",
			Do:    "Set claimHolder.enabled in the chart: a DaemonSet that mounts the claim and is not rolled.",
			judge: outlives,
		},
		{
			Name:  "Keeper there",
			What:  "Nothing runs the filesystems that are processes: no bucket is mounted on that node, and those that stood are dead.",
			Do:    "Look at what keeps the keeper's Pod from being ready: `kubectl describe` and `kubectl logs` on the Pod with the label app.kubernetes.io/component=keeper on that node.",
			judge: keeperThere,
		},
		{
			Name: "Keeper not older than the agent",
			What: "The keeper is of an earlier release: it goes on, without what was mended since. No update replaces it, because its processes end with it.",
			Do: "Delete the keeper's Pod on that node when a short interruption is fine, best when the node is drained: " +
				"its buckets answer with an error for about a second, and what is open in them stays broken.",
			judge: keeperVersion,
		},
		{
			Name:  "Every node asked",
			What:  "Nothing is known of that node: the rows above do not speak for it.",
			Do:    "Let the agent run and be ready there; who verifies needs create on pods/exec in its namespace.",
			judge: everyNode,
		},
	}
}

// Judge says what is right and wrong with a cluster. It asks nobody.
func Judge(f Facts) []Result {
	var all []Result
	for _, c := range Checks() {
		for _, r := range c.judge(f) {
			r.Check = c.Name
			if r.Hint == "" && (r.Status == Fail || r.Status == Warn) {
				r.Hint = c.Do
			}
			all = append(all, r)
		}
	}
	return all
}

// Worst is the verdict over several results.
func Worst(results []Result) Status {
	order := map[Status]int{OK: 1, Skip: 2, Warn: 3, Fail: 4}
	worst := OK
	for _, r := range results {
		if order[r.Status] > order[worst] {
			worst = r.Status
		}
	}
	return worst
}

func one(status Status, detail string) []Result {
	return []Result{{Status: status, Detail: detail}}
}

// unread is the verdict on what could not be looked up.
func unread(what string, err error) []Result {
	return []Result{{
		Status: Fail, Detail: "could not be checked: " + what + ": " + oneLine(err),
		Hint: "docs/tasks/verify.md lists what the account that verifies must be allowed to read.",
	}}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// some joins the first few of many names or sentences.
func some(all []string, sep string) string {
	const few = 3
	if len(all) <= few {
		return strings.Join(all, sep)
	}
	return strings.Join(all[:few], sep) + sep + plural(len(all)-few, "more", "more")
}
