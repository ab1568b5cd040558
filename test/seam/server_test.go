package seam_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/secret"
	"github.com/datalayer/node-mounts/operator"
)

// node is where the Pods of these tests are bound, and no kubelet is.
const node = "n1"

// looks tells of each Pod that the agent's watch hands on.
type looks chan string

func (l looks) Reconcile(ctx context.Context, uid string) (time.Duration, error) {
	select {
	case l <- uid:
	case <-ctx.Done():
	}
	return 0, nil
}

// The way of a grant: the operator's patch, the API server and its store, the
// agent's watch, what is kept of the Pod there, and the plan.
func TestAGrantArrivesWholeThroughARealAPIServer(t *testing.T) {
	s := servertest.Start(t)
	api := s.Client(t)
	names := grant.NamesFor("")
	pod := operator.Pod{Namespace: "default", Name: "sandbox"}
	body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q},
		"spec": {"nodeName": %q, "containers": [{"name": "c", "image": "i"}]}}`, pod.Name, node)
	must(t, api.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces", pod.Namespace, "pods").
		SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error())

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	agent, err := kube.New(kube.Config{Client: api, Node: node, Names: names, Volume: grant.DefaultVolumeName, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	seen, ended := make(looks), make(chan error, 1)
	go func() { ended <- agent.Run(ctx, seen) }()

	cases := all(t)
	asked, err := operator.New(api.CoreV1(), names).Grant(ctx, pod, written(cases)...)
	must(t, err)
	for arrived := false; !arrived; {
		select {
		case uid := <-seen:
			p, ok := agent.Pod(uid)
			if arrived = ok && p.Grant != nil; arrived {
				arrives(t, cases, *p.Grant, asked.Hash)
				if uid != string(asked.UID) || *p.Grant != asked.Annotation {
					t.Errorf("the agent reads %q of %s", *p.Grant, uid)
				}
			}
		case <-ctx.Done():
			t.Fatal("the agent saw no grant")
		}
	}
	t.Run("and its Secret is accepted", func(t *testing.T) { secretIsAccepted(t, s, asked.Pod) })
	cancel()
	must(t, <-ended)
}

func secretIsAccepted(t *testing.T, s *servertest.Server, pod operator.Pod) {
	api := s.Client(t)
	got, err := operator.Contents([]operator.Content{{Target: "Taxi", Type: operator.ContentS3, Bucket: "b"}},
		operator.Launch{Pod: pod, Serves: []grant.Kind{grant.KindCloudStorage}, Credentials: true})
	must(t, err)
	if len(got.Secrets) != 1 {
		t.Fatalf("%+v", got)
	}
	must(t, operator.OwnSecret(t.Context(), api.CoreV1(), pod, got.Secrets[0].Name, map[string][]byte{"session-token": []byte("value")}))
	reader := secret.Reader{Source: kube.Secrets{Client: api}}
	ref := secret.Ref{Namespace: pod.Namespace, PodUID: string(pod.UID), Name: got.Mounts[0].Secret}
	data, err := reader.Current(t.Context(), ref, "session-token")
	if v, _ := data.Value("session-token"); err != nil || string(v) != "value" {
		t.Errorf("the agent: %v", err)
	}
	ref.PodUID = "another"
	if _, err := reader.Current(t.Context(), ref); !errors.As(err, new(*secret.RefusedError)) {
		t.Errorf("for another Pod: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
