package chart

import (
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/grant"
)

// Each of these must not render, and must say what is wrong: says is part of the
// message.
func TestWhatCannotWorkIsRefusedInOneSentence(t *testing.T) {
	for name, test := range map[string]struct{ values, says string }{
		"nothing to run":                   {"nodeMountGateway: {enabled: false}", "there is nothing to run: set nodeMountGateway.enabled=true"},
		"no claim":                         {`nodeMountGateway: {sharedFilesystemClaim: ""}`, "needs nodeMountGateway.sharedFilesystemClaim"},
		"the CSI driver":                   {"driver: {gatewayOnly: false}", "driver.gatewayOnly=false is not served by this release yet"},
		"a relay without TLS":              {"driver: {allowInsecureRelay: true}", "driver.allowInsecureRelay is not served by this release yet"},
		"a relay":                          {"relay: {host: relay.example.org}", "relay is not served by this release yet"},
		"a relay's Pods":                   {"relay: {podSelector: {app: relay}}", "relay is not served by this release yet"},
		"bridges":                          {"nodeMountGateway: {localBridges: true}", "nodeMountGateway.localBridges is not served by this release yet"},
		"buckets without Secrets":          {"nodeMountGateway: {buckets: true}", "nodeMountGateway.buckets needs nodeMountGateway.credentials"},
		"buckets of root":                  {`nodeMountGateway: {buckets: true, credentials: true, owner: "0:100"}`, "nodeMountGateway.owner (0:100) is root"},
		"buckets of root's group":          {`nodeMountGateway: {buckets: true, credentials: true, owner: "100:0"}`, "nodeMountGateway.owner (100:0) is root"},
		"too little for mount-s3":          {"nodeMountGateway: {buckets: true, credentials: true, s3: {program: /usr/bin/mount-s3}}", "less than mount-s3 takes"},
		"a proxy for mount-s3":             {`nodeMountGateway: {buckets: true, credentials: true, s3: {program: /usr/bin/mount-s3, memory: 1Gi, proxy: "http://p:1"}}`, "not used by mount-s3"},
		"a memory limit for all buckets":   {"{nodeMountGateway: {buckets: true, credentials: true}, keeper: {resources: {limits: {memory: 1Gi}}}}", "would end the processes of all mounts"},
		"a bucket endpoint without scheme": {"nodeMountGateway: {s3: {endpointURL: minio.example.org}}", "endpointURL"},
		"a bucket program by name":         {"nodeMountGateway: {s3: {program: mount-s3}}", "program"},
		"no time for a keeper's processes": {"keeper: {graceSeconds: 0}", "graceSeconds"},
		"a git that is root":               {`nodeMountGateway: {git: {user: "0:0"}}`, "user"},
		"a size without a number":          {"nodeMountGateway: {git: {checkoutSize: much}}", "checkoutSize"},
		"a server to allow without a port": {"nodeMountGateway: {git: {allow: [git.example.org]}}", "allow"},
		"a root too long for checkouts":    {"nodeMountGateway: {repositories: true, root: /" + strings.Repeat("x", 60) + "}", "longer than 60"},
		"a server list in one text":        {`nodeMountGateway: {nfsServers: ["a,b"]}`, "nfsServers"},
		"a timeout without a unit":         {`nodeMountGateway: {nfsTimeout: "30"}`, "nfsTimeout"},
		"root in the claim":                {"nodeMountGateway: {root: /mnt/shared-fs/x}", "lie in one another"},
		"root in kubelet's folder":         {"nodeMountGateway: {root: /var/lib/kubelet/x}", "lie in one another"},
		"root is kubelet's folder":         {"nodeMountGateway: {root: /var/lib/kubelet/}", "lie in one another"},
		"the claim in root":                {"nodeMountGateway: {sharedFilesystemMountPath: /var/lib/datalayer/node-mount-gateway/x}", "lie in one another"},
		"kubelet's folder in the claim":    {"kubeletDir: /mnt/shared-fs/kubelet", "lie in one another"},
		"the claim in kubelet's folder":    {"nodeMountGateway: {sharedFilesystemMountPath: /var/lib/kubelet/pods}", "lie in one another"},
		"root is the agent's program":      {"nodeMountGateway: {root: /usr/local/bin}", "nodeMountGateway.root (/usr/local/bin) lies in /usr"},
		"root is the system's":             {"nodeMountGateway: {root: /etc/}", "nodeMountGateway.root (/etc) lies in /etc"},
		"the claim is the container's own": {"nodeMountGateway: {sharedFilesystemMountPath: /tmp}", "nodeMountGateway.sharedFilesystemMountPath (/tmp) lies in /tmp"},
		"the claim in the kernel's folder": {"nodeMountGateway: {sharedFilesystemMountPath: /proc/x}", "lies in /proc"},
		"kubelet in the system's folder":   {"kubeletDir: /dev/kubelet", "kubeletDir (/dev/kubelet) lies in /dev"},
		"alerts without runbooks":          {`monitoring: {prometheusRule: true, runbookBaseUrl: ""}`, "needs monitoring.runbookBaseUrl"},
		"denied with a warning":            {"admission: {pods: {actions: [Deny, Warn]}}", "admission.pods.actions has Deny and Warn"},
		"a key nobody reads":               {"nodeMountGateway: {sharedFilesystemCliam: x}", "sharedFilesystemCliam"},
		"a key nobody reads, at the top":   {"nodemountgateway: {enabled: true}", "nodemountgateway"},
		"a number as text":                 {`nodeMountGateway: {maxMountsPerPod: "32"}`, "maxMountsPerPod"},
		"no mounts":                        {"nodeMountGateway: {maxMountsPerPod: 0}", "maxMountsPerPod"},
		"more mounts than a set has":       {"nodeMountGateway: {maxMountsPerPod: 1001}", "maxMountsPerPod"},
		"more mounts than a node stands":   {"nodeMountGateway: {maxMountsPerNode: 20001}", "maxMountsPerNode"},
		"a relative path":                  {"kubeletDir: var/lib/kubelet", "kubeletDir"},
		"the whole filesystem":             {"nodeMountGateway: {root: /}", "root"},
		"a path that walks":                {"nodeMountGateway: {root: /var/../etc}", "root"},
		"a namespace that is none":         {"nodeMountGateway: {namespace: Datalayer_Runtimes}", "namespace"},
		"an owner by name":                 {"nodeMountGateway: {owner: jovyan}", "owner"},
		"a port that is none":              {"driver: {healthPort: 0}", "healthPort"},
		"a level that is none":             {"driver: {logLevel: verbose}", "logLevel"},
		"a digest that is none":            {"image: {digest: latest}", "digest"},
		"a pull policy that is none":       {"image: {pullPolicy: Sometimes}", "pullPolicy"},
		"an argument that is no flag":      {"driver: {extraArgs: [recover]}", "extraArgs"},
		"an address range that is none":    {"apiServer: {cidr: 10.0.0.1}", "cidr"},
		"an address range that is too far": {"apiServer: {cidr: 10.0.0.0/33}", "cidr"},
		"an address that is none":          {"networkPolicy: {nodeCidrs: [300.1.1.1/8]}", "nodeCidrs"},
		"an address of two families":       {"apiServer: {cidr: '1:2.3.4.5/129'}", "cidr"},
		"an action that is none":           {"admission: {grants: {actions: [Refuse]}}", "actions"},
		"an update of no node":             {"updateStrategy: {maxUnavailable: 0}", "maxUnavailable"},
		"a surge":                          {"updateStrategy: {maxSurge: 1}", "maxSurge"},
		"labels that the selectors are of": {"podLabels: {app.kubernetes.io/name: other}", "app.kubernetes.io/name"},
		"a prefix with a slash":            {"nodeMountGateway: {annotationPrefix: example.org/x}", "annotationPrefix"},
		"a quoted CEL string that ends":    {`nodeMountGateway: {annotationPrefix: "a\" || true || \""}`, "annotationPrefix"},
		"a volume's name that is none":     {"nodeMountGateway: {volumeName: A_B}", "volumeName"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, least, test.values)
			if err == nil {
				t.Fatal("it renders")
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("it says %q, and nothing of %q", err, test.says)
			}
		})
	}
}

// What the kind table, and so the reference and the command, say of a kind.
func TestTheChartServesTheKindsThatTheTableSaysAreServed(t *testing.T) {
	for _, k := range grant.Kinds() {
		name, found := strings.CutPrefix(k.Switch, "nodeMountGateway.")
		if !found {
			continue
		}
		_, err := render(t, least, "nodeMountGateway: {credentials: true, nfsServers: [filer.example.org], "+name+": true}")
		refused := err != nil && strings.Contains(err.Error(), k.Switch+" is not served by this release yet")
		if refused != k.Unserved || err != nil && !refused {
			t.Errorf("%s, unserved: %t, renders: %v", k.Kind, k.Unserved, err)
		}
	}
}

func TestTheDefaultsAloneAskForWhatIsMissing(t *testing.T) {
	_, err := render(t)
	if err == nil || !strings.Contains(err.Error(), "set nodeMountGateway.enabled=true and nodeMountGateway.sharedFilesystemClaim") {
		t.Errorf("got %v", err)
	}
}

func TestHelmsGlobalValuesAreNoError(t *testing.T) {
	must(t, least, "global: {anything: [1]}")
}
