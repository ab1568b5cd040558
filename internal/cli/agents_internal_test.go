package cli

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/fleet/fleettest"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// seen is what an agent sees on a node with one Pod.
func seen() nodeview.Node {
	return nodeview.Node{
		Node: "node-a", Version: "v0.3.0", Ready: true, Leaked: 1,
		Pods: []nodeview.Pod{{
			UID: "u1", Namespace: "sandboxes", Name: "one", Published: true, Leaked: 1,
			Mounts: []nodeview.Mount{
				{Target: "ada", Kind: "files", Source: "home/ada", Mode: "rw", State: "mounted", Flags: "rw,nosuid,nodev"},
				{Target: "any", Source: "x", Mode: "ro", State: "mounted", Flags: "ro,nosuid,nodev"},
			},
			Held: []nodeview.Held{{Target: "old", Why: "process 7 still has it"}},
		}},
	}
}

func TestWhatAnAgentSeesIsAddedToItsPodsAlone(t *testing.T) {
	var f fleettest.Fleet
	f.Answers(seen())
	f.Fails("node-b", errors.New("agent-node-b is broken"))
	f.Fails("node-c", errors.New("agent-node-c is broken"))
	pods := []summary{
		{UID: "u1", Node: "node-a", Targets: []target{{Target: "ada", State: targetMounted}}},
		{UID: "u2", Node: "node-a", Targets: []target{}},
		{UID: "u3", Node: "node-b"},
		{UID: "u4", Node: "node-c"},
		{UID: "u5", Node: "node-d"},
		{UID: "u6"},
	}
	s := look(t.Context(), &f, nodesOf(pods))
	for i := range pods {
		s.add(&pods[i])
	}
	one, two := pods[0], pods[1]
	if !*one.Published || *one.Leaked != 1 || one.Held != 1 || len(one.Targets) != 2 || one.Targets[0].Flags != "rw,nosuid,nodev" ||
		one.Targets[1] != (target{Target: "old", State: targetHeld, Reason: "process 7 still has it"}) {
		t.Errorf("%+v", one)
	}
	if *two.Published || *two.Leaked != 0 {
		t.Errorf("a Pod of which nothing is on its node: %+v", two)
	}
	for _, p := range pods[2:] {
		if p.Published != nil || p.Leaked != nil {
			t.Errorf("not known, and said: %+v", p)
		}
	}
	want := []string{
		"not known of node-b, node-c: agent-node-b is broken",
		"not known of node-d: no agent runs on the node: none is found",
	}
	if fmt.Sprint(s.unknown) != fmt.Sprint(want) {
		t.Errorf("%q", s.unknown)
	}
}

func TestAHeldMountThatTheAnswerHasIsNotCountedTwice(t *testing.T) {
	var f fleettest.Fleet
	f.Answers(seen())
	sum := summary{UID: "u1", Node: "node-a", Held: 1, Targets: []target{{Target: "old", State: targetHeld, Code: string(grant.CodeHeld)}}}
	s := look(t.Context(), &f, []string{"node-a"})
	s.add(&sum)
	if sum.Held != 1 || len(sum.Targets) != 1 || sum.Targets[0].Reason != "process 7 still has it" {
		t.Errorf("%+v", sum)
	}
}

func TestWithoutAgentsOneLineSaysWhy(t *testing.T) {
	for want, f := range map[string]*fleettest.Fleet{
		"the agents were not asked: no rights":                                    {Err: errors.New("no rights")},
		"the agents were not asked: no agents are found (" + fleet.Selector + ")": {},
	} {
		if s := look(t.Context(), f, []string{"node-a", "node-b"}); len(s.unknown) != 1 || s.unknown[0] != want {
			t.Errorf("%q, want %q", s.unknown, want)
		}
	}
}

func TestNodesAreShownWithWhatIsBoundOnThem(t *testing.T) {
	var f fleettest.Fleet
	f.Answers(seen())
	f.Answers(nodeview.Node{Node: "node-b", Reason: "run `mount --make-rshared /`", Pods: []nodeview.Pod{{UID: "u9"}}})
	f.Fails("node-c", errors.New("the connection broke"))
	f.Missing("node-d", "no Pod of the DaemonSet is on it")
	f.Unknown("which other nodes there are")
	var out, errOut bytes.Buffer
	if err := listNodes(t.Context(), &out, &errOut, &f, table); err != nil {
		t.Fatal(err)
	}
	want := "Nodes\n" +
		"NODE     AGENT       VERSION   PODS   MOUNTS   LEAKED   REASON\n" +
		"node-a   ready       v0.3.0    1      2        1        -\n" +
		"node-b   not ready   -         0      0        0        run `mount --make-rshared /`\n" +
		"node-c   ready       v1        -      -        -        the connection broke\n" +
		"node-d   none        -         -      -        -        no Pod of the DaemonSet is on it\n" +
		"\nNode Mount Gateway\n" +
		"NAMESPACE   POD   TARGET   KIND    SOURCE     MODE   STATE\n" +
		"sandboxes   one   ada      files   home/ada   rw     mounted\n" +
		"sandboxes   one   any      \"\"      x          ro     mounted\n" +
		"sandboxes   one   old      -       -          -      held\n"
	if out.String() != want || errOut.String() != "not known: which other nodes there are\n" {
		t.Errorf("got\n%s\nwant\n%s\nstderr %q", out.String(), want, errOut.String())
	}
	out.Reset()
	if err := listNodes(t.Context(), &out, &errOut, &f, asJSON); err != nil {
		t.Fatal(err)
	}
	var doc struct{ Nodes []nodeRow }
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || len(doc.Nodes) != 4 || doc.Nodes[0].View == nil || doc.Nodes[0].View.Pods[0].Held[0].Why == "" ||
		*doc.Nodes[0].Leaked != 1 || doc.Nodes[2].Leaked != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestACertificateThatIsNotAcceptedIsNoSilence(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	for name, c := range map[string]struct {
		config *tls.Config
		url    string
		hint   string
	}{
		"not trusted":  {&tls.Config{}, server.URL, "the API server's certificate is not trusted: check certificate-authority"},
		"another name": {&tls.Config{RootCAs: trusted, ServerName: "kubernetes.example.net"}, server.URL, "the API server's certificate is for another name"},
		"expired":      {&tls.Config{RootCAs: trusted, Time: func() time.Time { return server.Certificate().NotAfter.Add(time.Hour) }}, server.URL, "the API server's certificate has expired"},
		"silent":       {&tls.Config{}, "https://127.0.0.1:1", "the API server does not answer"},
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c.config}}
		_, err := client.Get(c.url) //nolint:bodyclose // each of them fails
		if hint := hintOf(fmt.Errorf("list the Pods: %w", err), programName); !strings.HasPrefix(hint, c.hint) {
			t.Errorf("%s: %v: hint %q", name, err, hint)
		}
	}
	plain := httptest.NewServer(nil)
	defer plain.Close()
	_, err := http.Get(strings.Replace(plain.URL, "http:", "https:", 1)) //nolint:bodyclose // it fails
	if hint := hintOf(err, programName); !strings.Contains(hint, "speaks no TLS") {
		t.Errorf("%v: hint %q", err, hint)
	}
}
