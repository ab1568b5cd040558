// Package e2e_test runs what this module makes on a real Kubernetes node. `make
// e2e` gets what that needs and runs it.
package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/test/node"
)

// What `make e2e` hands over.
const (
	assetsEnv  = "KUBEBUILDER_ASSETS"        // folder: Kubernetes
	debsEnv    = "NODE_MOUNTS_DEBS"          // folder: containerd and its like, unpacked
	imagesEnv  = "NODE_MOUNTS_IMAGES"        // folder: archives of the tests' own images
	archiveEnv = "NODE_MOUNTS_AGENT_ARCHIVE" // file: the agent's image
	imageEnv   = "NODE_MOUNTS_AGENT_IMAGE"   // its name
)

func TestMain(m *testing.M) {
	if from := os.Getenv(serveEnv); from != "" {
		os.Exit(serve(from, os.Getenv(serveAtEnv)))
	}
	os.Exit(node.Main(equipped, m.Run))
}

// equipped says what is missing, in one sentence.
func equipped() error {
	var missing []string
	for _, need := range []struct{ variable, file string }{
		{assetsEnv, "kubelet"}, {debsEnv, "usr/bin/containerd"}, {imagesEnv, "pause.tar"}, {archiveEnv, ""},
	} {
		value := os.Getenv(need.variable)
		if _, err := os.Stat(filepath.Join(value, need.file)); value == "" || err != nil {
			missing = append(missing, need.variable)
		}
	}
	if os.Getenv(imageEnv) == "" {
		missing = append(missing, imageEnv)
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("run `make e2e`, which gets what these tests need and sets %s", strings.Join(missing, ", "))
}

// importAgent gives the node the agent's image, which takes seconds, and returns
// the image's name.
func importAgent(t *testing.T, n *node.Node) string {
	t.Helper()
	must(t, n.Import(within(t, 2*time.Minute), os.Getenv(archiveEnv)))
	return os.Getenv(imageEnv)
}

// startNode starts a node that ends with the test. change may be nil. Only one is
// there at a time: tests that call this do not run in parallel, their subtests may.
func startNode(t *testing.T, change func(*node.Options)) *node.Node {
	t.Helper()
	images, err := filepath.Glob(filepath.Join(os.Getenv(imagesEnv), "*.tar"))
	must(t, err)
	o := node.Options{Dir: t.TempDir(), Assets: os.Getenv(assetsEnv), Debs: os.Getenv(debsEnv), Images: images}
	if change != nil {
		change(&o)
	}
	start := time.Now()
	n, err := node.Start(within(t, 2*time.Minute), o)
	must(t, err)
	t.Logf("the node is Ready after %s", time.Since(start).Round(10*time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node's logs:\n%s", n.Tail(40))
		}
		if err := n.Stop(); err != nil {
			t.Errorf("stopping the node: %v", err)
		}
	})
	return n
}

// within is a context of the test that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
