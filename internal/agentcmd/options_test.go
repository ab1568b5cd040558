package agentcmd

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/delivery"
)

func lookup(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

func servers(t *testing.T, list ...string) delivery.Servers {
	t.Helper()
	s, err := delivery.ParseServers(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// settle resolves the options from flags and variables.
func settle(t *testing.T, flags, env map[string]string) settings {
	t.Helper()
	s, err := resolve(lookup(flags), lookup(env))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheDefaultsAreThoseOfTheEarlierAgent(t *testing.T) {
	got := settle(t, map[string]string{"node-id": "node-a"}, nil)
	want := settings{
		node: "node-a", sharedRoot: "/mnt/shared-fs", root: "/var/lib/datalayer/node-mount-gateway",
		kubelet: "/var/lib/kubelet", mount: "/mnt/datalayer", namespace: "datalayer-runtimes",
		maxPerPod: 32, maxPerNode: 512, healthPort: 9808, logLevel: "info", events: true,
		prefix: grant.DefaultPrefix, volume: "node-mount-gateway",
		owner: beneath.Owner{UID: 1000, GID: 100}, sandboxed: []string{"gvisor", "runsc", "kata"},
		nfsTimeout: 30 * time.Second,
		git:        gitDefaults(), buckets: bucketDefaults(),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAFlagWinsOverItsVariableAndThatOverTheDefault(t *testing.T) {
	env := map[string]string{
		"NODE_ID": "env-node", "DATALAYER_SHARED_FS_MOUNT_PATH": "/env/shared", "DATALAYER_NODE_MOUNT_GATEWAY_ROOT": "/env/root",
		"DATALAYER_KUBELET_DIR": "/env/kubelet", "DATALAYER_RUNTIMES_NAMESPACE": "env-ns", "DATALAYER_MAX_MOUNTS_PER_POD": "3",
		"DATALAYER_MAX_MOUNTS_PER_NODE": "4", "DATALAYER_LOCAL_CSI_HEALTH_PORT": "5", "DATALAYER_LOG_LEVEL": "warn", "KUBECONFIG": "/env/config",
		"DATALAYER_NODE_MOUNT_GATEWAY_EVENTS": "false", "DATALAYER_NODE_MOUNT_GATEWAY_CREDENTIALS": "true", "DATALAYER_NODE_MOUNT_GATEWAY_NFS": "true",
		"DATALAYER_NODE_MOUNT_GATEWAY_NFS_SERVERS": "filer", "DATALAYER_NODE_MOUNT_GATEWAY_NFS_TIMEOUT": "1m",
	}
	maps.Copy(env, gitVariables())
	maps.Copy(env, bucketVariables())
	flags := map[string]string{
		"node-id": "flag-node", "shared-root": "/flag/shared/", "root": "/flag/root", "kubelet-dir": "/flag/kubelet", "namespace": "flag-ns",
		"max-mounts-per-pod": "6", "max-mounts-per-node": "7", "health-port": "0", "log-level": "ERROR", "annotation-prefix": "example.org",
		"volume-name": "gateway", "mount-path": "/mnt/x", "owner": "0:0", "kubeconfig": "/flag/config", "sandboxed-runtimes": " a, ,b",
		"events": "1", "credentials": "0", "nfs": "1", "nfs-servers": "10.0.0.0/8, Filer.example.org., [fd00::1]", "nfs-timeout": "5s",
	}
	maps.Copy(flags, gitFlags())
	maps.Copy(flags, bucketFlags())
	fromEnv := settings{
		node: "env-node", sharedRoot: "/env/shared", root: "/env/root", kubelet: "/env/kubelet", mount: "/mnt/datalayer", namespace: "env-ns",
		maxPerPod: 3, maxPerNode: 4, healthPort: 5, logLevel: "warn", prefix: grant.DefaultPrefix, volume: "node-mount-gateway",
		owner: beneath.Owner{UID: 1000, GID: 100}, kubeconfig: "/env/config", sandboxed: []string{"gvisor", "runsc", "kata"},
		credentials: true, nfs: true, nfsServers: servers(t, "filer"), nfsTimeout: time.Minute, git: gitOfVariables(),
		keeper: "mounts/app=keeper,x=y", buckets: bucketsOfVariables(),
	}
	fromFlags := settings{
		node: "flag-node", sharedRoot: "/flag/shared", root: "/flag/root", kubelet: "/flag/kubelet", mount: "/mnt/x", namespace: "flag-ns",
		maxPerPod: 6, maxPerNode: 7, healthPort: 0, logLevel: "ERROR", events: true, prefix: "example.org", volume: "gateway",
		owner: beneath.Owner{}, kubeconfig: "/flag/config", sandboxed: []string{"a", "b"},
		nfs: true, nfsServers: servers(t, "10.0.0.0/8", "filer.example.org", "fd00::1"), nfsTimeout: 5 * time.Second, git: gitOfFlags(),
		keeper: "/run/keeper.sock", buckets: bucketsOfFlags(),
	}
	if got := settle(t, nil, env); !reflect.DeepEqual(got, fromEnv) {
		t.Errorf("from variables: got  %+v\nwant %+v", got, fromEnv)
	}
	if got := settle(t, flags, env); !reflect.DeepEqual(got, fromFlags) {
		t.Errorf("from flags: got  %+v\nwant %+v", got, fromFlags)
	}
	for _, o := range Options() {
		if _, ok := flags[o.Flag]; !ok {
			t.Errorf("--%s is not in this test", o.Flag)
		}
		if _, ok := env[o.Env]; !ok && o.Env != "" {
			t.Errorf("%s is not in this test", o.Env)
		}
	}
}

func TestAnEmptyVariableIsUnsetExceptWhereEmptyMeansSomething(t *testing.T) {
	env := map[string]string{"NODE_ID": "a"}
	for _, o := range Options() {
		if o.Env != "" && o.Env != "NODE_ID" {
			env[o.Env] = ""
		}
	}
	want := settle(t, map[string]string{"node-id": "a"}, nil)
	want.namespace = "" // all of them
	if got := settle(t, nil, env); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := settle(t, map[string]string{"node-id": "a", "sandboxed-runtimes": ""}, nil); got.sandboxed != nil {
		t.Errorf("no sandboxed runtimes are %v", got.sandboxed)
	}
}

func TestNonsenseIsRefusedWithWhatToDo(t *testing.T) {
	long := strings.Repeat("a", 64)
	for flag, values := range map[string][]string{
		"node-id":             {"", "Node", "a_b", "a b", ".a", "a.", "a..b", "-a", "a\n", strings.Repeat("a.", 127) + "aa", "a,b", "a=b"},
		"shared-root":         {"", "relative", "/", "//", "/a/..", "a/../b", "/\x00"},
		"root":                {"", ".", "/", "/mnt/shared-fs", "/mnt/shared-fs/x", "/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib", "/mnt"},
		"kubelet-dir":         {"", "/", "/mnt/shared-fs/kubelet", "/var/lib/datalayer/node-mount-gateway/kubelet"},
		"namespace":           {"A", "a.b", long, "a/b", " "},
		"max-mounts-per-pod":  {"", "0", "-1", "1001", "abc", "1.5", "1e3", "99999999999999999999"},
		"max-mounts-per-node": {"", "0", "20001"},
		"health-port":         {"", "-1", "65536", "http"},
		"log-level":           {"", "verbose", "info+1"},
		"events":              {"", "yes", "on"},
		"credentials":         {"", "yes"},
		"nfs":                 {"", "on"},
		"nfs-servers":         {"10.0.0.1/8", "10.0.0.0/33", "*.example.org", "a b", "http://x", "fe80::1%eth0"},
		"nfs-timeout":         {"", "30", "0s", "999ms", "11m", "-1s"},
		"repositories":        {"", "on"},
		"clone-timeout":       {"", "0", "5m", "86401"},
		"checkout-size":       {"", "0", "1Mb", "-1Gi", "1.5Gi", "9999999999Ti", "1023Ki"},
		"checkouts-kept":      {"", "-1", "much"},
		"checkout-files":      {"", "99", "many"},
		"checkouts-total":     {"", "0", "1023Ki"},
		"checkouts-free":      {"", "-1", "91", "10%"},
		"git-memory":          {"", "127Mi"},
		"git-user":            {"git", "0:65534", "65534:0", "0:0"},
		"git-ca-file":         {"ca.pem"},
		"git-proxy":           {"proxy:3128", "socks5://proxy", "http://", "http://[::1"},
		"git-allow":           {"10.0.0.7", "git.example.org:443", "10.0.0.7:0", "[fe80::1%eth0]:443"},
		"git-deny":            {"git.example.org", "10.0.0.0/33", "fe80::1%eth0"},
		"keeper":              {"keeper.sock", "mounts", "/", "mounts/", "A_B/app=keeper"},
		"buckets":             {"", "on"},
		"bucket-program":      {"", "mount-s3", "/"},
		"bucket-path-style":   {"", "yes"},
		"bucket-insecure":     {"", "yes"},
		"bucket-deny":         {"minio.example.org", "10.0.0.0/33"},
		"bucket-proxy":        {"proxy:3128", "socks5://proxy"},
		"bucket-ca-file":      {"ca.pem"},
		"bucket-cache":        {"", "0", "63Mi", "much"},
		"bucket-memory":       {"", "127Mi"},
		"annotation-prefix":   {"", "Example.org", "a/b", "a..b"},
		"volume-name":         {"", "a.b", "A", long},
		"mount-path":          {"", "/", "mnt"},
		"owner":               {"", "1000", "1000:", ":100", "jovyan:users", "-1:100", "1000:-1", "4294967295:100", "1:2:3", "1000: 100"},
	} {
		for _, v := range values {
			flags := map[string]string{"node-id": "a", flag: v}
			_, err := resolve(lookup(flags), lookup(nil))
			if err == nil {
				t.Errorf("--%s %q is taken", flag, v)
				continue
			}
			status, hint := advice.Status(err), advice.Hint(err)
			if status != advice.StatusUsage || hint == "" || !strings.Contains(err.Error(), "--"+flag) || strings.ContainsAny(err.Error()+hint, "\n\x00") {
				t.Errorf("--%s %q: status %d, error %q, hint %q", flag, v, status, err, hint)
			}
		}
	}
	_, err := resolve(lookup(nil), lookup(map[string]string{"NODE_ID": "a", "DATALAYER_MAX_MOUNTS_PER_POD": "many"}))
	if err == nil || !strings.HasPrefix(err.Error(), `DATALAYER_MAX_MOUNTS_PER_POD "many": `) {
		t.Errorf("the variable is not blamed: %v", err)
	}
}

func TestTheClaimMayLieInKubeletsFolder(t *testing.T) {
	// Where the agent runs on the node itself, that is where kubelet mounts it.
	claim := "/var/lib/kubelet/pods/1/volumes/kubernetes.io~nfs/claim"
	if got := settle(t, map[string]string{"node-id": "a", "shared-root": claim}, nil); got.sharedRoot != claim {
		t.Errorf("the shared root is %s", got.sharedRoot)
	}
}

// execute runs the command with arguments, as a user.
func execute(uid int, env map[string]string, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	cmd := newCommand("v1.2.3", lookup(env), func() int { return uid })
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	status = report(&errs, cmd.Execute())
	return status, out.String(), errs.String()
}

func TestTheCommandRefusesToStartOnlyWhenMisconfiguredAndSaysWhatToDo(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("\tnot: [a kubeconfig\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		uid    int
		args   []string
		status int
		error  string
		hint   string
	}{
		{"no node id", 0, nil, 2, "--node-id is not set", "NODE_ID"},
		{"an unknown flag", 0, []string{"--nonsense"}, 2, "--nonsense", "--help"},
		{"a flag without its value", 0, []string{"--root"}, 2, "--root", "--help"},
		{"an argument", 0, []string{"--node-id", "a", "start"}, 2, `"start"`, "--help"},
		{"a bad value", 0, []string{"--node-id", "a", "--owner", "me"}, 2, "such as 1000:100", "--owner"},
		{"not root", 1000, []string{"--node-id", "a"}, 1, "uid 1000", "privileged"},
		{"no cluster", 0, []string{"--node-id", "a"}, 1, "no kubeconfig", "KUBECONFIG"},
		{"a kubeconfig that is not there", 0, []string{"--node-id", "a", "--kubeconfig", "/nonexistent/config"}, 1, "/nonexistent/config", "--kubeconfig"},
		{"a kubeconfig that is none", 0, []string{"--node-id", "a", "--kubeconfig", broken}, 1, broken, "--kubeconfig"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, stdout, stderr := execute(c.uid, nil, c.args...)
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			if status != c.status || stdout != "" || len(lines) != 2 {
				t.Fatalf("status %d, stdout %q, stderr %q", status, stdout, stderr)
			}
			if !strings.HasPrefix(lines[0], "error: ") || !strings.Contains(lines[0], c.error) {
				t.Errorf("the first line is %q", lines[0])
			}
			if !strings.HasPrefix(lines[1], "hint: ") || !strings.Contains(lines[1], c.hint) {
				t.Errorf("the second line is %q", lines[1])
			}
		})
	}
}

func TestAPortThatIsTakenIsToldAtOnce(t *testing.T) {
	port := listener(t)
	status, _, stderr := execute(0, nil, "--node-id", "a", "--health-port", port, "--kubeconfig", kubeconfig(t, "http://127.0.0.1:1"),
		"--root", filepath.Join(t.TempDir(), "root"), "--log-level", "error")
	if status != 1 || !strings.Contains(stderr, "hint: another process has the port: set --health-port") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

func TestTheHelpNamesEveryFlagVariableAndDefault(t *testing.T) {
	status, stdout, stderr := execute(1000, nil, "--help")
	if status != 0 || stderr != "" {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	for _, o := range Options() {
		for line := range strings.Lines(stdout) {
			if strings.Contains(line, "--"+o.Flag+" ") {
				if !strings.Contains(line, o.Help) || !strings.Contains(line, o.Env) || !strings.Contains(line, o.Default) {
					t.Errorf("--%s: %q", o.Flag, line)
				}
				stdout = strings.Replace(stdout, line, "", 1)
			}
		}
	}
	if strings.Count(stdout, "--") != 3 { // --help, --version, and the help of commands
		t.Errorf("the help has more flags than the table: %s", stdout)
	}
	if status, stdout, _ := execute(1000, nil, "--version"); status != 0 || !strings.Contains(stdout, "v1.2.3") {
		t.Errorf("the version is %q", stdout)
	}
	if status := report(io.Discard, errors.New("of no special sort")); status != advice.StatusError {
		t.Errorf("an error of no special sort is status %d", status)
	}
}

func TestSELinuxIsRecognisedFromProc(t *testing.T) {
	for _, c := range []struct {
		name, filesystems, current string
		want                       bool
	}{
		{"without it", "nodev\tsysfs\nnodev\ttmpfs\n\text4\n", "unconfined\n", false},
		{"enabled", "nodev\tsysfs\nnodev\tselinuxfs\n\txfs\n", "system_u:system_r:container_t:s0\x00", true},
		{"no policy loaded", "nodev\tselinuxfs\n", "kernel\x00", false},
		{"label unreadable", "nodev\tselinuxfs\n", "", true},
		{"a filesystem of a similar name", "nodev\tnotselinuxfs\n", "x:y:z", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := t.TempDir()
			files := map[string]string{"filesystems": c.filesystems}
			if c.current != "" {
				files["self/attr/current"] = c.current
			}
			write(t, proc, files)
			if got, err := selinux(proc); err != nil || got != c.want {
				t.Errorf("selinux = %v, %v", got, err)
			}
		})
	}
	if _, err := selinux(t.TempDir()); err == nil {
		t.Error("a /proc without filesystems passes for one without SELinux")
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
