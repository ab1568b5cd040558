package chart

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

func env(t testing.TB, r rendered, name string) string {
	t.Helper()
	value := "(not there)"
	for _, e := range driver(t, r).Env {
		if e.Name == name {
			value = e.Value
		}
	}
	return value
}

func driver(t testing.TB, r rendered) corev1.Container {
	t.Helper()
	for _, c := range agents(t, r).Spec.Template.Spec.Containers {
		if c.Name == "driver" {
			return c
		}
	}
	t.Fatal("the DaemonSet has no container driver")
	return corev1.Container{}
}

func arg(t testing.TB, r rendered, flag string) string {
	t.Helper()
	value := "(not there)"
	for _, a := range driver(t, r).Args {
		if v, ok := strings.CutPrefix(a, flag+"="); ok {
			value = v
		}
	}
	return value
}

// mount is "the volume's host path or claim at the path, propagated so".
func mount(t testing.TB, r rendered, volume string) string {
	t.Helper()
	spec := agents(t, r).Spec.Template.Spec
	source := "nothing"
	for _, v := range spec.Volumes {
		switch {
		case v.Name != volume:
		case v.HostPath != nil:
			source = v.HostPath.Path
		case v.PersistentVolumeClaim != nil:
			source = v.PersistentVolumeClaim.ClaimName
		}
	}
	for _, m := range driver(t, r).VolumeMounts {
		if m.Name == volume && m.MountPropagation != nil {
			return fmt.Sprintf("%s at %s %s", source, m.MountPath, *m.MountPropagation)
		}
	}
	return source + " not mounted"
}

func egress(t testing.TB, r rendered) string {
	t.Helper()
	policy := named[*networkingv1.NetworkPolicy](t, r.objects, fullname)
	last := policy.Spec.Egress[len(policy.Spec.Egress)-1]
	to := "any"
	if len(last.To) > 0 {
		to = last.To[0].IPBlock.CIDR
	}
	return fmt.Sprintf("%s:%s", to, last.Ports[0].Port)
}

// egresses are the ports of every rule.
func egresses(t testing.TB, r rendered) string {
	t.Helper()
	var rules []string
	for _, rule := range named[*networkingv1.NetworkPolicy](t, r.objects, fullname).Spec.Egress {
		var ports []string
		for _, p := range rule.Ports {
			ports = append(ports, p.Port.String())
		}
		rules = append(rules, fmt.Sprint(ports))
	}
	return strings.Join(rules, " ")
}

func podAnnotation(t testing.TB, r rendered, key string) string {
	t.Helper()
	return agents(t, r).Spec.Template.Annotations[key]
}

func kinds(t testing.TB, r rendered) string {
	t.Helper()
	return fmt.Sprintf("%d Roles, %d ClusterRoles", len(all[*rbacv1.Role](r.objects)), len(all[*rbacv1.ClusterRole](r.objects)))
}

// place is where one value of the reference lands: what is found there with the
// default, and with another value.
type place struct {
	value, other         string // other: YAML that sets it
	find                 func(testing.TB, rendered) string
	byDefault, withOther string
}

