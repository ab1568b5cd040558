package e2e_test

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/test/gitserver"
	"github.com/datalayer/node-mounts/test/s3test"
)

// TestRepositoriesOnARealNode: git of the image, confined in the agent's container, and
// the chart's values.
func TestRepositoriesOnARealNode(t *testing.T) {
	w := newWorld(t, setup{bare: true})
	root := t.TempDir()
	at := netip.MustParseAddrPort(w.Address() + ":" + freePort(t, w.Address()))
	answer := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(answer) })
	server := &gitserver.HTTPS{Username: "x-access-token", Password: "canary-ab12cd", At: at, Hold: func(r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}}
	repo := gitserver.NewRepository(t, root, "team/private.git")
	commit := repo.Files("main", map[string]string{"README.md": "read me\n", "run.sh*": "#!/bin/sh\necho ran\n"})
	server.Start(t, root)
	t.Cleanup(letGo) // where the test ends early
	_, err := w.api.CoreV1().ConfigMaps(system).Create(within(t, time.Minute), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "git-ca"}, Data: map[string]string{"ca.crt": string(server.CA())},
	}, metav1.CreateOptions{})
	must(t, err)
	w.install(t, "nodeMountGateway.credentials=true", "nodeMountGateway.repositories=true",
		"nodeMountGateway.git.caConfigMap=git-ca", "nodeMountGateway.git.allow={"+at.String()+"}")

	code := func(p *corev1.Pod) grant.Mount {
		return grant.Mount{
			Kind: grant.KindGit, Source: server.URL(repo.Name), Revision: commit, Target: "code", Mode: grant.ReadWrite, AllowExec: true, Secret: p.Name,
		}
	}
	w.crashesInMidGrant(t, func(p *corev1.Pod) grant.Mount {
		w.secretOf(t, p, map[string][]byte{"token": []byte(server.Password)})
		return code(p)
	}, letGo)
	var pods []*corev1.Pod
	for _, name := range []string{"first", "second"} {
		p := w.run(t, pooled(t, name, nil))
		w.secretOf(t, p, map[string][]byte{"token": []byte(server.Password)})
		w.mustGrant(t, p, code(p), home("ada"))
		w.insideOnce(t, p, "ada", "code")
		if got := w.in(t, p, "cat", inPod+"/code/README.md"); got != "read me\n" {
			t.Errorf("%s reads %q", name, got)
		}
		if got := w.in(t, p, inPod+"/code/run.sh"); got != "ran\n" {
			t.Errorf("%s runs %q", name, got)
		}
		w.refused(t, p, "sh", "-c", "echo x >"+inPod+"/code/new")
		pods = append(pods, p)
	}
	if n := server.Count("objects"); n != 1 {
		t.Errorf("three Pods cost %d fetches, want 1", n)
	}

	stranger := w.run(t, pooled(t, "stranger", nil))
	w.secretOf(t, stranger, map[string][]byte{"token": []byte("wrong")})
	if st := w.grant(t, stranger, code(stranger)); st.Failed["code"] != grant.CodeSecretRefused {
		t.Errorf("without the credential: %+v", st)
	}
	w.replaceAgent(t)
	for _, p := range pods {
		w.answered(t, p)
		if got := w.in(t, p, "cat", inPod+"/code/README.md"); got != "read me\n" {
			t.Errorf("after another agent, %s reads %q", p.Name, got)
		}
		if text := p.Annotations[grant.NamesFor("").Ready]; strings.Contains(text, server.Password) {
			t.Errorf("the answer has the credential: %s", text)
		}
		w.remove(t, p)
		w.leftNothing(t, p)
	}
	w.remove(t, stranger)
}

// secretOf writes a Secret that the Pod owns, called as it is.
func (w *world) secretOf(t *testing.T, p *corev1.Pod, data map[string][]byte) {
	t.Helper()
	_, err := w.api.CoreV1().Secrets(p.Namespace).Create(within(t, time.Minute), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}}},
		Data:       data,
	}, metav1.CreateOptions{})
	must(t, err)
}

// session writes the Secret of a Pod's buckets.
func (w *world) session(t *testing.T, p *corev1.Pod, c s3test.Credentials) {
	t.Helper()
	w.secretOf(t, p, c.Data())
}
