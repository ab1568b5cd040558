package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/test/gitserver"
)

// The program itself: it becomes git, confined, and it answers git's questions.
func TestTheAgentFetchesAPrivateRepository(t *testing.T) {
	const canary = "canary-90ab12"
	root := t.TempDir()
	server := &gitserver.HTTPS{Username: "x-access-token", Password: canary}
	repo := gitserver.NewRepository(t, root, "team/private.git")
	commit := repo.Files("main", map[string]string{"README.md": "read me\n"})
	server.Start(t, root)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	put(t, ca, string(server.CA()))
	fetches(t, grant.Mount{
		Kind: grant.KindGit, Source: server.URL(repo.Name), Revision: commit, Target: "code", Mode: grant.ReadWrite, AllowExec: true, Secret: "login",
	}, map[string][]byte{"token": []byte(canary)}, []string{canary}, "--git-ca-file", ca, "--git-allow", server.Address().String())
}

// It signs for ssh, and the Secret says which server to believe.
func TestTheAgentFetchesARepositoryOverSSH(t *testing.T) {
	const canary = "canary-34cd56"
	// The server's user walks there.
	root, err := os.MkdirTemp("", "repositories")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	repo := gitserver.NewRepository(t, root, "team/private.git")
	commit := repo.Files("main", map[string]string{"README.md": "read me\n"})
	server := gitserver.StartSSH(t, root)
	key := string(server.Key())
	lines := strings.Split(strings.TrimSpace(key), "\n")
	fetches(t, grant.Mount{
		Kind: grant.KindGit, Source: server.URL(repo), Revision: commit, Target: "code", Mode: grant.ReadWrite, AllowExec: true, Secret: "login",
	}, map[string][]byte{"ssh-privatekey": []byte(key), "known_hosts": server.KnownHosts(), "password": []byte(canary)},
		append(lines[3:len(lines)-1], canary), "--git-allow", server.Address().String())
}

// fetches has the agent serve one private repository, with a Secret of these values, to
// a Pod. None of the canaries is shown.
func fetches(t *testing.T, m grant.Mount, values map[string][]byte, canaries []string, flags ...string) {
	t.Helper()
	node, err := simnode.New(simnode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	}()
	pod := node.NewPod(podUID)
	if err := pod.SetUpVolume(false); err != nil {
		t.Fatal(err)
	}
	container, err := pod.StartContainer(simnode.ContainerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubetest.NewClient(sandbox(container.ID()))
	if err != nil {
		t.Fatal(err)
	}
	handler := kubetest.Handler(client)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/runtimes/secrets/"+m.Secret {
			handler.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{
				Name: m.Secret, Namespace: "runtimes",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "sandbox", UID: podUID}},
			},
			Data: values,
		})
	}))
	defer func() {
		api.CloseClientConnections()
		api.Close()
	}()

	a := start(t, node, kubeconfig(t, api.URL), append([]string{"--repositories", "true", "--credentials", "true"}, flags...)...)
	set, err := grant.Encode([]grant.Mount{m})
	if err != nil {
		t.Fatal(err)
	}
	var answer string
	annotate(t, client, &set, func(ready *string) bool {
		if ready == nil {
			return false
		}
		answer = *ready
		st, err := grant.DecodeStatus(answer)
		if err == nil && st.State != grant.StateReady {
			t.Fatalf("the answer is %s", *ready)
		}
		return err == nil
	})
	user := container.AsUser(1000, 100)
	if got, err := user.ReadFile(simnode.DefaultMountPath + "/code/README.md"); err != nil || string(got) != "read me\n" {
		t.Errorf("the sandbox reads %q, %v", got, err)
	}
	if err := user.WriteFile(simnode.DefaultMountPath+"/code/README.md", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("the sandbox writes: %v", err)
	}
	_, view := a.get("/gateway")
	_, metrics := a.get("/metrics")
	text := view + metrics + answer + a.Log()
	for _, canary := range canaries {
		if strings.Contains(text, canary) {
			t.Errorf("the credential is shown:\n%s", text)
		}
	}
	if !strings.Contains(view, m.Source) || !strings.Contains(view, `"git"`) {
		t.Errorf("the repository is not shown:\n%s", view)
	}
	annotate(t, client, nil, func(ready *string) bool { return ready == nil })
	if status := a.Stop(); status != 0 {
		t.Errorf("the agent ended with status %d", status)
	}
}