func places() []place {
	gateway := func(field string) string { return "nodeMountGateway: {" + field + "}" }
	ofEnv := func(name string) func(testing.TB, rendered) string {
		return func(t testing.TB, r rendered) string { t.Helper(); return env(t, r, name) }
	}
	ofArg := func(flag string) func(testing.TB, rendered) string {
		return func(t testing.TB, r rendered) string { t.Helper(); return arg(t, r, flag) }
	}
	ofMount := func(volume string) func(testing.TB, rendered) string {
		return func(t testing.TB, r rendered) string { t.Helper(); return mount(t, r, volume) }
	}
	return []place{
		{"sharedFilesystemClaim", gateway("sharedFilesystemClaim: other"), ofMount("shared"), "shared-fs at /mnt/shared-fs HostToContainer", "other at /mnt/shared-fs HostToContainer"},
		{"sharedFilesystemMountPath", gateway("sharedFilesystemMountPath: /other"), ofMount("shared"), "shared-fs at /mnt/shared-fs HostToContainer", "shared-fs at /other HostToContainer"},
		{"sharedFilesystemMountPath for the agent", gateway("sharedFilesystemMountPath: /other"), ofEnv("DATALAYER_SHARED_FS_MOUNT_PATH"), "/mnt/shared-fs", "/other"},
		{
			"root", gateway("root: /data/nm"), ofMount("root"),
			"/var/lib/datalayer/node-mount-gateway at /var/lib/datalayer/node-mount-gateway Bidirectional", "/data/nm at /data/nm Bidirectional",
		},
		{"root for the agent", gateway("root: /data/nm/"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_ROOT"), "/var/lib/datalayer/node-mount-gateway", "/data/nm"},
		{"kubeletDir", "kubeletDir: /data/kubelet", ofMount("kubelet"), "/var/lib/kubelet at /var/lib/kubelet Bidirectional", "/data/kubelet at /data/kubelet Bidirectional"},
		{"kubeletDir for the agent", "kubeletDir: /data/kubelet", ofEnv("DATALAYER_KUBELET_DIR"), "/var/lib/kubelet", "/data/kubelet"},
		{"namespace", gateway("namespace: other"), ofEnv("DATALAYER_RUNTIMES_NAMESPACE"), "datalayer-runtimes", "other"},
		{"namespace, empty", gateway(`namespace: ""`), ofEnv("DATALAYER_RUNTIMES_NAMESPACE"), "datalayer-runtimes", ""},
		{"namespace for RBAC", gateway(`namespace: ""`), kinds, "2 Roles, 0 ClusterRoles", "0 Roles, 2 ClusterRoles"},
		{"events for RBAC", gateway("events: false"), kinds, "2 Roles, 0 ClusterRoles", "1 Roles, 0 ClusterRoles"},
		{"events", gateway("events: false"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_EVENTS"), "true", "false"},
		{"credentials", gateway("credentials: true"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_CREDENTIALS"), "false", "true"},
		{"nfs", gateway("nfs: true"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_NFS"), "false", "true"},
		{"nfsServers", gateway("nfsServers: [nas.example.org, 10.0.0.0/8]"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_NFS_SERVERS"), "", "nas.example.org,10.0.0.0/8"},
		{"nfsTimeout", gateway("nfsTimeout: 1m"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_NFS_TIMEOUT"), "30s", "1m"},
		{"repositories", gateway("repositories: true"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_REPOSITORIES"), "false", "true"},
		{"repositories for the NetworkPolicy", gateway("repositories: true"), egresses, "[53 53] [443]", "[53 53] [443 22] [443]"},
		{"git.ports", gateway("repositories: true, git: {ports: [3128]}"), egresses, "[53 53] [443]", "[53 53] [3128] [443]"},
		{"cloneTimeoutSeconds", gateway("cloneTimeoutSeconds: 60"), ofEnv("DATALAYER_CLONE_TIMEOUT_SECONDS"), "300", "60"},
		{"git.checkoutSize", gateway("git: {checkoutSize: 1Gi}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUT_SIZE"), "2Gi", "1Gi"},
		{"git.checkoutFiles", gateway("git: {checkoutFiles: 10000000}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUT_FILES"), "200000", "10000000"},
		{"git.checkoutsTotal", gateway("git: {checkoutsTotal: 1Ti}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUTS_TOTAL"), "50Gi", "1Ti"},
		{"git.checkoutsFree", gateway("git: {checkoutsFree: 0}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUTS_FREE"), "10", "0"},
		{"git.checkoutsKept", gateway(`git: {checkoutsKept: "0"}`), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_CHECKOUTS_KEPT"), "10Gi", "0"},
		{"git.memory", gateway("git: {memory: 1Gi}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_GIT_MEMORY"), "256Mi", "1Gi"},
		{"git.user", gateway(`git: {user: "7:8"}`), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_GIT_USER"), "", "7:8"},
		{"git.caConfigMap", gateway("git: {caConfigMap: roots}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_GIT_CA_FILE"), "", "/etc/node-mounts/git-ca/ca.crt"},
		{"git.proxy", gateway("git: {proxy: http://p:1}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_GIT_PROXY"), "", "http://p:1"},
		{"git.allow", gateway(`git: {allow: ["10.0.0.7:443", "[fd00::7]:22"]}`), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_GIT_ALLOW"), "", "10.0.0.7:443,[fd00::7]:22"},
		{"git.deny", gateway("git: {deny: [10.0.0.0/8]}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_GIT_DENY"), "", "10.0.0.0/8"},
		{"nodeCidrs for git", "networkPolicy: {nodeCidrs: [10.1.0.0/16]}", ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_GIT_DENY"), "", "10.1.0.0/16"},
		{"buckets", gateway(buckets), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKETS"), "false", "true"},
		{
			"buckets for the keeper", gateway(buckets), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_KEEPER"), "",
			namespace + "/app.kubernetes.io/component=keeper,app.kubernetes.io/instance=nm,app.kubernetes.io/name=node-mounts",
		},
		{"s3.program", gateway("s3: {program: /opt/mount-s3}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_PROGRAM"), "/usr/local/bin/node-mounts-s3", "/opt/mount-s3"},
		{"s3.region", gateway("s3: {region: eu-west-1}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_REGION"), "", "eu-west-1"},
		{"s3.endpointURL", gateway("s3: {endpointURL: https://minio}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_ENDPOINT"), "", "https://minio"},
		{"s3.pathStyle", gateway("s3: {pathStyle: false}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_PATH_STYLE"), "true", "false"},
		{"s3.caConfigMap", gateway("s3: {caConfigMap: roots}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_CA_FILE"), "", "/etc/node-mounts/s3-ca/ca.crt"},
		{"s3.cacheSize", gateway("s3: {cacheSize: 3Gi}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_CACHE"), "1Gi", "3Gi"},
		{"s3.memory", gateway("s3: {memory: 1Gi}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_MEMORY"), "512Mi", "1Gi"},
		{"s3.insecure", gateway("s3: {insecure: true}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_INSECURE"), "false", "true"},
		{"s3.allow", gateway(`s3: {allow: [minio, "10.0.0.7:9000"]}`), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_ALLOW"), "", "minio,10.0.0.7:9000"},
		{"s3.deny", gateway("s3: {deny: [10.0.0.0/8]}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_DENY"), "", "10.0.0.0/8"},
		{"nodeCidrs for buckets", "networkPolicy: {nodeCidrs: [10.1.0.0/16]}", ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_DENY"), "", "10.1.0.0/16"},
		{"s3.proxy", gateway("s3: {proxy: http://p:1}"), ofEnv("DATALAYER_NODE_MOUNT_GATEWAY_BUCKET_PROXY"), "", "http://p:1"},
		{"maxMountsPerPod", gateway("maxMountsPerPod: 7"), ofEnv("DATALAYER_MAX_MOUNTS_PER_POD"), "32", "7"},
		{"maxMountsPerNode", gateway("maxMountsPerNode: 20000"), ofEnv("DATALAYER_MAX_MOUNTS_PER_NODE"), "512", "20000"},
		{"annotationPrefix", gateway("annotationPrefix: example.org"), ofArg("--annotation-prefix"), "runtime-pools.datalayer.io", "example.org"},
		{"volumeName", gateway("volumeName: other"), ofArg("--volume-name"), "node-mount-gateway", "other"},
		{"mountPath", gateway("mountPath: /other"), ofArg("--mount-path"), "/mnt/datalayer", "/other"},
		{"owner", gateway(`owner: "5:6"`), ofArg("--owner"), "1000:100", "5:6"},
		{"sandboxedRuntimes", gateway("sandboxedRuntimes: [a, b]"), ofArg("--sandboxed-runtimes"), "gvisor,runsc,kata", "a,b"},
		{"healthPort", "driver: {healthPort: 99}", ofEnv("DATALAYER_LOCAL_CSI_HEALTH_PORT"), "9808", "99"},
		{"healthPort for scraping", "driver: {healthPort: 99}", func(t testing.TB, r rendered) string {
			t.Helper()
			return podAnnotation(t, r, "prometheus.io/port")
		}, "9808", "99"},
		{"logLevel", "driver: {logLevel: warn}", ofEnv("DATALAYER_LOG_LEVEL"), "info", "warn"},
		{"extraEnv", "driver: {extraEnv: [{name: A, value: b}]}", ofEnv("A"), "(not there)", "b"},
		{"extraArgs", "driver: {extraArgs: [--a=b]}", ofArg("--a"), "(not there)", "b"},
		{"apiServer.port", "apiServer: {port: 6443}", egress, "any:443", "any:6443"},
		{"apiServer.cidr", "apiServer: {cidr: 10.0.0.1/32}", egress, "any:443", "10.0.0.1/32:443"},
		{"monitoring.annotations", "monitoring: {annotations: false}", func(t testing.TB, r rendered) string {
			t.Helper()
			return podAnnotation(t, r, "prometheus.io/scrape")
		}, "true", ""},
		{"podAnnotations win", `podAnnotations: {prometheus.io/scrape: "false"}`, func(t testing.TB, r rendered) string {
			t.Helper()
			return podAnnotation(t, r, "prometheus.io/scrape")
		}, "true", "false"},
		{"monitoring.prometheusRule", "monitoring: {prometheusRule: true}", func(_ testing.TB, r rendered) string {
			return fmt.Sprint(r.rules != nil)
		}, "false", "true"},
		{"image", `image: {repository: r.example/n, tag: t}`, func(t testing.TB, r rendered) string {
			t.Helper()
			return driver(t, r).Image
		}, "ghcr.io/datalayer/node-mounts:" + appVersion, "r.example/n:t"},
		{"image.digest", `image: {tag: t, digest: "sha256:` + strings.Repeat("a", 64) + `"}`, func(t testing.TB, r rendered) string {
			t.Helper()
			return driver(t, r).Image
		}, "ghcr.io/datalayer/node-mounts:" + appVersion, "ghcr.io/datalayer/node-mounts@sha256:" + strings.Repeat("a", 64)},
		{"claimHolder", "claimHolder: {enabled: true}", func(_ testing.TB, r rendered) string {
			return fmt.Sprint(len(all[*appsv1.DaemonSet](r.objects)))
		}, "1", "2"},
		{"priorityClassName", "priorityClassName: mine", func(t testing.TB, r rendered) string {
			t.Helper()
			return agents(t, r).Spec.Template.Spec.PriorityClassName
		}, "system-node-critical", "mine"},
		{"tolerations", "tolerations: []", func(t testing.TB, r rendered) string {
			t.Helper()
			return fmt.Sprint(agents(t, r).Spec.Template.Spec.Tolerations)
		}, "[{ Exists   <nil>}]", "[]"},
	}
}

const appVersion = "0.1.0"

func TestEveryValueLandsInItsPlace(t *testing.T) {
	for _, p := range places() {
		t.Run(p.value, func(t *testing.T) {
			if got := p.find(t, must(t, least)); got != p.byDefault {
				t.Errorf("by default %q, want %q", got, p.byDefault)
			}
			if got := p.find(t, must(t, least, p.other)); got != p.withOther {
				t.Errorf("with %s %q, want %q", p.other, got, p.withOther)
			}
		})
	}
}

func TestTheAgentsPodIsAsTightAsAMountAgentCanBe(t *testing.T) {
	set := agents(t, must(t, least))
	spec, c := set.Spec.Template.Spec, driver(t, must(t, least))
	if !spec.HostPID || spec.HostNetwork || spec.HostIPC || spec.ShareProcessNamespace != nil {
		t.Errorf("of the node it shares more than its processes, or less: %+v", spec)
	}
	if sc := c.SecurityContext; !*sc.Privileged || *sc.RunAsUser != 0 || !*sc.ReadOnlyRootFilesystem || sc.AppArmorProfile.Type != corev1.AppArmorProfileTypeUnconfined {
		t.Errorf("security context %+v", sc)
	}
	if len(spec.Containers) != 1 || len(spec.InitContainers) != 0 {
		t.Errorf("%d containers", len(spec.Containers)+len(spec.InitContainers))
	}
	update := set.Spec.UpdateStrategy.RollingUpdate
	if update.MaxSurge.IntValue() != 0 || update.MaxUnavailable.IntValue() != 1 {
		t.Errorf("it rolls with %+v", update)
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if probe.HTTPGet.Port.StrVal != "health" {
			t.Errorf("a probe asks %v", probe.HTTPGet)
		}
	}
	if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("it lives by %s and is ready by %s", c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path)
	}
	if ref := c.Env[0]; ref.Name != "NODE_ID" || ref.ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
		t.Errorf("it knows its node by %+v", ref)
	}
}

func TestTheProfileIsAnAnnotationBeforeItIsAField(t *testing.T) {
	r, err := renderFor(t, cluster{"v1.29.4-eks-1"}, least)
	if err != nil {
		t.Fatal(err)
	}
	if got := podAnnotation(t, r, "container.apparmor.security.beta.kubernetes.io/driver"); got != "unconfined" {
		t.Errorf("the annotation is %q", got)
	}
	if p := driver(t, r).SecurityContext.AppArmorProfile; p != nil {
		t.Errorf("the field is set, which this API server does not know: %v", p)
	}
	if strings.Contains(r.text, "ValidatingAdmissionPolicy") {
		t.Error("a policy is rendered that this API server does not know")
	}
	if !strings.Contains(r.notes, "no ValidatingAdmissionPolicy") {
		t.Errorf("nobody is told: %s", r.notes)
	}
}

func TestTheClaimHolderIsNobody(t *testing.T) {
	r := must(t, least, "claimHolder: {enabled: true}")
	set := named[*appsv1.DaemonSet](t, r.objects, fullname+"-claim-holder")
	spec := set.Spec.Template.Spec
	c := spec.Containers[0]
	if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("it rolls with the agents: %v", set.Spec.UpdateStrategy)
	}
	if spec.HostPID || *spec.AutomountServiceAccountToken || !*spec.SecurityContext.RunAsNonRoot || *c.SecurityContext.AllowPrivilegeEscalation ||
		c.SecurityContext.Privileged != nil || c.SecurityContext.Capabilities.Drop[0] != "ALL" || !c.VolumeMounts[0].ReadOnly {
		t.Errorf("it may more than hold a claim: %+v", spec)
	}
	if claim := spec.Volumes[0].PersistentVolumeClaim.ClaimName; claim != "shared-fs" {
		t.Errorf("it holds %s", claim)
	}
}

func TestMonitoringReachesTheAgentsAndTenantsDoNot(t *testing.T) {
	policy := named[*networkingv1.NetworkPolicy](t, must(t, least).objects, fullname)
	from := policy.Spec.Ingress[0].From
	if len(policy.Spec.Ingress) != 1 || len(from) != 1 || from[0].NamespaceSelector == nil {
		t.Fatalf("ingress %+v", policy.Spec.Ingress)
	}
	if e := from[0].NamespaceSelector.MatchExpressions[0]; e.Operator != "NotIn" || e.Values[0] != runtimes {
		t.Errorf("the namespace of the sandboxes is not left out: %+v", e)
	}
	if port := policy.Spec.Ingress[0].Ports[0].Port.IntValue(); port != 9808 {
		t.Errorf("port %d", port)
	}
}

func TestNotesEndInTheVerifyCommand(t *testing.T) {
	notes := strings.TrimSpace(must(t, least).notes)
	if !strings.HasSuffix(notes, "\n  kubectl node-mounts verify") {
		t.Errorf("they end in %q", notes[max(0, len(notes)-60):])
	}
}

// Names that are numbers or words of YAML stay names.
func TestNamesThatLookLikeOtherThings(t *testing.T) {
	for _, name := range []string{"123", "1e3", "0x1f", "true", "no", "null", "y"} {
		t.Run(name, func(t *testing.T) {
			r := must(t, fmt.Sprintf(`
fullnameOverride: "%[1]s"
image: {repository: "%[1]s", tag: "30"}
imagePullSecrets: [{name: "%[1]s"}]
priorityClassName: "%[1]s"
nodeSelector: {pool: "%[1]s"}
claimHolder: {enabled: true}
nodeMountGateway:
  enabled: true
  sharedFilesystemClaim: "%[1]s"
  namespace: "%[1]s"
  credentials: true
  buckets: true
  repositories: true
  git: {caConfigMap: "%[1]s"}
  s3: {caConfigMap: "%[1]s"}
monitoring: {prometheusRule: true, runbookBaseUrl: "https://books.example.org"}
`, name))
			for _, role := range all[*rbacv1.RoleBinding](r.objects) {
				if role.Namespace != name && role.Namespace != namespace {
					t.Errorf("%s is in the namespace %q", role.Name, role.Namespace)
				}
			}
			for _, ds := range all[*appsv1.DaemonSet](r.objects) {
				if !strings.HasPrefix(ds.Name, name) || ds.Spec.Template.Spec.Containers[0].Image != name+":30" {
					t.Errorf("%s runs %s", ds.Name, ds.Spec.Template.Spec.Containers[0].Image)
				}
			}
		})
	}
}
