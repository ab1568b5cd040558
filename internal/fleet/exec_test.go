package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/fleet/fleettest"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// server is a cluster whose API server runs commands so.
func server(t *testing.T, serve http.HandlerFunc) *fleet.Cluster {
	t.Helper()
	s := httptest.NewServer(serve)
	t.Cleanup(s.Close)
	config := &rest.Config{Host: s.URL, Timeout: time.Minute}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &fleet.Cluster{Client: client, Config: config}
}

func running(t *testing.T, run func(path, container string, command []string) fleettest.Result) *fleet.Cluster {
	t.Helper()
	return server(t, func(w http.ResponseWriter, r *http.Request) { fleettest.Exec(w, r, run) })
}

func someAgent() fleet.Agent {
	return fleet.Agent{Node: "node-a", Namespace: "agents", Pod: "agent-x", Ready: true}
}

func TestAnAgentIsAskedByACommandInItsContainer(t *testing.T) {
	view := nodeview.Node{Node: "node-a", Leaked: 2, Pods: []nodeview.Pod{{UID: "u", Name: strings.Repeat("long", 1<<20)}}}
	text, err := json.Marshal(view)
	if err != nil {
		t.Fatal(err)
	}
	c := running(t, func(path, container string, command []string) fleettest.Result {
		if path != "/api/v1/namespaces/agents/pods/agent-x/exec" || container != "driver" || !slices.Equal(command, []string{"node-mounts-agent", "gateway"}) {
			return fleettest.Result{Code: 1, Stderr: "error: " + path + " " + container + strings.Join(command, " ")}
		}
		return fleettest.Result{Stdout: string(text)}
	})
	got, err := c.Ask(t.Context(), someAgent())
	if err != nil || got.Node != "node-a" || got.Leaked != 2 || got.Pods[0].Name != view.Pods[0].Name {
		t.Errorf("%.300v, %v", got, err)
	}
}

func TestAnAgentsComplaintIsToldWithoutItsHint(t *testing.T) {
	c := running(t, func(string, string, []string) fleettest.Result {
		return fleettest.Result{Code: 1, Stderr: "error: ask the agent: connection refused\nhint: what\n"}
	})
	_, err := c.Ask(t.Context(), someAgent())
	if err == nil || !strings.Contains(err.Error(), "ask the agent in its container: ask the agent: connection refused (") || strings.Contains(err.Error(), "what") {
		t.Errorf("%v", err)
	}
}

func TestWhatIsNoDocumentIsAnError(t *testing.T) {
	for name, out := range map[string]string{"nothing": "", "text": "hello", "a cut one": `{"node":"a"`} {
		c := running(t, func(string, string, []string) fleettest.Result { return fleettest.Result{Stdout: out} })
		if got, err := c.Ask(t.Context(), someAgent()); err == nil || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestACommandThatHangsIsLeftAtItsBound(t *testing.T) {
	c := running(t, func(string, string, []string) fleettest.Result { return fleettest.Result{Hangs: true} })
	got := fleet.Ask(t.Context(), c, []fleet.Agent{someAgent()}, 200*time.Millisecond)
	if got[0].Err == nil || !strings.Contains(got[0].Err.Error(), fleet.ErrSilent.Error()) {
		t.Errorf("%+v", got)
	}
}

// A server from before WebSockets gets a second request, by SPDY, whose refusal says
// why.
func TestWhoMayNotRunCommandsIsToldSo(t *testing.T) {
	var upgrades []string
	c := server(t, func(w http.ResponseWriter, r *http.Request) {
		upgrades = append(upgrades, r.Header.Get("Upgrade"))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusForbidden,
			Reason: metav1.StatusReasonForbidden, Message: `pods "agent-x" is forbidden: cannot create resource "pods/exec"`,
		})
	})
	_, err := c.Ask(t.Context(), someAgent())
	if !errors.Is(err, fleet.ErrForbidden) || !strings.Contains(err.Error(), "pods/exec") {
		t.Errorf("%v", err)
	}
	if len(upgrades) != 2 || !strings.EqualFold(upgrades[0], "websocket") || !strings.HasPrefix(strings.ToUpper(upgrades[1]), "SPDY") {
		t.Errorf("asked by %q", upgrades)
	}
}

func TestAServerThatAcceptsAndSaysNothingIsLeftAtItsBound(t *testing.T) {
	silent, end := context.WithCancel(context.Background())
	c := server(t, func(http.ResponseWriter, *http.Request) { <-silent.Done() })
	t.Cleanup(end)
	got := fleet.Ask(t.Context(), c, []fleet.Agent{someAgent()}, 200*time.Millisecond)
	if got[0].Err == nil || !strings.Contains(got[0].Err.Error(), fleet.ErrSilent.Error()) {
		t.Errorf("%+v", got)
	}
}
