package agentcmd

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/internal/journal"

	"github.com/datalayer/node-mounts/internal/advice"
)

func TestASecondAgentOfANodeIsRefused(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	first, err := journal.Open(filepath.Join(mkdir(t, root), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	status, _, stderr := execute(0, nil, "--node-id", "a", "--health-port", "0", "--kubeconfig", kubeconfig(t, "http://127.0.0.1:1"),
		"--root", root, "--log-level", "error")
	if status != 1 || !strings.HasPrefix(stderr, "error: an agent runs on this node already") || !strings.Contains(stderr, "\nhint: end the other process") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	write(t, dir, map[string]string{"there": ""})
	return dir
}

func TestARefusalSaysWhatToDoAndWhetherItIsOfUsage(t *testing.T) {
	for want, err := range map[int]error{advice.StatusUsage: usage(errors.New("e"), "do"), advice.StatusError: refuse(errors.New("e"), "do")} {
		if advice.Hint(err) != "do" || advice.Status(err) != want {
			t.Errorf("%#v", err)
		}
	}
	if n := len(OfflineOptions()); n != 3 {
		t.Errorf("%d settings count without an agent", n)
	}
}
