package agentcmd

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/internal/nodeview"
)

// answering is a port on which something answers so.
func answering(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestGatewayPrintsTheDocumentOfTheAgentThatRunsHere(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // it is not for this
	const document = `{"node": "node-a", "pods": []}` + "\n"
	port := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/gateway" || !strings.HasPrefix(r.Host, "127.0.0.1:") {
			http.Error(w, r.Host+r.URL.Path, http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(document))
	})
	for name, args := range map[string][]string{"by its flag": {"--health-port", port}, "by its variable": nil} {
		env := map[string]string{}
		if args == nil {
			env["DATALAYER_LOCAL_CSI_HEALTH_PORT"] = port
		}
		status, stdout, stderr := execute(1000, env, append([]string{"gateway"}, args...)...)
		if status != 0 || stdout != document || stderr != "" {
			t.Errorf("%s: status %d, stdout %q, stderr %q", name, status, stdout, stderr)
		}
	}
}

func TestGatewaySaysWhyThereIsNoDocument(t *testing.T) {
	refuses := answering(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not to you", http.StatusForbidden) })
	other := answering(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	for _, c := range []struct {
		name, port, error string
		status            int
	}{
		{"nobody listens", "1", "connection refused", 1},
		{"it refuses", refuses, "403 Forbidden: not to you", 1},
		{"something else answers", other, "not JSON", 1},
		{"no port is served", "0", "--health-port 0", 1},
		{"no port", "x", "--health-port", 2},
	} {
		status, stdout, stderr := execute(0, nil, "gateway", "--health-port", c.port)
		if status != c.status || stdout != "" || !strings.HasPrefix(stderr, "error: ") || !strings.Contains(stderr, c.error) || !strings.Contains(stderr, "\nhint: ") {
			t.Errorf("%s: status %d, stdout %q, stderr %q", c.name, status, stdout, stderr)
		}
	}
	if status, _, stderr := execute(0, nil, "gateway", "now"); status != 2 || !strings.Contains(stderr, "hint: every setting is a flag: see node-mounts-agent gateway --help") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

func TestProbeTellsWhatTheNodeIsAndExitsWith3WhereItCannotServe(t *testing.T) {
	kubelet := t.TempDir() // without a folder "pods"
	args := []string{"probe", "--kubelet-dir", kubelet, "--root", t.TempDir() + "/not/there/yet"}
	status, stdout, stderr := execute(0, nil, append(args, "-o", "json")...)
	var doc nodeview.Probe
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("%v: %q, %q", err, stdout, stderr)
	}
	if status != 3 || !strings.HasPrefix(stderr, "error: this node cannot serve grants: ") || doc.KubeletFound || !doc.MountSetattr || doc.Kernel == "" ||
		doc.Claim.Path != "/mnt/shared-fs" || doc.KubeletPropagation == "" || doc.Sight == "" {
		t.Errorf("status %d, %+v, stderr %q", status, doc, stderr)
	}
	if !strings.Contains(strings.Join(doc.Faults, "\n"), kubelet+` has no folder "pods"`) || strings.Contains(strings.Join(doc.Faults, "\n"), "shared-fs") {
		t.Errorf("faults: %q", doc.Faults)
	}
	status, stdout, _ = execute(0, map[string]string{"DATALAYER_SHARED_FS_MOUNT_PATH": "/no/claim"}, args...)
	if status != 3 || !strings.Contains(stdout, "no filesystem is mounted at /no/claim") || !strings.HasPrefix(stdout, "kernel ") {
		t.Errorf("status %d, stdout %q", status, stdout)
	}
	if status, _, stderr := execute(0, nil, "probe", "-o", "yaml"); status != 2 || !strings.Contains(stderr, "want text or json") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

func TestTheNodeIsSeenThroughItsFirstProcessWhereThatMayBeLookedAt(t *testing.T) {
	proc := t.TempDir()
	write(t, proc, map[string]string{
		"1/mountinfo":    "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n",
		"self/mountinfo": "9 0 8:9 / / rw - overlay overlay rw\n",
	})
	check := func(whose, fstype, sight string) {
		t.Helper()
		n := theNode(proc)
		mounts, err := n.List()
		if err != nil || n.whose != whose || len(mounts) != 1 || mounts[0].FSType != fstype || n.sight != sight {
			t.Errorf("%+v, %+v, %v", n, mounts, err)
		}
	}
	check(nodeview.SightSelf, "overlay", "/")
	if err := os.Symlink("/", filepath.Join(proc, "1/root")); err != nil {
		t.Fatal(err)
	}
	check(nodeview.SightNode, "ext4", filepath.Join(proc, "1/root"))
}
