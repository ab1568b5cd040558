package e2e_test

import (
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/test/node"
)

// TestANodeWithAKubeletFolderOfItsOwn is told the usual one first, as happens where
// nobody knows better, and then the right one.
func TestANodeWithAKubeletFolderOfItsOwn(t *testing.T) {
	const elsewhere = "/data/kubelet"
	w := newWorld(t, setup{bare: true, node: func(o *node.Options) { o.KubeletDir = elsewhere }})
	args := func(more ...string) []string {
		return append([]string{"install", "--claim", claimName, "-n", system, "--timeout", "30s"}, append(imageValues(), more...)...)
	}

	out, err := w.command(within(t, 2*time.Minute), args()...)
	if exitCode(err) != 3 || !strings.Contains(out, node.DefaultKubeletDir) || !strings.Contains(out, "kubelet") {
		t.Errorf("the installation begins: %v\n%s", err, out)
	}

	// Asked to, it goes on. kubelet has made that folder all the same, for the sockets
	// of device plugins, so the agent's Pod starts, and does not become ready.
	out, err = w.command(within(t, 2*time.Minute), args("--skip-preflight")...)
	if exitCode(err) != 4 {
		t.Errorf("the installation ends with %d: %s", exitCode(err), out)
	}
	w.wantRed(t, "kubelet root found", w.Name(), []string{node.DefaultKubeletDir + " is not where kubelet keeps its Pods"},
		"Node Mount Gateway enabled on the node", "Node driver DaemonSet")

	w.install(t, "kubeletDir="+elsewhere)
	p := w.run(t, pooled(t, "there", nil))
	w.wantGreen(t)
	w.mustGrant(t, p, home("ada"))
	w.in(t, p, "touch", "/mnt/datalayer/ada/note")
	if _, err := os.Stat(w.claim("home/users/ada/note")); err != nil {
		t.Error(err)
	}
	w.remove(t, p)
	w.leftNothing(t, p)
	if _, err := os.Stat(w.Path(node.DefaultKubeletDir, "pods")); !os.IsNotExist(err) {
		t.Errorf("something was made where the agent was told at first: %v", err)
	}
}

// imageValues are the values of the chart that this lab needs.
func imageValues() []string {
	image := os.Getenv(imageEnv)
	colon := strings.LastIndex(image, ":")
	return []string{
		"--set", "image.repository=" + image[:colon], "--set", "image.tag=" + image[colon+1:], "--set", "image.pullPolicy=Never",
		"--set", "apiServer.port=443",
	}
}

// TestANodeWithPrivateMountsIsNotInstalledOn: the agent's Pod would not start there.
// Neither does the one that looks at the node first, and what keeps it is told.
func TestANodeWithPrivateMountsIsNotInstalledOn(t *testing.T) {
	w := newWorld(t, setup{bare: true, node: func(o *node.Options) { o.PrivateMounts = true }})
	// It does not wait for its --timeout, which is ten minutes.
	out, err := w.command(within(t, 3*time.Minute), append([]string{"install", "--claim", claimName, "-n", system}, imageValues()...)...)
	if exitCode(err) != 3 || !strings.Contains(out, "is not a shared or slave mount") || !strings.Contains(out, "mount --make-rshared /") || !strings.Contains(out, w.Name()) {
		t.Errorf("it ends with %d:\n%s", exitCode(err), out)
	}
	list, err := w.api.AppsV1().DaemonSets(system).List(within(t, time.Minute), metav1.ListOptions{})
	must(t, err)
	if len(list.Items) > 0 {
		t.Errorf("it has installed %s", list.Items[0].Name)
	}
}
