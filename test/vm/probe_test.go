package vm_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/test/vm"
)

// probeOn is what the agent's binary says of a node with that kernel, and its exit
// status. The node has kubelet's folder, as every node does.
func probeOn(t *testing.T, kernel string) (nodeview.Probe, int) {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "node-mounts-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", agent, "github.com/datalayer/node-mounts/cmd/node-mounts-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	kubelet := t.TempDir()
	if err := os.Mkdir(filepath.Join(kubelet, "pods"), 0o750); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	got, err := vm.Machine{
		Kernel: filepath.Join(kernels(t), kernel),
		Files:  map[string]string{"/bin/node-mounts-agent": agent, "/var/lib/kubelet": kubelet},
		// The order takes standard output and error together: only the document is there
		// where nothing else is said, and the refusal after it is cut off here.
		Command:   []string{"/bin/node-mounts-agent", "probe", "-o", "json"},
		MemoryMiB: 1024,
	}.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text := got.Output
	var doc nodeview.Probe
	start := strings.Index(text, "{")
	if start < 0 {
		t.Fatalf("status %d, and no document:\n%s", got.Exit, text)
	}
	if err := json.NewDecoder(strings.NewReader(text[start:])).Decode(&doc); err != nil {
		t.Fatalf("status %d: %v:\n%s", got.Exit, err, text)
	}
	return doc, got.Exit
}

// A kernel older than 5.12 has no mount_setattr: the probe says so before anything
// is installed, and verify where an agent runs all the same.
func TestANodeWithAnOldKernelIsFoundOut(t *testing.T) {
	old, exit := probeOn(t, "5.10")
	if exit != 3 || old.MountSetattr || !strings.HasPrefix(old.Kernel, "5.10.") {
		t.Errorf("the probe ends with %d: %+v", exit, old)
	}
	if len(old.Faults) != 1 || !strings.Contains(old.Faults[0], "no mount_setattr: Linux 5.12 or newer is needed") {
		t.Errorf("its faults: %q", old.Faults)
	}
	for _, r := range rowsAbout(old.Facts) {
		want := verify.OK
		if r.Check == "Kernel supports mount_setattr (5.12+)" {
			want = verify.Fail
			if r.Node != "old" || !strings.Contains(r.Detail, "5.10.") || r.Hint == "" {
				t.Errorf("the row says %+v", r)
			}
		}
		if r.Status != want {
			t.Errorf("%+v, want %s", r, want)
		}
	}
}

// The same node with a newer kernel has no fault: it is the kernel that is found.
func TestANodeWithAKernelThatIsNewEnoughCanServe(t *testing.T) {
	doc, exit := probeOn(t, "6.1")
	if exit != 0 || !doc.MountSetattr || !strings.HasPrefix(doc.Kernel, "6.1.") || len(doc.Faults) != 0 {
		t.Errorf("the probe ends with %d: %+v", exit, doc)
	}
	for _, r := range rowsAbout(doc.Facts) {
		if r.Status != verify.OK {
			t.Errorf("%+v", r)
		}
	}
}

// rowsAbout are verify's rows about the kernel, the mounts and kubelet, of a cluster
// whose only agent tells these facts.
func rowsAbout(f nodeview.Facts) []verify.Result {
	var rows []verify.Result
	for _, r := range verify.Judge(verify.Facts{Answers: verify.Known[[]verify.NodeAnswer]{Value: []verify.NodeAnswer{{
		Node: "old", Pod: "agent", Ready: true, Document: &nodeview.Node{Node: "old", KubeletDir: "/var/lib/kubelet", Root: "/var/lib/datalayer/node-mount-gateway", Facts: f},
	}}}}) {
		switch r.Check {
		case "Kernel supports mount_setattr (5.12+)", "Mount propagation (rshared)", "kubelet root found", "SELinux is off":
			rows = append(rows, r)
		}
	}
	return rows
}
