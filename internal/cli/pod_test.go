package cli_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

const dataset = `{"apiVersion":"datashim.io/v1alpha1","kind":"Dataset","metadata":{"name":"photos","namespace":"here"},
"spec":{"local":{"type":"COS","endpoint":"https://storage.example","bucket":"photos","secret-name":"photos"}}}`

// What something else than the API server answers says nothing of the Pod: neither
// that it does not exist, nor what is in it.
func TestWhoIsNoAPIServerIsNotBelievedAboutAPod(t *testing.T) {
	file := filepath.Join(t.TempDir(), "datasets.json")
	must(t, os.WriteFile(file, []byte(dataset), 0o600))
	for name, answer := range map[string]http.HandlerFunc{
		"a page that is not found": http.NotFound,
		"an empty document": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("{}"))
		},
	} {
		server := httptest.NewServer(answer)
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		must(t, writeKubeconfig(&rest.Config{Host: server.URL}, "here", kubeconfig))
		for _, args := range [][]string{
			{"status", "sandbox"},
			{"import", "datashim", file, "--pod", "sandbox"},
			{"revoke", "sandbox", "photos"},
		} {
			got := run(t, append(args, "--kubeconfig", kubeconfig)...)
			if got.status != 1 || strings.Contains(got.err, "does not exist") || !strings.Contains(got.err, "is not a Kubernetes API server") {
				t.Errorf("%s, %s: %d\n%s%s", name, args[0], got.status, got.out, got.err)
			}
		}
		server.Close()
	}
}
